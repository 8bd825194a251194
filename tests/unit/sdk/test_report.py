"""A training script tells how far it is, and is never harmed by it."""

import json
import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from batuta import sdk
from batuta.spec.progress import parse_line
from tests.support.scripts import reports_of, run_script


def test_a_report_is_read_as_it_was_meant(progress, monkeypatch):
    monkeypatch.setenv("BATUTA_REPLICA", "2")
    monkeypatch.setenv("BATUTA_RESTART", "1")
    monkeypatch.setenv("BATUTA_REPORT_EVERY_S", "0")
    sdk.report(step=3, total_steps=9, epoch=1, total_epochs=4, samples=640, loss=0.25, lr=0.1, time=7)
    sdk.report(step=4, noise_scale=np.float32(512.0))
    report, later = reports_of(progress)
    assert (later.step, later.noise_scale, later.metrics) == (4, 512.0, ())
    assert (report.step, report.total_steps, report.epoch, report.total_epochs) == (3, 9, 1, 4)
    assert (report.samples, report.loss, report.metrics) == (640, 0.25, (("lr", 0.1), ("time", 7.0)))
    assert (report.rank, report.replica, report.restart) == (2, 2, 1)
    assert (report.time_s or 0) > 1.6e9


def test_the_rank_is_the_launchers_if_there_is_one(progress, monkeypatch):
    monkeypatch.setenv("BATUTA_REPLICA", "1")
    monkeypatch.setenv("RANK", "5")
    sdk.report(step=1)
    monkeypatch.setenv("RANK", "none")
    sdk.report(step=2)
    assert [(report.rank, report.replica) for report in reports_of(progress)] == [(5, 1), (None, 1)]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, np.float32("nan"), np.array(math.inf)])
def test_a_loss_that_has_broken_down_is_reported_as_such(progress, loss):
    sdk.report(step=1, loss=loss, other=math.nan)
    assert json.loads(progress.read_text())["loss"] is None
    (report,) = reports_of(progress)
    assert (report.step, report.loss, report.nonfinite) == (1, None, ("loss", "other"))


class Tensor:
    """As a tensor of one element behaves."""

    def item(self) -> float:
        return 1.5


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float32(1.5), 1.5),
        (np.int64(3), 3),
        (np.array([2.0]), 2.0),
        (Tensor(), 1.5),
        (True, 1),
        ("4", 4.0),
    ],
)
def test_numbers_of_other_libraries_are_numbers(progress, value, number):
    sdk.report(step=1, value=value)
    assert reports_of(progress)[0].metrics == (("value", number),)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"loss": object()}, "a report was dropped: float() argument must be"),
        ({"step": 10**5000}, "a report was dropped: Exceeds the limit"),
        ({"x" * 70_000: 1}, "a report was dropped: it is longer than 64 KiB"),
        ({"loss": np.zeros(3)}, "a report was dropped: can only convert an array of size 1"),
    ],
)
def test_a_report_that_cannot_be_written_is_dropped_with_one_warning(progress, capsys, values: dict[str, Any], said):
    for _ in range(3):
        sdk.report(**values)
    sdk.report(step=2)
    warned = capsys.readouterr().err
    assert warned.startswith(f"batuta.sdk: {said}")
    assert warned.count("\n") == 1
    assert [report.step for report in reports_of(progress)] == [2]


@pytest.mark.parametrize("path", ["/dev/full", "/not/there/progress", "/", "a\0b"])
def test_a_full_disk_or_a_bad_path_warns_once_and_harms_nobody(path, monkeypatch, capsys):
    if "\0" in path:
        monkeypatch.setattr(os, "environ", {**os.environ, "BATUTA_PROGRESS": path})
    else:
        monkeypatch.setenv("BATUTA_PROGRESS", path)
    for step in range(3):
        sdk.report(step=step)
    assert capsys.readouterr().err.count("a report was dropped") == 1
    sdk.checkpointed("/c", step=3)
    assert "a checkpoint could not be reported" in capsys.readouterr().err


def test_a_line_that_a_full_disk_cut_off_does_not_spoil_the_next(progress, monkeypatch, capsys):
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:10]))
    sdk.report(step=1)
    monkeypatch.setattr(os, "write", write)
    sdk.report(step=2)
    torn, second = (parse_line(line) for line in progress.read_bytes().splitlines())
    assert torn is None
    assert second is not None
    assert second.step == 2
    assert "the disk is full" in capsys.readouterr().err


def test_a_closed_stderr_harms_nobody(monkeypatch):
    monkeypatch.setenv("BATUTA_PROGRESS", "/dev/full")
    monkeypatch.setattr(sys, "stderr", None)
    sdk.report(step=1)


def test_lines_of_many_processes_and_threads_do_not_mix(progress):
    code = """if True:
        import threading
        from batuta import sdk
        def work(number):
            for step in range(100):
                sdk.report(step=step, **{"m" * (1 + 37 * step % 900): number})
        threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """
    env = {"PATH": os.environ["PATH"], "BATUTA_PROGRESS": str(progress)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert sorted(report.step or 0 for report in reports_of(progress)) == sorted([*range(100)] * 9)


def test_too_many_reports_are_thinned_out_and_the_last_one_is_kept(progress):
    code = "from batuta import sdk\nfor step in range(1, 6): sdk.report(step=step)"
    run_script(code, BATUTA_PROGRESS=str(progress), BATUTA_REPORT_EVERY_S="60")
    assert [report.step for report in reports_of(progress)] == [1, 5]


def test_a_report_that_was_held_back_comes_before_the_checkpoint(progress, monkeypatch):
    monkeypatch.setenv("BATUTA_REPORT_EVERY_S", "60")
    for step in (1, 2, 3):
        sdk.report(step=step)
    sdk.checkpointed("/c")
    assert [(report.step, report.is_checkpoint) for report in reports_of(progress)] == [
        (1, False),
        (3, False),
        (None, True),
    ]
