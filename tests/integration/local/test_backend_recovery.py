"""What a new server finds after the old one was killed or shut down, and what it makes of it."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from batuta.backends.local.job_files import JobFiles, RunRecord, read_record, write_record
from batuta.core import event as ev
from batuta.core.job import JobState
from batuta.core.job_table import Phase
from batuta.spec.task_serialization import task_to_json
from tests.support.local_backends import TRAINS, WAITS, Bench
from tests.support.local_replicas import wait_until
from tests.support.worlds import at

REPO = Path(__file__).resolve().parents[3]
SLOW_END = "echo run; trap 'sleep 0.3; exit 5' TERM; while :; do sleep 0.02; done"


def running(bench: Bench, run: str = WAITS, where: str = "n0:0", **keys: object) -> None:
    """Job a runs and has said so."""
    bench.task("a", run, sizes=4, **keys)
    bench.start("a", where)
    bench.until_said(ev.JobStarted, "a")


# -------------------------------------------------------------------------------------------- it still runs


@pytest.mark.parametrize(("phase", "starts"), [(Phase.STARTING, 2), (Phase.RESIZING, 2), (Phase.RUNNING, 1)])
def test_running_job_is_adopted(bench: Bench, phase: Phase, starts: int):
    running(bench, "echo run; while [ ! -e $BATUTA_CHECKPOINT_DIR/end ]; do sleep 0.02; done", "n0:01")
    bench.vanish()
    before = bench.processes()
    bench.come_back({"a": ("n0:01", phase)})
    bench.idle(0.2)
    assert set(bench.processes()) >= set(before[:2])
    (bench.folder("a") / "checkpoints" / "end").touch()
    assert bench.end_of("a").state is JobState.SUCCEEDED
    assert len(bench.heard(ev.JobStarted, "a")) == starts
    assert bench.log("a") == "run\n"


def test_adopted_job_keeps_its_gpus_and_its_port(bench: Bench):
    running(bench)
    bench.vanish()
    bench.come_back({"a": ("n0:0", Phase.RUNNING)})
    bench.task("b", "echo b")
    bench.start("b", "n0:0")  # which the World would not do
    bench.idle(0.2)
    record = read_record(JobFiles(bench.root, "a"), 0)
    if record is not None:
        ports = bench.backend.context.ports
        assert record.port not in [ports.reserve(f"other {number}") for number in range(50)]
    assert bench.end_of("b").state is JobState.SUCCEEDED  # after a was stopped, which has lost its place
    assert "a" in bench.backend._jobs.runs


def test_change_of_place_that_was_not_carried_out_is(bench: Bench):
    running(bench, TRAINS, elastic={"checkpoint": "on-signal", "grace": "30s"})
    bench.until_logged("a", "restart 0 of 1")
    bench.vanish()
    bench.come_back({"a": ("n1:01", Phase.RESIZING)})
    bench.until_said(ev.JobStarted, "a", times=2)
    bench.until_logged("a", "restart 1 of 2", rank=1)
    assert (bench.folder("a") / "checkpoints" / "saved").exists()


def test_preemption_that_was_not_carried_out_is(bench: Bench):
    running(bench)
    bench.vanish()
    bench.come_back({"a": (None, Phase.WAITING)})
    bench.until(lambda: not bench.processes())
    assert not bench.heard(ev.JobEnded, "a")
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a", times=2)


def test_cancellation_that_was_not_carried_out_is(bench: Bench):
    running(bench)
    bench.vanish()
    bench.come_back({"a": (None, Phase.STOPPING)})
    assert bench.end_of("a").state is JobState.CANCELLED
    bench.until(lambda: not bench.processes())


def test_cancellation_of_a_job_without_processes(bench: Bench):
    bench.task("a", WAITS)
    bench.come_back({"a": (None, Phase.STOPPING)})
    assert bench.end_of("a").state is JobState.CANCELLED


def test_runs_of_unknown_jobs_are_ended_and_cleared(bench: Bench):
    running(bench)
    bench.until_logged("a", "ready")
    bench.vanish()
    bench.come_back({})
    wait_until(lambda: not bench.processes())
    assert not (bench.folder("a") / "runs").exists()
    assert bench.log("a") == "ready\n"


def test_stop_that_had_begun_goes_on(bench: Bench):
    """The old server had told it to stop, to move it; so its exit code means nothing."""
    running(bench, SLOW_END, elastic={"grace": "30s"})
    bench.until_logged("a", "run")
    bench.resize("a", "n0:1")
    bench.look(0.05)
    bench.vanish()
    bench.come_back({"a": ("n0:1", Phase.RESIZING)})
    bench.until_said(ev.JobStarted, "a", times=2)
    assert not bench.heard(ev.JobInterrupted, "a")
    bench.until_logged("a", "run", times=2)


# ------------------------------------------------------------------------------- it ended while nobody looked


@pytest.mark.parametrize(("code", "state"), [(0, JobState.SUCCEEDED), (3, JobState.FAILED)])
def test_end_without_a_server_is_told_by_the_next(bench: Bench, code: int, state: JobState):
    running(bench, f"echo 1 >$BATUTA_CONTROL/result.json; sleep 0.3; exit {code}")
    bench.vanish()
    time.sleep(0.1)
    while bench.processes():
        time.sleep(0.01)
    bench.come_back({"a": ("n0:0", Phase.RUNNING)})
    end = bench.end_of("a")
    assert (end.state, end.exit_code) == (state, code)
    assert bench.results == {"a": "1\n"}


def test_end_that_was_told_but_not_kept_is_told_again_and_counted_once(bench: Bench):
    recovery = {"job_recovery": {"max_restarts_on_errors": 1}}
    bench.task("a", "echo run; exit 1", resources=recovery)
    bench.start("a", "n0:0")
    bench.until_said(ev.JobInterrupted, "a")
    bench.vanish()  # before the engine could ask for more, so before it has kept anything
    bench.come_back({"a": ("n0:0", Phase.RUNNING)})
    again = bench.until_said(ev.JobInterrupted, "a", times=2)
    assert "restart 1 of 1" in again.detail
    bench.start("a", "n0:0")
    assert bench.end_of("a").state is JobState.FAILED
    assert bench.log("a") == "run\nrun\n"


def test_machine_that_went_down_is_no_failure(bench: Bench):
    running(bench)
    bench.vanish()
    for path in (bench.folder("a") / "runs").rglob("state.json"):
        path.write_text(path.read_text().replace('"boot_id": "', '"boot_id": "another-'))
    for pid in bench.processes():
        os.kill(pid, signal.SIGKILL)
    bench.come_back({"a": ("n0:0", Phase.RUNNING)})
    assert "went down" in bench.until_said(ev.JobInterrupted, "a").detail


# ----------------------------------------------------------------------------------- it was never started


def test_start_that_was_not_carried_out_is(bench: Bench):
    bench.task("a", "echo run")
    bench.come_back({"a": ("n0:0", Phase.STARTING)})
    assert bench.end_of("a").state is JobState.SUCCEEDED
    assert bench.log("a") == "run\n"


def test_gang_of_which_only_some_were_started_is_started_anew(bench: Bench):
    """The server was killed between two replicas: the record says three, only one is there."""
    running(bench, "echo run of $WORLD_SIZE; exec sleep 1000")
    bench.until_logged("a", "run")
    bench.vanish()
    files = JobFiles(bench.root, "a")
    record = read_record(files, 0)
    assert record is not None
    write_record(files, RunRecord("a", 0, at("n0:012"), 3, record.port, record.started_s, record.key))
    bench.come_back({"a": ("n0:012", Phase.STARTING)})
    bench.until_said(ev.JobStarted, "a", times=2)
    for rank in range(3):
        bench.until_logged("a", "run of 3", rank)
    assert not bench.heard(ev.JobInterrupted, "a")
    assert bench.log("a").count("run of 3") == 1


def test_record_without_replicas_is_a_start_that_was_not_carried_out(bench: Bench):
    bench.task("a", "echo run")
    files = JobFiles(bench.root, "a")
    files.prepare(0)
    write_record(files, RunRecord("a", 0, at("n0:0"), 1, 23456, time.time()))
    files.prepare(1)  # and here not even the record was written
    bench.come_back({"a": ("n0:0", Phase.STARTING)})
    assert bench.end_of("a").state is JobState.SUCCEEDED
    assert bench.log("a") == "run\n"


# ------------------------------------------------------------------------------------ a server that shut down


def test_jobs_stay_when_the_server_is_to_keep_them(bench: Bench):
    running(bench)
    bench.shut_down(keep_jobs=True)
    assert bench.processes()
    bench.come_back({"a": ("n0:0", Phase.RUNNING)})
    bench.stop("a")
    assert bench.end_of("a").state is JobState.CANCELLED


def test_jobs_that_were_shut_down_come_back(bench: Bench):
    running(bench, TRAINS, elastic={"checkpoint": "on-signal", "grace": "30s"})
    bench.until_logged("a", "restart 0")
    bench.shut_down(keep_jobs=False)
    wait_until(lambda: not bench.processes())
    assert (bench.folder("a") / "checkpoints" / "saved").exists()
    bench.come_back({"a": ("n0:0", Phase.RUNNING)})
    interrupted = bench.until_said(ev.JobInterrupted, "a")
    assert interrupted.detail == "the server was shut down"
    assert interrupted.not_before_s <= interrupted.time_s
    bench.start("a", "n0:1")
    bench.until_logged("a", "restart 1")


def test_a_job_that_was_just_to_start_is_not_left_running(bench: Bench):
    """Given a job that waits for another to leave its GPU, when the server shuts down, nothing runs on."""
    running(bench, "trap 'sleep 0.3; exit' TERM; echo ready; while :; do sleep 0.02; done")
    bench.until_logged("a", "ready")
    bench.task("b", "exec sleep 60")
    bench.preempt("a")
    bench.start("b", "n0:0")
    bench.shut_down(keep_jobs=False)
    wait_until(lambda: not bench.processes())


def test_shutdown_does_not_wait_for_ever(bench: Bench):
    running(bench, "trap '' TERM; echo ready; while :; do sleep 0.02; done", elastic={"grace": "600s"})
    bench.until_logged("a", "ready")
    bench.shut_down(keep_jobs=False, within_s=0.3)
    wait_until(lambda: not bench.processes())


# ------------------------------------------------------------------------------------------------- kill -9

SERVER = """
    import json, sys, time
    from pathlib import Path
    from batuta.backends.local.backend import LocalBackend
    from batuta.core.cluster import Node
    from batuta.core.plan import Start
    from batuta.core.reason import Reason
    from batuta.spec.task_job import task_to_job
    from batuta.spec.task_serialization import task_from_json
    from tests.support.worlds import at
    task = task_from_json(Path(sys.argv[2]).read_text())
    nodes = [Node("n0", 4), Node("n1", 2)]
    backend = LocalBackend(Path(sys.argv[1]), nodes, lambda job: (task, task_to_job(task, job, 0.0, nodes=nodes)))
    backend.execute([Start("a", at("n0:012"), Reason.ADMITTED)], time.time())
    print("ready", flush=True)
    while True:
        backend.next_events(None)
