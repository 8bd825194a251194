"""What every backend promises to the engine, whatever it runs jobs on.

A backend joins by a rig: a way to make it with two equal jobs, `a` and `b`, that are submitted at once and
each fit on one GPU of the node `n0`, which has two. Real ones take real seconds, so a rig names its own.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from batuta.backends.local.backend import LocalBackend
from batuta.backends.sim.goodput.backend import GoodputBackend
from batuta.backends.sim.machine import SimBackend
from batuta.backends.sim.workload import GoodputRequest, SimJob
from batuta.core import event as ev
from batuta.core.command import Command, Preempt, Resize, Start, Stop
from batuta.core.job import JobId, JobState
from batuta.core.reason import Reason
from batuta.engine.ports import Backend
from batuta.spec.task import parse_task
from tests.support.sims import sim_job
from tests.support.worlds import at, make_job, make_nodes
from tests.unit.backends.sim.goodput.toy_profiles import write_toy


@dataclass
class Rig:
    """A backend with two jobs, and everything it has said."""

    backend: Backend
    step_s: float
    """How long one look at it may take."""
    run_s: float
    """About how long a job runs on one GPU, without its start."""
    tolerance_s: float
    """How much of a run a checkpoint may miss, and times may be off."""
    falls_quiet: bool = True
    """A real machine never does: something may always happen."""
    patience_s: float = 0.0
    """How long to wait for what should come at once, on a busy machine."""
    close: Callable[[], None] = lambda: None
    said: list[ev.Event] = field(default_factory=list)
    now_s: float = 0.0

    def look(self, until_s: float | None) -> Sequence[ev.Event]:
        events = self.backend.next_events(until_s)
        self.said += events
        self.now_s = max([self.now_s, *(event.time_s for event in events)])
        return events

    def do(self, *commands: Command) -> None:
        self.said += self.backend.execute(commands, self.now_s)

    def wait(self, done: Callable[[], bool], at_most_s: float) -> None:
        """Looks on until something is the case."""
        end_s = self.now_s + at_most_s
        while not done():
            assert self.now_s < end_s + self.patience_s, f"not within {at_most_s} s; said: {self.said}"
            assert self.look(self.now_s + self.step_s)

    def idle(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        self.wait(lambda: self.now_s >= end_s, 2 * seconds)

    def wait_for_start(self, job: JobId, times: int = 1) -> None:
        self.wait(lambda: len(self.starts(job)) >= times, 10 * self.run_s)

    def wait_for_end(self, job: JobId) -> None:
        self.wait(lambda: bool(self.ends(job)), 10 * self.run_s)

    def starts(self, job: JobId) -> list[float]:
        return [event.time_s for event in self.said if isinstance(event, ev.JobStarted) and event.job == job]

    def ends(self, job: JobId) -> list[float]:
        return [event.time_s for event in self.said if isinstance(event, ev.JobEnded) and event.job == job]


def simulated(folder: Path) -> Rig:
    sims = [sim_job(name, work_s=60, restart_s=30, max=2) for name in ("a", "b")]
    return Rig(SimBackend(sims, make_nodes(2)), step_s=5, run_s=60, tolerance_s=1e-6)


def simulated_without_restart(folder: Path) -> Rig:
    sims = [sim_job(name, work_s=60, max=2) for name in ("a", "b")]
    return Rig(SimBackend(sims, make_nodes(2)), step_s=5, run_s=60, tolerance_s=1e-6)


def simulated_with_rare_checkpoints(folder: Path) -> Rig:
    """It saves every 10 s and not when asked."""
    sims = [sim_job(name, work_s=60, restart_s=30, max=2, checkpoint_interval_s=10.0) for name in ("a", "b")]
    return Rig(SimBackend(sims, make_nodes(2)), step_s=5, run_s=60, tolerance_s=10)


def goodput(folder: Path, restart_s: float = 30.0) -> Rig:
    request = GoodputRequest("toy", 1, 20)
    sims = [SimJob(sim.job, sim.work_s, sim.curve, request) for sim in (sim_job("a"), sim_job("b"))]
    backend = GoodputBackend.of(sims, make_nodes(2), write_toy(folder), 60.0, restart_s, "history")
    return Rig(backend, step_s=5, run_s=63, tolerance_s=2)


def goodput_without_restart(folder: Path) -> Rig:
    return goodput(folder, restart_s=0.0)


COUNT_TO_SIX = """
at=$BATUTA_CHECKPOINT_DIR/at-$BATUTA_REPLICA
n=$(cat $at 2>/dev/null || echo 0)
while [ $n -lt 6 ]; do
  sleep 0.1
  n=$((n + 1))
  echo $n >$at.new && mv $at.new $at
