"""What a line of a log says, and what it may not claim."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.kube.progress.log_lines import ReportLine, ResultReport, TrainingReport, parse_report


def said(text: str | bytes) -> TrainingReport | ResultReport | None:
    return parse_report(ReportLine(100.0, text if isinstance(text, bytes) else text.encode()))


def test_a_report_is_read_with_the_time_of_its_line():
    found = said('{"time":1.0,"step":3,"total_steps":10,"loss":0.5}')
    assert isinstance(found, TrainingReport)
    assert (found.report.step, found.report.fraction, found.time_s) == (3, 0.3, 100.0)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"event":"result","value":{"accuracy":0.5}}', '{"accuracy":0.5}'),
        ('{"event": "result", "value": "größer"}', '"größer"'),
        ('{"event":"result","value":null}', "null"),
    ],
)
def test_a_result_is_kept_as_json(text, kept):
    assert said(text) == ResultReport(kept)


@pytest.mark.parametrize(
    "text",
    [
        '{"step":-1}',
        '{"step":"many"}',
        '{"samples":-5}',
        '{"step":1e400}',
        "{",
        "[]",
        "{}",
        '{"step":1} and more',
        '{"event":"result","value":NaN}',
        '{"event":"result","value":"\\ud800"}',
        '{"event":"result","value":"' + "x" * 2**14 + '"}',
        b'{"step":\xff}',
        b"{" * 10_000,
    ],
)
def test_what_is_no_report_is_refused(text):
    found = said(text)
    assert not isinstance(found, ResultReport)
    assert found is None or found.report.step is None


def test_a_loss_that_is_not_a_number_has_no_value():
    found = said('{"step":1,"loss":NaN}')
    assert isinstance(found, TrainingReport)
    assert (found.report.loss, found.report.nonfinite) == (None, ("loss",))


@given(st.binary(max_size=200))
def test_nothing_that_a_script_writes_raises(text):
    found = said(b"{" + text)
    if isinstance(found, TrainingReport):
        assert found.report.fraction is None or math.isfinite(found.report.fraction)
