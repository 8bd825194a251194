"""Jobs that fail, by their own fault or not, and jobs that are cancelled."""

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from batuta.backends.local import processes
from batuta.backends.local.job_files import RunRecord
from batuta.backends.local.job_run import JobRun
from batuta.backends.local.live_run import LiveRun
from batuta.backends.local.mounts import sweep_mount_points
from batuta.backends.local.runner_protocol import ReplicaPhase, ReplicaState
from batuta.core import event as ev
from batuta.core.job import JobState
from batuta.core.job_table import Phase
from batuta.engine.jobs.reconcile import Observed
from tests.support.local_backends import ANSWER, WAITS, Bench

RECOVERY = {"job_recovery": {"max_restarts_on_errors": 2}}


def start_again(bench: Bench, job: str, times: int, where: str = "n0:0") -> ev.JobInterrupted:
    """What the engine does after a job was interrupted so often."""
    interrupted = bench.until_said(ev.JobInterrupted, job, times)
    bench.start(job, where)
    return interrupted


# -------------------------------------------------------------------------------------------- its own fault


def test_failure_says_who_and_how_and_the_last_line(bench: Bench):
    bench.task("a", "echo out of memory; exit 7")
    bench.start("a", "n0:0")
    end = bench.end_of("a")
    assert (end.state, end.exit_code) == (JobState.FAILED, 7)
    assert end.detail == "the job exited with code 7; its last line: out of memory"
    assert len(bench.heard(ev.JobStarted, "a")) == 1


def test_one_replica_that_fails_ends_the_others(bench: Bench):
    bench.task(
        "a",
        'if [ $RANK = 1 ]; then echo boom; kill -SEGV $$; fi; trap "" TERM; while :; do sleep 0.02; done',
        sizes=3,
    )
    bench.start("a", "n0:012")
    end = bench.end_of("a")
    assert (end.state, end.exit_code) == (JobState.FAILED, 128 + signal.SIGSEGV)
    assert end.detail.startswith("rank 1 was ended by signal 11 (SIGSEGV)")
    bench.until(lambda: not bench.processes())  # a runner says that it has ended just before it ends


def test_crash_loop_backs_off_and_has_a_limit(bench: Bench):
    bench.task("a", "echo run $BATUTA_RESTART; exit 1", resources=RECOVERY)
    bench.start("a", "n0:0")
    first, second = start_again(bench, "a", 1), start_again(bench, "a", 2)
    end = bench.end_of("a")
    assert (end.state, end.exit_code) == (JobState.FAILED, 1)
    waits_s = [one.not_before_s - one.time_s for one in (first, second)]
    assert waits_s == pytest.approx([0.05, 0.1], abs=0.01)
    assert "restart 2 of 2" in second.detail
    assert bench.log("a") == "run 0\nrun 1\nrun 2\n"


def test_exit_codes_that_ask_for_a_restart_do_not_count(bench: Bench):
    recovery = {"job_recovery": {"max_restarts_on_errors": 0, "recover_on_exit_codes": [33]}}
    bench.task("a", "[ $BATUTA_RESTART -lt 3 ] && exit 33; echo done", resources=recovery)
    bench.start("a", "n0:0")
    for times in (1, 2, 3):
        assert start_again(bench, "a", times).exit_code == 33
    assert bench.end_of("a").state is JobState.SUCCEEDED


def test_failures_are_counted_across_servers(bench: Bench):
    bench.task("a", "exit 1", resources=RECOVERY)
    bench.start("a", "n0:0")
    for times in (1, 2):
        bench.until_said(ev.JobInterrupted, "a", times)
        bench.look()
        bench.vanish()
        bench.come_back({})
        bench.start("a", "n0:0")
    assert bench.end_of("a").state is JobState.FAILED


def start_where_its_end_cannot_be_written_down(bench: Bench, restarts: int) -> Path:
    """A job whose runs fail, and what keeps that from being written down: a folder cannot be replaced by a file."""
    recovery = {"job_recovery": {"max_restarts_on_errors": restarts}}
    bench.task("a", "echo run $BATUTA_RESTART; sleep 0.3; exit 1", resources=recovery)
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    obstacle = bench.folder("a") / "job.json"
    obstacle.mkdir()
    return obstacle


