"""What jobs report, on its way to the engine; and jobs that start their own workers."""

import json
import time

import pytest

from batuta.core import event as ev
from batuta.core.job import JobState
from batuta.core.job_table import Phase
from tests.support.local_backends import ANSWER, Bench

STEPS = """
i=$(cat $BATUTA_CHECKPOINT_DIR/step 2>/dev/null || echo 0)
while [ $i -lt 60 ]; do
  i=$((i + 1))
  say=$(printf '"time": %s, "step": %s, "total_steps": 60, "loss": 0.5' $(date +%s.%N) $i)
  echo "{$say}" >>$BATUTA_PROGRESS
  echo $i >$BATUTA_CHECKPOINT_DIR/step
  sleep 0.03
done
"""


def last_progress(bench: Bench, job: str) -> ev.JobProgressed:
    return bench.heard(ev.JobProgressed, job)[-1]


def test_progress_is_told_and_the_last_report_is_not_lost(bench: Bench):
    bench.task("a", STEPS)
    bench.start("a", "n0:0")
    bench.end_of("a")
    kinds = [type(event) for event in bench.said if getattr(event, "job", "") == "a"]
    assert kinds[-1] is ev.JobEnded
    progress = last_progress(bench, "a").progress
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.fraction, progress.loss) == (60, 60, 1.0, 0.5)
    assert last_progress(bench, "a").remaining_s == pytest.approx(0, abs=1e-6)


def test_next_server_measures_on(bench: Bench):
    bench.task("a", STEPS)
    bench.start("a", "n0:0")
    bench.until_said(ev.JobProgressed, "a")
    bench.vanish()
    bench.said.clear()
    bench.come_back({"a": ("n0:0", Phase.RUNNING)})
    first = bench.until_said(ev.JobProgressed, "a")
    assert first.progress is not None
    assert first.progress.total_steps == 60
    assert bench.end_of("a").state is JobState.SUCCEEDED


def test_job_without_a_total_is_believed_to_go_on(bench: Bench):
    bench.task("a", 'for i in 1 2 3; do echo "{\\"step\\": $i}" >>$BATUTA_PROGRESS; sleep 0.1; done')
    bench.start("a", "n0:0")
    bench.end_of("a")
    said = last_progress(bench, "a")
    assert said.progress is not None
    assert said.progress.fraction is None
    assert 0 < said.remaining_s <= 3600


def test_garbage_and_a_last_line_without_end_do_no_harm(bench: Bench):
    bench.task("a", 'printf \'no json\\n\\377\\n[1]\\n{"step": 3, "total_steps": 4}\' >$BATUTA_PROGRESS')
    bench.start("a", "n0:0")
    assert bench.end_of("a").state is JobState.SUCCEEDED
    progress = last_progress(bench, "a").progress
    assert progress is not None
    assert progress.step == 3


@pytest.mark.parametrize("where", ["$BATUTA_CHECKPOINT_DIR/metrics.csv", "$BATUTA_CHECKPOINT_DIR/../m.csv", "my.csv"])
def test_csv_of_voda_is_progress_too(bench: Bench, where: str):
    csv = "epoch,start_time,epoch_time_sec,workers,total_epochs\\n0,2026-01-01 00:00:00,9,1,4\\n"
    envs = {"VODA_METRICS_CSV": "my.csv"} if where == "my.csv" else {}
    bench.task("a", f"printf '{csv}' >{where}; touch $BATUTA_CHECKPOINT_DIR/other.csv", envs=envs)
    bench.start("a", "n0:0")
    bench.end_of("a")
    progress = last_progress(bench, "a").progress
    assert progress is not None
    assert (progress.epoch, progress.fraction) == (1, 0.25)


def test_checkpoint_is_noted_without_a_report(bench: Bench):
    """A shell script may only write the number of the request that it has answered."""
    answer = "number checkpoint-request >$BATUTA_CONTROL/checkpoint-done"
    script = f"{ANSWER} echo ready; while :; do {answer}; sleep 0.02; done"
    bench.task("a", script, elastic={"checkpoint": "on-signal", "grace": "300s"})
    bench.start("a", "n0:0")
    bench.until_logged("a", "ready")
    bench.until_said(ev.JobStarted, "a")
    begin = time.monotonic()
    bench.migrate("a", "n0:1")
    bench.until_said(ev.JobStarted, "a", times=2)
    assert time.monotonic() - begin < 60
    assert bench.heard(ev.TransitionTimed, "a")[1].checkpoint_s is not None


# --------------------------------------------------------------------------------- who starts its own workers


@pytest.mark.parametrize("kind", ["mpi", "horovod-elastic"])
def test_one_process_tree_for_all_workers(bench: Bench, kind: str):
    script = """
    echo "$BATUTA_NUM_PROCS of $CUDA_VISIBLE_DEVICES"
    cat $BATUTA_HOSTFILE $HYDRA_HOST_FILE
    $BATUTA_DISCOVERY_SCRIPT
    """
    bench.task("a", script, sizes=2, elastic={"kind": kind}, resources={"accelerators": "gpu:2"})
    bench.start("a", "n0:23 n1:01")
    assert bench.end_of("a").state is JobState.SUCCEEDED
    assert bench.backend.ranks("a") == [0]
    assert bench.log("a").splitlines() == ["4 of 2,3,0,1", "localhost slots=4", "localhost:4", "localhost:4"]


def test_horovod_changes_its_workers_without_a_restart(bench: Bench):
    """Down to the first of its GPUs and up again; those that it leaves are given away when it has left."""
    watch = "echo run; while :; do $BATUTA_DISCOVERY_SCRIPT >seen.new; mv seen.new seen; sleep 0.02; done"
    bench.task("a", watch, sizes=4, elastic={"kind": "horovod-elastic"})
    bench.task("b", "echo b")
    bench.start("a", "n0:0123")
    seen = bench.folder("a") / "work" / "seen"
    bench.until(lambda: seen.exists() and seen.read_text() == "localhost:4\n")
    bench.until_said(ev.JobStarted, "a")
    bench.resize("a", "n0:01")
    bench.start("b", "n0:2")
    bench.until_said(ev.JobStarted, "a", times=2)
    bench.until(lambda: seen.read_text() == "localhost:2\n")
    assert bench.end_of("b").time_s >= bench.heard(ev.JobStarted, "a")[1].time_s + 0.4
    bench.vanish()
    bench.come_back({"a": ("n0:012", Phase.RESIZING)})
    bench.until_said(ev.JobStarted, "a", times=3)
    bench.until(lambda: seen.read_text() == "localhost:3\n")
    assert bench.log("a") == "run\n"
    bench.resize("a", "n1:01")  # which it was not started with
    bench.until_said(ev.JobStarted, "a", times=4)
    bench.until_logged("a", "run", times=2)


def test_run_record_is_there_to_read(bench: Bench):
    bench.task("a", "sleep 1000", sizes=2)
    bench.start("a", "n0:2 n1:1")
    bench.until_said(ev.JobStarted, "a")
    record = json.loads((bench.folder("a") / "runs" / "0" / "run.json").read_text())
    assert record["placement"] == [["n0", [2]], ["n1", [1]]]
    assert (record["size"], record["number"], record["ranks"]) == (2, 0, 2)