"""


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.02, 0.04, 0.3])
def test_server_that_is_killed_loses_no_job_and_runs_none_twice(bench: Bench, tmp_path: Path, after_s: float):
    once = 'exec 9>"$BATUTA_CHECKPOINT_DIR/$RANK"; flock -n 9 || echo twice; sleep 0.4'
    bench.task("a", once, sizes=3)
    (tmp_path / "task.json").write_text(task_to_json(bench.tasks["a"]))
    command = [sys.executable, "-c", textwrap.dedent(SERVER), str(bench.root), str(tmp_path / "task.json")]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        time.sleep(after_s)
        server.kill()
    bench.come_back({"a": ("n0:012", Phase.STARTING)})
    assert bench.end_of("a").state is JobState.SUCCEEDED
    assert not [rank for rank in range(3) if "twice" in bench.log("a", rank)]


def test_job_that_ended_while_nobody_was_there_is_dated_when_it_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("batuta.backends.local.job_run._LATE_S", 0.0)
    bench.task("a", "echo ready; sleep 0.3")
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    bench.vanish()
    give_up = time.monotonic() + 30
    while bench.processes():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    over_s = time.time()
    bench.come_back({"a": ("n0:0", Phase.RUNNING)})
    end = bench.end_of("a")
    assert end.state is JobState.SUCCEEDED
    assert end.ended_s is not None
    assert end.ended_s <= over_s <= end.time_s


def test_agents_that_were_being_stopped_when_the_server_was_killed_are_no_failure(bench: Bench):
    run = '[ $BATUTA_REPLICA = 0 ] && exit 0; trap "" TERM; echo ready; while :; do sleep 0.1; done'
    bench.task("a", run, sizes=2, elastic={"kind": "torch-elastic", "grace": "0.5s"})
    bench.start("a", "n0:01")
    files = JobFiles(bench.root, "a")

    def is_noted() -> bool:
        record = read_record(files, 0)
        return record is not None and record.trailing

    bench.until(is_noted, "the others are told to stop")
    bench.vanish()
    bench.come_back({"a": ("n0:01", Phase.RUNNING)})
    end = bench.end_of("a")
    assert (end.state, end.detail) == (
        JobState.SUCCEEDED,
        "rank 1 did not end after rank 0 had, and was stopped",
    )