done
"""


def local(folder: Path) -> Rig:
    """Real processes."""
    if not sys.platform.startswith("linux"):
        pytest.skip("local mode is complete on Linux only")
    elastic = {"min_nodes": 1, "max_nodes": 2, "checkpoint": "none", "grace": "1s"}
    task = parse_task(json.dumps({"run": COUNT_TO_SIX, "elastic": elastic}))
    backend = LocalBackend(folder, make_nodes(2), lambda job: task)
    submitted = [ev.JobSubmitted(time.time(), make_job(name, max=2)) for name in ("a", "b")]
    return Rig(
        backend,
        step_s=0.1,
        run_s=0.6,
        tolerance_s=2.0,
        falls_quiet=False,
        patience_s=30.0,
        said=list(submitted),
        now_s=submitted[-1].time_s,
        close=lambda: backend.shutdown(keep_jobs=False, within_s=0.0),
    )


RIGS = (
    local,
    simulated,
    simulated_without_restart,
    simulated_with_rare_checkpoints,
    goodput,
    goodput_without_restart,
)


@pytest.fixture(params=RIGS, ids=lambda make: make.__name__.replace("_", "-"))
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A backend to which both jobs are submitted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: Rig = request.param(tmp_path / "backend")
    made.wait(lambda: sum(isinstance(event, ev.JobSubmitted) for event in made.said) == 2, 10 * made.run_s)
    yield made
    made.close()


def start(job: JobId, where: str) -> Command:
    return Start(job, at(where), Reason.ADMITTED)


def preempt(job: JobId) -> Command:
    return Preempt(job, Reason.PREEMPTED)


# ------------------------------------------------------------------------------------------------------- time


def test_times_never_go_backwards(rig: Rig) -> None:
    rig.do(start("a", "n0:0"), start("b", "n0:1"))
    rig.wait_for_start("a")
    rig.idle(2 * rig.step_s)
    rig.do(preempt("a"))
    rig.wait_for_end("b")
    rig.do(start("a", "n0:1"))
    rig.wait_for_end("a")
    times = [event.time_s for event in rig.said]
    assert times == sorted(times)


def test_nothing_comes_from_after_the_time_that_was_asked_for(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    while not rig.ends("a"):
        until_s = rig.now_s + rig.step_s / 3
        assert all(event.time_s <= until_s for event in rig.look(until_s))


def test_when_nothing_happens_time_passes_until_the_time_that_was_asked_for(rig: Rig) -> None:
    until_s = rig.now_s + rig.step_s
    assert rig.look(until_s)[-1] == ev.TimePassed(until_s)


def test_asking_for_a_time_that_is_past_does_not_turn_the_clock_back(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.wait_for_start("a")
    rig.idle(rig.step_s)
    before_s = rig.now_s
    assert all(event.time_s >= before_s for event in rig.look(before_s - rig.step_s))
    rig.wait_for_end("a")
    assert rig.ends("a")[0] - rig.starts("a")[0] == pytest.approx(rig.run_s, abs=rig.tolerance_s)


# ----------------------------------------------------------------------------------------------- start to end


def test_a_start_leads_to_a_started_job_and_that_to_an_end(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.wait_for_end("a")
    assert len(rig.starts("a")) == 1
    assert rig.ends("a")[0] - rig.starts("a")[0] == pytest.approx(rig.run_s, abs=rig.tolerance_s)


def test_without_a_start_a_job_neither_starts_nor_ends(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.wait_for_end("a")
    rig.idle(2 * rig.run_s)
    assert rig.starts("b") == rig.ends("b") == []


def test_two_jobs_beside_each_other_both_run(rig: Rig) -> None:
    rig.do(start("a", "n0:0"), start("b", "n0:1"))
    rig.wait_for_end("a")
    rig.wait_for_end("b")
    assert rig.starts("a")[0] == pytest.approx(rig.starts("b")[0], abs=rig.tolerance_s)
    assert rig.ends("a")[0] == pytest.approx(rig.ends("b")[0], abs=rig.tolerance_s)


def test_a_job_never_ends_twice_and_nothing_is_heard_of_it_afterwards(rig: Rig) -> None:
    rig.do(start("a", "n0:0"), start("b", "n0:1"))
    rig.wait_for_end("a")
    rig.wait_for_end("b")
    for _ in range(5):
        rig.look(rig.now_s + rig.run_s)
    for job in ("a", "b"):
        about = [type(event) for event in rig.said if getattr(event, "job", None) == job]
        assert about.count(ev.JobEnded) == 1
        assert about[-1] is ev.JobEnded


def test_a_resize_leads_to_a_started_job_again(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.wait_for_start("a")
    rig.idle(rig.step_s)
    rig.do(Resize("a", at("n0:01"), Reason.GREW))
    rig.wait_for_start("a", times=2)
    rig.wait_for_end("a")
    assert len(rig.ends("a")) == 1


# ------------------------------------------------------------------------------------------------- preemption


def test_preemption_stops_progress_and_a_later_start_goes_on_from_there(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.wait_for_start("a")
    rig.idle(rig.run_s / 2)
    ran_s = rig.now_s - rig.starts("a")[0]
    rig.do(preempt("a"))
    rig.idle(3 * rig.run_s)
    assert not rig.ends("a")
    assert len(rig.starts("a")) == 1
    rig.do(start("a", "n0:1"))
    rig.wait_for_end("a")
    assert len(rig.starts("a")) == 2
    ran_s += rig.ends("a")[0] - rig.starts("a")[1]
    assert ran_s == pytest.approx(rig.run_s, abs=rig.tolerance_s)


def test_a_start_that_is_taken_back_leads_to_nothing(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.do(preempt("a"))
    already = len(rig.starts("a"))
    rig.idle(2 * rig.run_s)
    assert len(rig.starts("a")) == already
    assert not rig.ends("a")


def test_gpus_of_a_preempted_job_can_be_given_away_in_the_same_breath(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.wait_for_start("a")
    rig.do(preempt("a"), start("b", "n0:0"))
    rig.wait_for_end("b")
    assert not rig.ends("a")


# ------------------------------------------------------------------------------------------------------- stop


def stop(job: JobId) -> Command:
    return Stop(job, Reason.CANCELLING)


def how_it_ended(rig: Rig, job: JobId) -> list[JobState]:
    return [event.state for event in rig.said if isinstance(event, ev.JobEnded) and event.job == job]


def test_a_stop_ends_a_running_job_for_good(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.wait_for_start("a")
    rig.do(stop("a"))
    rig.wait_for_end("a")
    rig.idle(2 * rig.run_s)
    assert how_it_ended(rig, "a") == [JobState.CANCELLED]
    about = [type(event) for event in rig.said if getattr(event, "job", None) == "a"]
    assert about[-1] is ev.JobEnded


def test_a_stop_ends_a_job_that_waits(rig: Rig) -> None:
    rig.do(stop("a"))
    rig.wait_for_end("a")
    assert how_it_ended(rig, "a") == [JobState.CANCELLED]
    assert not rig.starts("a")


def test_a_stop_ends_a_job_that_was_preempted(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.wait_for_start("a")
    rig.do(preempt("a"))
    rig.do(stop("a"))
    rig.wait_for_end("a")
    assert how_it_ended(rig, "a") == [JobState.CANCELLED]


def test_gpus_of_a_stopped_job_can_be_given_away_in_the_same_breath(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    rig.wait_for_start("a")
    rig.do(stop("a"), start("b", "n0:0"))
    rig.wait_for_end("b")
    assert how_it_ended(rig, "a") == [JobState.CANCELLED]
    assert how_it_ended(rig, "b") == [JobState.SUCCEEDED]


# ------------------------------------------------------------------------------------------------------ quiet


def test_while_a_job_runs_it_is_not_quiet(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    assert not rig.backend.quiet()
    rig.wait_for_start("a")
    assert not rig.backend.quiet()


def test_when_only_a_command_could_change_anything_it_is_quiet_and_has_nothing_to_say(rig: Rig) -> None:
    """Jobs that wait, also after a preemption, do nothing by themselves."""
    assert rig.backend.quiet() == rig.falls_quiet
    if rig.falls_quiet:
        assert list(rig.backend.next_events(None)) == []
    rig.do(start("a", "n0:0"))
    rig.idle(2 * rig.step_s)
    rig.do(preempt("a"))
    assert rig.backend.quiet() == rig.falls_quiet
    if rig.falls_quiet:
        assert list(rig.backend.next_events(None)) == []


def test_to_be_asked_whether_it_is_quiet_changes_nothing(rig: Rig) -> None:
    rig.do(start("a", "n0:0"))
    while not rig.ends("a"):
        assert rig.backend.quiet() == rig.backend.quiet()
        rig.look(rig.now_s + rig.step_s)
    assert rig.ends("a")[0] - rig.starts("a")[0] == pytest.approx(rig.run_s, abs=rig.tolerance_s)


def test_after_the_last_end_nothing_happens_any_more(rig: Rig) -> None:
    rig.do(start("a", "n0:0"), start("b", "n0:1"))
    rig.wait_for_end("a")
    rig.wait_for_end("b")
    if rig.falls_quiet:
        assert rig.backend.quiet()
        assert list(rig.backend.next_events(None)) == []
    else:
        assert rig.look(rig.now_s + rig.step_s)
