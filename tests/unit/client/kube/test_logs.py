"""People see what their script prints, as it comes, and not how the SDK speaks to Batuta."""

from hypothesis import given
from hypothesis import strategies as st

from batuta.client.kube.logs import ReportFilter, last_lines

REPORT = b'batuta-report {"step":1}\n'
LOG = b"one\n" + REPORT + b"two\r 10%\r 20%" + REPORT + REPORT + b"\r 30%\nbatuta-report is a word\n" + REPORT


def shown(*pieces: bytes) -> bytes:
    log = ReportFilter()
    return b"".join([*map(log.take, pieces), log.rest()])


@given(st.lists(st.integers(0, len(LOG)), max_size=10))
def test_reports_are_left_out_however_the_log_is_cut(cuts):
    ends = sorted({*cuts, len(LOG)})
    pieces = [LOG[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert shown(*pieces) == b"one\ntwo\r 10%\r 20%\r 30%\nbatuta-report is a word\n"


def test_what_cannot_be_a_report_is_shown_at_once():
    log = ReportFilter()
    assert log.take(b"waiting for input> ") == b"waiting for input> "
    assert log.take(b"batuta") == b""
    assert log.take(b"-operator") == b"batuta-operator"


def test_what_begins_as_a_report_and_does_not_end_is_shown_in_the_end():
    log = ReportFilter()
    assert log.take(b"batuta-report {") == b""
    assert log.take(b"x" * 100) == b""
    assert log.take(b"x" * 2**15).startswith(b"batuta-report {xxx")
    assert shown(b"batuta-report {") == b"batuta-report {"


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_a_log_without_reports_is_shown_as_it_is(pieces):
    assert shown(*pieces) == b"".join(pieces)


def test_the_last_lines_are_those_of_people():
    assert last_lines(b"one\ntwo\nthree", 2) == b"two\nthree"
    assert last_lines(b"one\n", 0) == b""
