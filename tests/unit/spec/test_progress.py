"""Reports are read as they come in; half a line waits, garbage is counted."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batuta.spec.progress import ProgressReport, parse_line


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ('{"step": 3}', ProgressReport(step=3)),
        (
            '{"time": 5.5, "rank": 1, "replica": 0, "restart": 2, "step": 3.0, "total_steps": 9}',
            ProgressReport(time_s=5.5, rank=1, replica=0, restart=2, step=3, total_steps=9),
        ),
        (
            '{"epoch": 1.5, "total_epochs": 3, "samples": 640, "loss": -0.3}',
            ProgressReport(epoch=1.5, total_epochs=3, samples=640, loss=-0.3),
        ),
        (
            '{"step": 1, "lr": 0.1, "metrics": {"acc": 1}, "host": "x", "flag": true}',
            ProgressReport(step=1, metrics=(("lr", 0.1), ("acc", 1.0))),
        ),
        ('{"loss": null, "nonfinite": ["loss"]}', ProgressReport(nonfinite=("loss",))),
        ('{"loss": NaN, "lr": Infinity}', ProgressReport(nonfinite=("loss", "lr"))),
        ('{"loss": 1e999}', ProgressReport(nonfinite=("loss",))),
        (
            '{"event": "checkpoint", "path": "/c", "step": 3, "request": 2}',
            ProgressReport(step=3, is_checkpoint=True, checkpoint_path="/c", request=2),
        ),
        ('{"event": "other", "path": "/c", "step": 3}', ProgressReport(step=3)),
        ('{"step": 1, "noise_scale": 900.5}', ProgressReport(step=1, noise_scale=900.5)),
        ('{"step": 1, "noise_scale": NaN}', ProgressReport(step=1, nonfinite=("noise_scale",))),
        ('{"accuracy": 0.5}', ProgressReport(metrics=(("accuracy", 0.5),))),
        (f'{{"big": {"9" * 400}}}', ProgressReport(nonfinite=("big",))),
    ],
)
def test_a_line_is_a_report(line, report):
    assert parse_line(line.encode()) == parse_line(line) == report


@pytest.mark.parametrize(
    "line",
    [
        *(
            "x",
            "{",
            "3",
            "[]",
            "null",
            "{}",
            '{"note": "hi"}',
            '{"step": "3"}',
            '{"step": -1}',
            '{"step": 1.5}',
        ),
        *('{"step": true}', '{"rank": null, "loss": "low"}', '{"step": 1, "metrics": 3}', '{"time": -1}'),
        *('{"step": 1, "nonfinite": "loss"}', '{"event": 3}', '{"path": 3}', '{"step": 1e30}', "[" * 10_000),
        f'{{"step": {"9" * 5000}}}',
    ],
)
def test_what_is_no_report_is_garbage(line):
    assert parse_line(line.encode()) is None


@pytest.mark.parametrize("line", [b"\xff\xfe", b"\0\0\0", b"", b" \r", b'{"step": 1', b"x" * (2**20 + 1)])
def test_bytes_that_are_no_report_are_garbage(line):
    assert parse_line(line) is None


@pytest.mark.parametrize(
    ("report", "fraction"),
    [
        (ProgressReport(step=5, total_steps=10), 0.5),
        (ProgressReport(epoch=1, total_epochs=4), 0.25),
        (ProgressReport(step=5, total_steps=10, epoch=0, total_epochs=4), 0.5),
        (ProgressReport(step=12, total_steps=10), 1.0),
        (ProgressReport(step=5), None),
        (ProgressReport(step=5, total_steps=0), None),
    ],
)
def test_what_is_done_is_a_part_of_the_whole(report, fraction):
    assert report.fraction == fraction


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,\n0123456789.eE-NaInfstep ', max_size=80).map(str.encode))
@example(b'{"metrics": {"a": {"b": []}}}\n')
def test_no_bytes_make_it_raise(data):
    for line in data.split(b"\n"):
        parse_line(line)
