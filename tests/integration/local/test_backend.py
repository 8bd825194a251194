"""Jobs on one machine from their start to their end, with real processes."""

import json
import threading
import time

import pytest

from batuta.core import event as ev
from batuta.core.job import JobState
from batuta.core.plan import Migrate, Preempt, Start
from batuta.core.reason import Reason
from tests.support.local_backends import TRAINS, WAITS, Bench
from tests.support.worlds import at

# ----------------------------------------------------------------------------------------------- start to end


def test_job_runs_and_ends(bench: Bench):
    bench.task("a", "echo hello from $BATUTA_JOB_ID")
    bench.start("a", "n0:0")
    end = bench.end_of("a")
    assert (end.state, end.exit_code, end.detail) == (JobState.SUCCEEDED, 0, "")
    assert len(bench.heard(ev.JobStarted, "a")) == 1
    assert bench.log("a") == "hello from a\n"


def test_each_replica_knows_its_place(bench: Bench):
    show = 'echo "$RANK/$WORLD_SIZE on $CUDA_VISIBLE_DEVICES of $MASTER_ADDR" $SKYPILOT_NODE_IPS'
    bench.task("a", show, sizes=3, resources={"accelerators": "gpu:2"})
    bench.start("a", "n0:2301 n1:01")
    bench.end_of("a")
    assert bench.backend.ranks("a") == [0, 1, 2]
    logs = [bench.log("a", rank) for rank in range(3)]
    master = logs[0].split(" of ")[1]
    assert logs == [f"{rank}/3 on {gpus} of {master}" for rank, gpus in enumerate(("2,3", "0,1", "0,1"))]


def test_gpus_are_named_as_the_machine_names_them(bench: Bench):
    bench.devices = {"n0": ["GPU-a", "GPU-b", "GPU-c", "GPU-d"], "n1": [4, 5]}
    bench.task("a", "echo $CUDA_VISIBLE_DEVICES", sizes=2)
    bench.start("a", "n0:2 n1:1")
    bench.end_of("a")
    assert (bench.log("a"), bench.log("a", rank=1)) == ("GPU-c\n", "5\n")


def test_what_is_kept_of_a_finished_job(bench: Bench):
    bench.task(
        "a",
        'echo {} >$BATUTA_PROGRESS; touch $BATUTA_CHECKPOINT_DIR/c; echo 42 >"$BATUTA_CONTROL/result.json"',
    )
    bench.start("a", "n0:0")
    bench.end_of("a")
    assert json.loads(bench.results["a"]) == 42
    kept = {"checkpoints", "logs", "progress.jsonl", "result.json"}
    bench.until(lambda: {path.name for path in bench.folder("a").iterdir()} == kept, "nothing else is kept")
    assert json.loads(bench.backend.result("a") or "") == 42
    bench.backend.forget("a")
    assert not bench.folder("a").exists()


def test_job_that_nobody_knows_fails_and_others_go_on(bench: Bench):
    bench.task("b", "true")
    bench.start("a", "n0:0")
    bench.start("b", "n0:1")
    assert bench.end_of("a").state is JobState.FAILED
    assert bench.end_of("b").state is JobState.SUCCEEDED


def test_another_thread_wakes_the_engine(bench: Bench):
    timer = threading.Timer(0.1, bench.backend.wake)
    timer.start()
    begin = time.monotonic()
    assert list(bench.backend.next_events(None)) == []
    assert list(bench.backend.next_events(time.time() + 0.1))
    assert time.monotonic() - begin < 30
    timer.join()


# -------------------------------------------------------------------------------- resize, migrate and preempt


def test_resize_waits_for_the_checkpoint_and_counts_the_restart(bench: Bench):
    bench.task("a", TRAINS, sizes=2, elastic={"checkpoint": "on-signal", "grace": "30s"})
    bench.start("a", "n0:0")
    bench.until_logged("a", "restart 0 of 1")
    bench.until_said(ev.JobStarted, "a")
    bench.resize("a", "n0:01")
    bench.until_said(ev.JobStarted, "a", times=2)
    bench.until_logged("a", "restart 1 of 2", rank=1)
    assert (bench.folder("a") / "checkpoints" / "saved").exists()
    timed = bench.heard(ev.TransitionTimed, "a")
    assert [one.gpus for one in timed] == [1, 2]
    assert timed[0].checkpoint_s is None
    assert timed[1].checkpoint_s is not None
    assert timed[1].stop_s is not None
    assert timed[1].start_s is not None


def test_resize_goes_on_when_no_checkpoint_comes_within_the_grace(bench: Bench):
    bench.task("a", WAITS, sizes=2, elastic={"checkpoint": "on-signal"})
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    bench.resize("a", "n0:01")
    bench.until_said(ev.JobStarted, "a", times=2)
    timed = bench.heard(ev.TransitionTimed, "a")[1]
    assert timed.checkpoint_s is None
    assert timed.stop_s is not None
    assert timed.stop_s >= 0.3


def test_second_checkpoint_has_to_be_answered_too(bench: Bench):
    """Numbers of requests begin anew with each start, so an old answer must not do."""
    bench.task("a", TRAINS, sizes=2, elastic={"checkpoint": "on-signal", "grace": "30s"})
    bench.start("a", "n0:0")
    for restart, where in enumerate(("n0:01", "n0:1", "n1:01")):
        bench.until_logged("a", f"restart {restart} ")
        bench.until_said(ev.JobStarted, "a", times=restart + 1)
        bench.resize("a", where)
    bench.until_said(ev.JobStarted, "a", times=4)
    saved = (bench.folder("a") / "checkpoints" / "saved").read_text().splitlines()
    assert len(saved) == 3


