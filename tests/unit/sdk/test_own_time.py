"""Each rank says how long it worked by itself, and who waits for others says so."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batuta import sdk
from batuta.sdk import _waiting
from tests.support.scripts import reports_of, run_script


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_report_has_the_time_of_its_steps_without_that_in_which_others_were_waited_for(progress):
    sdk.report(step=1)
    time.sleep(0.05)
    with sdk.waiting():
        time.sleep(0.2)
    sdk.report(step=3)
    first, second = reports_of(progress)
    assert (first.own_s, first.own_steps) == ((), 1)
    assert second.own_steps == 2
    assert 0.04 < second.own_s[0] < 0.2


def test_waits_within_waits_count_once(progress):
    sdk.report(step=1)
    with sdk.waiting(), sdk.waiting():
        time.sleep(0.05)
    sdk.report(step=2)
    assert reports_of(progress)[1].own_s[0] < 0.05


def test_a_wait_that_fails_is_over(progress):
    sdk.report(step=1)
    with pytest.raises(ConnectionError), sdk.waiting():
        raise ConnectionError
    time.sleep(0.05)
    assert sdk.own_s() > 0.04


def test_reports_without_a_step_do_not_cut_the_time_short(progress):
    sdk.report(step=1)
    time.sleep(0.05)
    sdk.report(loss=0.5)
    sdk.report(step=2)
    assert [bool(report.own_s) for report in reports_of(progress)] == [False, False, True]
    assert reports_of(progress)[2].own_s[0] > 0.04


def test_a_training_that_starts_again_by_itself_has_no_time_for_the_way_back(progress):
    for step in (5, 6, 2, 3):
        sdk.report(step=step)
    assert [report.own_steps for report in reports_of(progress) if report.own_s] == [1, 1]


def test_ranks_other_than_0_report_twice_a_second_and_lose_no_step(progress):
    code = """
import time
from batuta import sdk
for step in range(1, 41):
    time.sleep(0.02)
    sdk.report(step=step)
"""
    environ = {"BATUTA_PROGRESS": str(progress), "BATUTA_REPLICA": "3"}
    run_script(code, **environ)
    reports = reports_of(progress)
    assert 2 <= len(reports) <= 5
    assert sum(report.own_steps for report in reports if report.own_s) == 39
    assert sum(report.own_s[0] for report in reports if report.own_s) > 39 * 0.02 * 0.99


def test_a_script_may_know_better(progress):
    sdk.report(step=1, own_s=np.float32(0.25))
    sdk.report(step=3, own_s=0.5)
    assert [(report.own_s, report.own_steps) for report in reports_of(progress)] == [
        ((0.25,), 1),
        ((0.5,), 2),
    ]


def test_rank_0_may_speak_for_all(progress):
    sdk.report(step=1, own_s=[0.1, 0.2])
    sdk.report(step=2, own_s=np.array([0.1, 0.25]))
    assert [report.own_s for report in reports_of(progress)] == [(0.1, 0.2), (0.1, 0.25)]


def test_what_all_ranks_took_adds_up_while_reports_are_held_back(progress, monkeypatch):
    monkeypatch.setenv("BATUTA_REPORT_EVERY_S", "60")
    for step in range(1, 5):
        sdk.report(step=step, own_s=[0.1, 0.2])
    sdk.checkpointed("/ckpt")
    held = lines_of(progress)[1]
    assert (held["own_s"], held["own_steps"]) == ([0.3, 0.6], 3)


def test_a_log_that_has_no_room_for_all_ranks_has_room_for_the_step(capfd, monkeypatch):
    monkeypatch.setenv("BATUTA_PROGRESS", "/dev/stderr")
    sdk.report(step=1, own_s=[0.1234] * 1000)
    said = capfd.readouterr().err
    assert "own_s were left out" in said
    assert '"step":1' in said


def test_who_waits_for_long_says_so_once_and_that_it_is_over(progress, monkeypatch):
    monkeypatch.setattr(_waiting, "REPORT_AFTER_S", 0.02)
    sdk.report(step=1)
    with sdk.waiting():
        _waiting.report_long_wait()
        time.sleep(0.03)
        _waiting.report_long_wait()
        _waiting.report_long_wait()
    with sdk.waiting():
        _waiting.report_long_wait()
    assert [line.get("event") for line in lines_of(progress)] == [None, "waiting", "waited"]
    assert [report.is_waiting for report in reports_of(progress)] == [False, True, False]


def test_it_is_said_while_the_script_cannot_say_anything(progress):
    code = """
import os, time
from batuta import sdk
from batuta.sdk import _waiting
_waiting.REPORT_AFTER_S, _waiting._CHECK_S = 0.1, 0.02
sdk.report(step=1)
sdk.report(step=2)  # held back, and told before that it waits
with sdk.waiting():
    for _ in range(500):
        time.sleep(0.01)
        if b"waiting" in open(os.environ["BATUTA_PROGRESS"], "rb").read():
            break
    os._exit(0)
"""
    run_script(code, BATUTA_PROGRESS=str(progress), BATUTA_REPLICA="1")
    assert [(line.get("step"), line.get("event")) for line in lines_of(progress)] == [
        (1, None),
        (2, None),
        (None, "waiting"),
    ]


def test_without_batuta_nothing_is_written_and_nobody_watches(tmp_path):
    code = """
import threading
from batuta import sdk
with sdk.waiting():
    sdk.report(step=1)
print(threading.active_count(), sdk.own_s())
"""
    assert run_script(code).stdout.split() == ["1", "0.0"]
    assert os.listdir(tmp_path) == []
