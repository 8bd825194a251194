"""Reports are found in a log however it is cut into pieces, each once, and nothing that is printed hurts."""

from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.kube import names
from batuta.backends.kube.progress.log_lines import LONGEST_REPORT_BYTES, LogLines
from batuta.sdk import _stderr

PREFIX = names.REPORT_PREFIX.encode()


def line(second: int, text: bytes, nanosecond: int = 123456789) -> bytes:
    """As a kubelet gives it out with timestamps."""
    return b"2026-05-01T10:00:%02d.%09dZ %s\n" % (second, nanosecond, text)


def report(second: int, text: bytes = b"{}", nanosecond: int = 123456789) -> bytes:
    return line(second, PREFIX + text, nanosecond)


def texts(lines: LogLines, *pieces: bytes) -> list[bytes]:
    return [found.text for piece in pieces for found in lines.take(piece)]


def test_the_sdk_writes_what_is_looked_for():
    assert (_stderr.PREFIX, _stderr.LONGEST_RESULT_BYTES) == (PREFIX, LONGEST_REPORT_BYTES)


def test_a_report_has_the_time_that_its_node_has_written_down():
    (found,) = LogLines().take(report(7, b'{"step":1}'))
    assert found.text == b'{"step":1}'
    assert found.time_s == 1777629607.123456


@given(st.lists(st.integers(0, 400), max_size=8))
def test_however_the_log_is_cut_each_report_is_found_once(cuts):
    """Given a log with reports between other lines, any pieces of it hold the same reports."""
    log = b"".join(
        (
            line(1, b"epoch 1"),
            report(2, b'{"step":1}'),
            line(3, b"\r 10%|\r 20%|" + PREFIX + b'{"step":2}'),
            line(3, b"[default0]:" + PREFIX + b'{"step":3}'),
            line(4, b"nothing"),
            report(5, b'{"step":4}'),
        )
    )
    ends = sorted({*(cut for cut in cuts if cut < len(log)), len(log)})
    pieces = [log[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert texts(LogLines(), *pieces) == [b'{"step":%d}' % step for step in (1, 2, 3, 4)]


@given(st.integers(0, 700), st.integers(0, 5))
def test_after_a_cut_the_log_goes_on_without_a_report_lost_or_counted_twice(cut, again):
    """Given a connection that breaks anywhere, the next one begins with the second of the last line."""
    log = [report(k // 3, b'{"step":%d}' % k, nanosecond=k) for k in range(12)]
    lines = LogLines()
    found = texts(lines, b"".join(log)[:cut])
    for _ in range(again + 1):
        lines.reconnect()
        begin = next((k for k, one in enumerate(log) if one[:19].decode() >= lines.since[:19]), 0)
        found += texts(lines, b"".join(log[begin:]))
    assert found == [b'{"step":%d}' % k for k in range(12)]


def test_a_line_that_never_ends_does_not_fill_the_memory():
    """Given a bar that is drawn over and over, what is kept is bounded, and a report after it is found."""
    lines = LogLines()
    lines.take(b"2026-05-01T10:00:01.000000000Z ")
    for _ in range(2000):
        assert lines.take(b"\r 42%|####      |" * 100) == []
        assert len(lines._rest) <= 3 * LONGEST_REPORT_BYTES
    assert texts(lines, PREFIX + b'{"step":9}\n') == [b'{"step":9}']
    assert lines.refused == 0


def test_a_report_that_is_too_long_is_refused_and_the_next_one_is_heard():
    for pieces in ([b"x" * 2 * LONGEST_REPORT_BYTES], [b"x" * 4096] * 40):
        lines = LogLines()
        found = texts(lines, report(1)[:-3] + b'{"a":"', *pieces, b'"}\n', report(2, b'{"step":2}'))
        assert found == [b'{"step":2}']
        assert lines.refused == 1


def test_a_node_that_explains_itself_without_a_time_does_not_stop_the_reading():
    lines = LogLines()
    assert texts(lines, report(1), b"unable to retrieve container logs\n") == [b"{}"]
    lines.reconnect()
    assert lines.since == "2026-05-01T10:00:01.123456789Z"
    assert texts(lines, b"unable to retrieve container logs\n", report(2, b'{"step":2}')) == [b'{"step":2}']


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_whatever_is_printed_nothing_is_raised(pieces):
    lines = LogLines()
    for piece in pieces:
        lines.take(piece)
    lines.reconnect()
    assert isinstance(lines.since, str)