def test_preempted_job_is_gone_and_comes_back(bench: Bench):
    bench.task("a", TRAINS, elastic={"checkpoint": "on-signal", "grace": "30s"})
    bench.start("a", "n0:0")
    bench.until_logged("a", "restart 0")
    bench.until_said(ev.JobStarted, "a")
    bench.preempt("a")
    bench.until(lambda: not bench.processes())
    bench.until_said(ev.TransitionTimed, "a", times=2)
    assert bench.heard(ev.TransitionTimed, "a")[1].gpus == 0
    assert not bench.heard(ev.JobEnded, "a")
    assert not bench.heard(ev.JobInterrupted, "a")
    bench.start("a", "n1:1")
    bench.until_logged("a", "restart 1")


@pytest.mark.parametrize("checkpoint", ["none", "on-signal"])
def test_job_that_exits_with_0_while_it_is_stopped_has_finished(bench: Bench, checkpoint: str):
    bench.task(
        "a",
        "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done",
        elastic={"checkpoint": checkpoint},
    )
    bench.start("a", "n0:0")
    bench.until_logged("a", "ready")
    bench.until_said(ev.JobStarted, "a")
    bench.resize("a", "n0:1")
    assert bench.end_of("a").state is JobState.SUCCEEDED
    assert len(bench.heard(ev.JobStarted, "a")) == 1


def test_two_jobs_swap_places(bench: Bench):
    for job in "ab":
        bench.task(job, "echo on $CUDA_VISIBLE_DEVICES; exec sleep 1000")
    bench.do(Start("a", at("n0:0"), Reason.ADMITTED), Start("b", at("n0:1"), Reason.ADMITTED))
    for job in "ab":
        bench.until_said(ev.JobStarted, job)
        bench.until_logged(job, "on")
    bench.do(Migrate("a", at("n0:1"), Reason.MADE_ROOM), Migrate("b", at("n0:0"), Reason.MADE_ROOM))
    for job, before, after in (("a", 0, 1), ("b", 1, 0)):
        bench.until_said(ev.JobStarted, job, times=2)
        bench.until_logged(job, "on", times=2)
        assert bench.log(job) == f"on {before}\non {after}\n"


def test_gang_starts_when_the_last_of_its_gpus_is_free(bench: Bench):
    """One job ignores SIGTERM, another leaves at once: nothing starts in their place before both are gone."""
    bench.task("slow", "trap '' TERM; echo ready; while :; do sleep 0.02; done", elastic={"grace": "1s"})
    bench.task("fast", WAITS)
    bench.task("gang", "echo started; sleep 1000", sizes=2)
    bench.do(Start("slow", at("n0:0"), Reason.ADMITTED), Start("fast", at("n0:1"), Reason.ADMITTED))
    bench.until_logged("slow", "ready")
    bench.until_said(ev.JobStarted, "slow")
    bench.until_said(ev.JobStarted, "fast")
    bench.do(
        Preempt("slow", Reason.PREEMPTED),
        Preempt("fast", Reason.PREEMPTED),
        Start("gang", at("n0:01"), Reason.ADMITTED),
    )
    bench.until_said(ev.JobStarted, "gang")
    order = [(type(event).__name__, event.job) for event in bench.said if hasattr(event, "job")]
    assert order.index(("JobStarted", "gang")) > max(
        place for place, said in enumerate(order) if said == ("TransitionTimed", "slow")
    )
    assert bench.heard(ev.JobStarted, "gang")[0].time_s - bench.heard(ev.JobStarted, "slow")[0].time_s >= 1


# --------------------------------------------------------------------------------------- a change of mind


def test_preemption_during_a_resize_wins(bench: Bench):
    bench.task("a", WAITS, sizes=2, elastic={"checkpoint": "on-signal", "grace": "1s"})
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    bench.resize("a", "n0:01")
    bench.idle(0.2)
    bench.preempt("a")
    bench.until(lambda: not bench.processes())
    bench.idle(0.3)
    assert len(bench.heard(ev.JobStarted, "a")) == 1
    assert not bench.processes()


def test_start_during_a_preemption_waits_for_its_end_and_starts_once(bench: Bench):
    bench.task("a", "trap '' TERM; echo run; while :; do sleep 0.02; done")
    bench.start("a", "n0:0")
    bench.until_logged("a", "run")
    bench.until_said(ev.JobStarted, "a")
    bench.preempt("a")
    bench.look(0.05)
    bench.start("a", "n0:1")
    bench.until_said(ev.JobStarted, "a", times=2)
    bench.until_logged("a", "run", times=2)
    bench.idle(0.3)
    assert bench.log("a") == "run\nrun\n"


def test_resize_that_is_taken_back_in_time_changes_nothing(bench: Bench):
    bench.task("a", "echo run; exec sleep 1000", sizes=2, elastic={"checkpoint": "on-signal", "grace": "60s"})
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
    bench.resize("a", "n0:01")
    bench.look(0.1)
    bench.resize("a", "n0:0")
    bench.until_said(ev.JobStarted, "a", times=2)
    assert bench.log("a") == "run\n"
    assert bench.backend.ranks("a") == [0]
