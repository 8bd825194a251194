"""Where its files cannot be seen, a script reports in its log: few lines, readable, each in one piece."""

import json
from typing import Any

import pytest

from batuta.sdk import _stderr
from batuta.spec.progress import parse_line
from tests.support.scripts import run_script

PREFIX = _stderr.PREFIX.decode()


def said_by(code: str, **env: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The reports that a script writes into its log, and the other lines there."""
    done = run_script(f"from batuta import sdk\n{code}", BATUTA_PROGRESS="/dev/stderr", **env)
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    reports = [json.loads(line.removeprefix(PREFIX)) for line in lines if line.startswith(PREFIX)]
    return reports, [line for line in lines if not line.startswith(PREFIX)]


def test_a_report_is_one_line_that_everybody_can_read():
    (report,), rest = said_by("sdk.report(step=3, total_steps=10, loss=0.5, lr=0.1)", BATUTA_REPLICA="0")
    read = parse_line(json.dumps(report))
    assert read is not None
    assert (read.step, read.total_steps, read.loss, read.replica) == (3, 10, 0.5, 0)
    assert read.metrics == (("lr", 0.1),)
    assert rest == []


def test_of_many_reports_the_first_and_the_last_are_written():
    reports, rest = said_by("for step in range(1000): sdk.report(step=step)")
    assert [report["step"] for report in reports] == [0, 999]
    assert rest == []


def test_a_checkpoint_and_a_result_are_said_at_once_and_nothing_before_them_is_lost(tmp_path):
    (tmp_path / "checkpoint-request").write_text("2\n")
    code = """
sdk.report(step=1); sdk.report(step=2)
assert sdk.checkpoint_requested()
sdk.checkpointed("/c/2", step=2)
assert not sdk.checkpoint_requested()
sdk.report(step=3)
sdk.result({"accuracy": 0.5, "nan": float("nan")})
"""
    answers = tmp_path / "answers"
    answers.mkdir()
    reports, rest = said_by(code, BATUTA_CONTROL=str(tmp_path), BATUTA_ANSWERS=str(answers))
    assert reports.pop(1)["event"] == "saves-on-request"
    assert [report.get("step") for report in reports] == [1, 2, 2, 3, None]
    assert (reports[2]["event"], reports[2]["request"]) == ("checkpoint", 2)
    assert (reports[4]["event"], reports[4]["value"]) == ("result", {"accuracy": 0.5, "nan": None})
    assert rest == []
    assert (answers / "checkpoint-done").read_text() == "2\n"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["checkpoint-request"]


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"])
def test_one_process_of_a_replica_reports_for_all(variable):
    code = "sdk.report(step=1); sdk.checkpointed('/c')"
    assert len(said_by(code, **{variable: "0"})[0]) == 2
    (only,), _ = said_by(code, **{variable: "3"})
    assert only["event"] == "checkpoint"


def test_metrics_that_are_too_long_for_a_line_are_left_out_and_progress_is_not():
    code = "sdk.report(step=7, loss=float('nan'), **{'m%03d' % k * 9: float(k) for k in range(300)})"
    (report,), rest = said_by(code)
    assert (report["step"], report["nonfinite"], "metrics" in report) == (7, ["loss"], False)
    assert rest == ["batuta.sdk: metrics were left out: together they are longer than a line of the log may be"]


def test_a_result_that_is_too_long_for_the_log_is_refused_with_a_word():
    reports, (word,) = said_by("sdk.result('x' * 20_000)")
    assert reports == []
    assert word == "batuta.sdk: the result was not kept: it is longer than 16 KiB"


def test_whatever_becomes_of_the_error_output_the_script_goes_on():
    """Given a script that puts a file in its place, or closes it, reports go where they went at first."""
    (report,), _ = said_by("import os; os.close(2); os.open(os.devnull, os.O_WRONLY); sdk.report(step=1)")
    assert report["step"] == 1
    closed = run_script(
        "import os; os.close(2)\nfrom batuta import sdk; sdk.report(step=1); print('on')",
        BATUTA_PROGRESS="/dev/stderr",
    )
    assert (closed.returncode, closed.stdout) == (0, "on\n")


def test_lines_of_many_processes_do_not_mix():
    code = """
import os
for worker in range(6):
    if not os.fork():
        for step in range(200):
            sdk.checkpointed("/c" * 1000, step=step)
        os._exit(0)
for worker in range(6):
    os.wait()
"""
    reports, rest = said_by(code)
    assert (len(reports), rest) == (1200, [])
