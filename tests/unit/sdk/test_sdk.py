"""The SDK does nothing without Batuta, keeps results, and understands what Batuta sets."""

import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batuta import sdk
from batuta.spec.replica_env import ReplicaContext, build_run_env
from batuta.spec.task import Task
from tests.support.scripts import ask, reports_of, run_script


def test_without_batuta_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sdk.report(step=1, loss=math.nan, odd=object())
    sdk.checkpointed("x", step=1)
    sdk.result(object())
    assert sdk.checkpoint_requested() is False
    assert list(tmp_path.iterdir()) == []


def test_without_batuta_importing_it_touches_no_signal():
    done = run_script("import batuta.sdk, signal; print(signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)")
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_importing_it_loads_next_to_nothing():
    code = "import sys; before = set(sys.modules); import batuta.sdk; print(*(set(sys.modules) - before))"
    loaded = set(run_script(code).stdout.split())
    assert loaded == {
        "batuta",
        "batuta.sdk",
        "batuta.sdk._lines",
        "batuta.sdk._requests",
        "batuta.sdk._stderr",
        "batuta.sdk._waiting",
        "atexit",
        "__future__",
    }
    assert not {"json", "typing", "re", "numpy"} & set(run_script(code, BATUTA_JOB_ID="1").stdout.split())


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"accuracy": 0.5, "classes": ("a", "b")}, {"accuracy": 0.5, "classes": ["a", "b"]}),
        (None, None),
        ("text", "text"),
        ([math.nan, math.inf, 1], [None, None, 1]),
        ({1: np.float32(0.5), "m": np.eye(2)}, {"1": 0.5, "m": [[1.0, 0.0], [0.0, 1.0]]}),
        (Path("/c"), "/c"),
    ],
)
def test_a_result_is_kept_as_json(control, value, kept):
    sdk.result(value)
    assert json.loads((control / "result.json").read_text()) == kept
    assert [path.name for path in control.iterdir()] == ["result.json"]


def test_the_last_result_counts(control):
    sdk.result(1)
    sdk.result(2)
    assert (control / "result.json").read_text() == "2"


def test_a_result_that_cannot_be_kept_warns_and_leaves_the_old_one(control, capsys):
    sdk.result(1)
    circle: list[Any] = []
    circle.append(circle)
    sdk.result(circle)
    sdk.result("x" * (2**24 + 1))
    sdk.result(10**5000)
    assert (control / "result.json").read_text() == "1"
    assert capsys.readouterr().err.count("the result was not kept") == 3


def test_what_the_environment_says_is_what_the_sdk_hears_and_what_it_says_is_read(tmp_path):
    place = ReplicaContext(
        job_id="j",
        rank=1,
        node_ips=("127.0.0.1", "127.0.0.1"),
        gpus=(0,),
        master_port=29_500,
        checkpoint_dir=str(tmp_path),
        progress_file=str(tmp_path / "p"),
        control_dir=str(tmp_path),
        restart=3,
    )
    ask(tmp_path, 9)
    code = """if True:
        from batuta import sdk
        sdk.report(step=1, total_steps=2)
        if sdk.checkpoint_requested():
            sdk.checkpointed("/c", step=1)
        sdk.result("done")
    """
    done = run_script(code, **build_run_env(Task(), place))
    assert (done.returncode, done.stderr) == (0, "")
    first, asks, second = reports_of(tmp_path / "p")
    assert asks.saves_on_request
    assert (first.rank, first.replica, first.restart, first.fraction) == (1, 1, 3, 0.5)
    assert (second.is_checkpoint, second.request, second.checkpoint_path) == (True, 9, "/c")
    assert (tmp_path / "result.json").read_text() == '"done"'


def test_threads_that_report_at_once_lose_nothing(progress):
    threads = [threading.Thread(target=sdk.report, kwargs={"step": step}) for step in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.step or 0 for report in reports_of(progress)) == [*range(20)]