@pytest.mark.parametrize("is_durable", [True, False], ids=["told and durable", "told"])
def test_failure_that_cannot_be_written_down_counts_for_the_next_server(bench: Bench, is_durable: bool):
    """Given a disk that is full when a run fails, when the server is killed, then no other run has its number."""
    obstacle = start_where_its_end_cannot_be_written_down(bench, restarts=1)
    bench.until_said(ev.JobInterrupted, "a")
    if is_durable:
        bench.look()
    bench.vanish()
    obstacle.rmdir()
    bench.come_back({"a": (None, Phase.WAITING)})
    start_again(bench, "a", 2)
    assert bench.end_of("a").state is JobState.FAILED
    assert bench.log("a") == "run 0\nrun 1\n"


def test_job_is_not_started_again_before_the_end_of_its_last_run_is_written_down(bench: Bench):
    obstacle = start_where_its_end_cannot_be_written_down(bench, restarts=2)
    start_again(bench, "a", 1)
    assert os.strerror(errno.EISDIR) in bench.until_said(ev.JobInterrupted, "a", 2).detail
    obstacle.rmdir()
    bench.start("a", "n0:0")
    start_again(bench, "a", 3)
    assert bench.end_of("a").state is JobState.FAILED
    assert len(bench.log("a").splitlines()) == 3


def test_time_limit_counts_all_runs_together(bench: Bench):
    limit = {"labels": {"kueue.x-k8s.io/max-exec-time-seconds": "2"}}
    bench.task("a", WAITS, resources=limit)
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    bench.idle(1.2)
    bench.preempt("a")
    bench.until_said(ev.TransitionTimed, "a", times=2)
    bench.start("a", "n0:1")
    begin = time.monotonic()
    end = bench.end_of("a")
    assert time.monotonic() - begin < 1.9
    assert end.state is JobState.FAILED
    assert "time limit" in end.detail


# --------------------------------------------------------------------------------------------------- setup


def test_setup_that_fails_is_the_end(bench: Bench):
    bench.task("a", "echo never", setup="echo no such package; exit 3", resources=RECOVERY)
    bench.start("a", "n0:0")
    end = bench.end_of("a")
    assert (end.state, end.exit_code) == (JobState.FAILED_SETUP, 3)
    assert "no such package" in end.detail
    assert not bench.heard(ev.JobStarted, "a")


def test_setup_is_done_once_for_each_rank_before_any_of_them_runs(bench: Bench):
    done = '"$BATUTA_CHECKPOINT_DIR/setups"'
    bench.task(
        "a",
        f"wc -l <{done} >>{done}.seen; {WAITS}",
        setup=f"sleep 0.2; echo $SKYPILOT_SETUP_NODE_RANK >>{done}",
        sizes=4,
    )
    bench.start("a", "n0:01 n1:01")
    bench.until_said(ev.JobStarted, "a")
    setups = bench.folder("a") / "checkpoints" / "setups"
    assert sorted(setups.read_text().split()) == ["0", "1", "2", "3"]
    bench.resize("a", "n0:0 n1:0")
    bench.until_said(ev.JobStarted, "a", times=2)
    assert len(setups.read_text().split()) == 4
    assert set(setups.with_name("setups.seen").read_text().split()) == {"4"}


def test_missing_workdir_is_a_clear_failure(bench: Bench):
    bench.task("a", "true", workdir="/no/such/folder", resources=RECOVERY)
    bench.start("a", "n0:0")
    end = bench.end_of("a")
    assert end.state is JobState.FAILED
    assert "/no/such/folder: No such file or directory" in end.detail


def test_mounts_are_seen_by_the_job_alone_and_nothing_is_left_or_replaced(bench: Bench, tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("inside\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "own").write_text("mine\n")
    mounts = {
        "in/work": str(tmp_path / "data"),
        str(tmp_path / "elsewhere" / "y"): str(tmp_path / "data" / "x"),
        str(tmp_path / "taken"): str(tmp_path / "data"),
    }
    look = f"cat in/work/x {tmp_path}/elsewhere/y {tmp_path}/taken/x; test ! -e {tmp_path}/taken/own"
    bench.task("a", f"set -e; {look}; echo more >>in/work/x", file_mounts=mounts)
    bench.start("a", "n0:0")
    assert bench.end_of("a").state is JobState.SUCCEEDED
    assert bench.log("a") == "inside\n" * 3
    assert (tmp_path / "data" / "x").read_text() == "inside\nmore\n"
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != "state") == ["data", "taken"]
    assert (tmp_path / "taken" / "own").read_text() == "mine\n"


def test_mount_points_of_a_killed_runner_are_swept_at_the_next_start(bench: Bench, tmp_path: Path):
    (tmp_path / "data").mkdir()
    target = tmp_path / "some" / "where"
    bench.task("a", "echo ready; sleep 1000", file_mounts={str(target): str(tmp_path / "data")})
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    sweep_mount_points()
    assert target.exists()  # it is in use
    run = bench.backend._jobs.runs["a"].run
    assert run is not None
    os.kill(run.replicas[0][1].pid, signal.SIGKILL)
    bench.until_said(ev.JobInterrupted, "a")
    bench.until(lambda: not bench.processes())
    assert target.exists()
    sweep_mount_points()
    assert not target.parent.exists()


def test_a_mount_of_another_kind_is_refused_with_its_place(bench: Bench, tmp_path: Path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    bench.task("a", "true", file_mounts={str(tmp_path / "file"): str(tmp_path / "folder")})
    bench.start("a", "n0:0")
    end = bench.end_of("a")
    assert end.state is JobState.FAILED
    assert f"{tmp_path / 'file'}: file_mounts: Not a directory" in end.detail


# ------------------------------------------------------------------------------------- not its own fault


def test_killed_runner_is_no_failure_of_the_job(bench: Bench):
    bench.task("a", "setsid sleep 1000 & echo run; sleep 1000", sizes=2)
    bench.start("a", "n0:01")
    bench.until_said(ev.JobStarted, "a")
    run = bench.backend._jobs.runs["a"].run
    assert run is not None
    os.kill(run.replicas[0][1].pid, signal.SIGKILL)
    interrupted = bench.until_said(ev.JobInterrupted, "a")
    assert "rank 0 was lost" in interrupted.detail
    assert interrupted.not_before_s > interrupted.time_s
    bench.until(lambda: not bench.processes())  # a runner says that it has ended just before it ends
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a", times=2)


@pytest.mark.parametrize("rank", [0, 1])
def test_launch_that_fails_leaves_nothing_and_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch, rank: int):
    launch, fails = processes.launch, [True]

    def full(run_dir, spec):
        if fails and run_dir.name == str(rank):
            fails.clear()
            raise OSError(errno.ENOSPC, "No space left on device")
        return launch(run_dir, spec)

    monkeypatch.setattr(processes, "launch", full)
    bench.task("a", WAITS, sizes=2)
    bench.start("a", "n0:01")
    interrupted = start_again(bench, "a", 1, "n0:01")
    assert "No space left on device" in interrupted.detail
    bench.until_said(ev.JobStarted, "a")
    bench.until(lambda: len(bench.processes()) == 4, "two runners and what they run")


def test_disk_without_room_for_the_record_is_no_end(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    bench.task("a", "true")

    def full(_files: object, _record: RunRecord) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("batuta.backends.local.live_run.write_first_record", full)
        bench.start("a", "n0:0")
        assert "No space left" in bench.until_said(ev.JobInterrupted, "a").detail
    bench.start("a", "n0:0")
    assert bench.end_of("a").state is JobState.SUCCEEDED


def test_replica_that_cannot_be_looked_at_is_not_taken_for_gone(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Without descriptors nothing can be read, and what cannot be read looks as if it had never been."""
    bench.task("a", WAITS)
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    run = bench.backend._jobs.runs["a"].run
    assert run is not None
    with monkeypatch.context() as patch:
        for phase in (ReplicaPhase.ABSENT, ReplicaPhase.LOST):
            patch.setattr(processes, "observe", lambda _, phase=phase: ReplicaState(phase))
            run.look_at_all()
            assert run.states[0].phase is ReplicaPhase.RUNNING
    bench.stop("a")
    assert bench.end_of("a").state is JobState.CANCELLED


def test_place_that_this_machine_does_not_have(bench: Bench):
    bench.task("a", "true")
    bench.start("a", "elsewhere:0")
    assert "does not have elsewhere:0" in bench.until_said(ev.JobInterrupted, "a").detail


# ------------------------------------------------------------------------------------------------ cancelled


def test_cancelled_job_is_gone_whatever_it_forked(bench: Bench):
    stubborn = """
    trap '' TERM INT USR1
    setsid sh -c 'trap "" TERM; while :; do sleep 0.05; done' &
    (setsid sh -c 'exec env -i sleep 1000' &)
    echo ready
    while :; do sleep 0.05; done
    """
    bench.task("a", stubborn, elastic={"grace": "60s"}, sizes=2)
    bench.task("b", "echo next")
    bench.start("a", "n0:01")
    for rank in (0, 1):
        bench.until_logged("a", "ready", rank)
    bench.until_said(ev.JobStarted, "a")
    bench.stop("a")
    bench.start("b", "n0:0")
    assert bench.end_of("a").state is JobState.CANCELLED
    assert bench.end_of("b").state is JobState.SUCCEEDED
    assert bench.end_of("b").time_s >= bench.end_of("a").time_s
    bench.until(lambda: not bench.processes())  # a runner says that it has ended just before it ends


def test_job_is_cancelled_while_a_checkpoint_is_waited_for(bench: Bench):
    bench.task("a", WAITS, sizes=2, elastic={"checkpoint": "on-signal", "grace": "300s"})
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    bench.resize("a", "n0:01")
    bench.look(0.1)
    bench.stop("a")
    assert bench.end_of("a").state is JobState.CANCELLED


def test_job_that_crashes_at_a_request_for_a_checkpoint_has_failed(bench: Bench):
    crash = ANSWER + "echo ready; while [ $(number checkpoint-request) = 0 ]; do sleep 0.02; done; exit 9"
    bench.task("a", crash, elastic={"checkpoint": "on-signal", "grace": "300s"})
    bench.start("a", "n0:0")
    bench.until_logged("a", "ready")
    bench.until_said(ev.JobStarted, "a")
    bench.preempt("a")
    end = bench.end_of("a")
    assert (end.state, end.exit_code) == (JobState.FAILED, 9)


def test_something_that_nobody_thought_of_is_the_end_of_one_job_and_of_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    for job in "ab":
        bench.task(job, WAITS)
    observe = JobRun._observe

    def stumble(self: JobRun, run: LiveRun | None, can_start: bool) -> Observed:
        if self.job.id == "a" and run is not None and run.all_run:
            raise ZeroDivisionError("nobody thought of this")
        return observe(self, run, can_start)

    monkeypatch.setattr(JobRun, "_observe", stumble)
    bench.start("a", "n0:0")
    bench.start("b", "n0:1")
    end = bench.end_of("a")
    assert end.state is JobState.FAILED
    assert "a fault of the server" in end.detail
    assert "nobody thought of this" in end.detail
    assert "nobody thought of this" in caplog.text
    bench.until_said(ev.JobStarted, "b")
    assert not bench.heard(ev.JobEnded, "b")
    # Its GPU is free, and nothing of it is left there.
    bench.task("c", "true")
    bench.start("c", "n0:0")
    assert bench.end_of("c").state is JobState.SUCCEEDED


def test_pipes_in_place_of_files_hold_nobody_up(bench: Bench):
    run = 'trap "mkfifo $BATUTA_CONTROL/checkpoint-done" USR1; mkfifo $BATUTA_CONTROL/result.json; echo ready'
    bench.task("a", f"{run}; while :; do sleep 0.02; done", elastic={"checkpoint": "on-signal"})
    bench.start("a", "n0:0")
    bench.until_logged("a", "ready")
    bench.until_said(ev.JobStarted, "a")
    bench.preempt("a")
    bench.until(lambda: not bench.processes(), "it has left")
    assert "a" not in bench.results
    bench.task("b", "mkfifo $BATUTA_CONTROL/result.json")
    bench.start("b", "n0:0")
    assert bench.end_of("b").state is JobState.SUCCEEDED
    assert "b" not in bench.results


ELASTIC = {"kind": "torch-elastic"}


def test_agents_that_do_not_follow_rank_0_to_its_end_are_stopped(bench: Bench):
    run = "[ $BATUTA_REPLICA = 0 ] && exit 0; echo waits; exec sleep 1000"
    bench.task("a", run, sizes=2, elastic=ELASTIC)
    bench.start("a", "n0:01")
    end = bench.end_of("a")
    assert (end.state, end.exit_code) == (JobState.SUCCEEDED, 0)
    assert end.detail == "rank 1 did not end after rank 0 had, and was stopped"


def test_other_jobs_may_go_on_after_their_rank_0(bench: Bench):
    bench.task("a", "[ $BATUTA_REPLICA = 0 ] && exit 0; sleep 1", sizes=2)
    bench.start("a", "n0:01")
    end = bench.end_of("a")
    assert (end.state, end.detail) == (JobState.SUCCEEDED, "")


def test_a_fault_before_a_job_has_begun_is_the_end_of_that_job_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    remember = JobRun.remember

    def stumble(self: JobRun, now_s: float, current: RunRecord | None = None) -> None:
        if self.job.id == "a":
            raise ZeroDivisionError("nobody thought of this")
        remember(self, now_s, current)

    monkeypatch.setattr(JobRun, "remember", stumble)
    for job in "ab":
        bench.task(job, "true")
        bench.start(job, "n0:0")
    assert "nobody thought of this" in bench.end_of("a").detail
    assert bench.end_of("b").state is JobState.SUCCEEDED
