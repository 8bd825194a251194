"""What a job really does on simulated machines, worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from batuta.backends.sim.backend import SimBackend, SimOptions, alone_s
from batuta.backends.sim.failures import FailureKind, FailureRecord
from batuta.backends.sim.run import RunOptions, simulate
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.cluster import Node
from batuta.core.curve import SpeedCurve
from batuta.core.job import JobState
from batuta.core.plan import Command, Preempt, Resize, Start
from batuta.core.reason import Reason
from batuta.engine.profile import profile_for
from batuta.spec.task import parse_task
from batuta.spec.task_job import task_to_job
from tests.support.sims import eventful_night, sim_job
from tests.support.worlds import at, make_nodes, scaling

Told = tuple[str, float, str]
LOST, RETURNED = FailureKind.NODE_LOST, FailureKind.NODE_RETURNED
SLOW, NORMAL = FailureKind.SLOW, FailureKind.NORMAL


def start(job: str, where: str) -> Command:
    return Start(job, at(where), Reason.ADMITTED)


def resize(job: str, where: str) -> Command:
    return Resize(job, at(where), Reason.GREW)


def preempt(job: str) -> Command:
    return Preempt(job, Reason.PREEMPTED)


def told(events: list[ev.Event]) -> list[Told]:
    """What happened, when, to whom."""
    return [(type(e).__name__, e.time_s, str(getattr(e, "job", getattr(e, "node", "")))) for e in events]


def play(backend: SimBackend, *script: tuple[float, Command]) -> list[ev.Event]:
    """Carries out commands at their times, and returns all that happens except submissions and mere time."""
    found: list[ev.Event] = []
    for time_s, command in script:
        while backend.now_s < time_s or not found:
            found += backend.next_events(time_s) or [ev.TimePassed(time_s)]
        found += backend.execute([command], time_s)
    while events := backend.next_events(None):
        found += events
    return [event for event in found if not isinstance(event, ev.JobSubmitted | ev.TimePassed)]


def machine(
    *jobs: SimJob, nodes: list[Node] | None = None, failures: tuple[FailureRecord, ...] = (), **options: Any
) -> SimBackend:
    return SimBackend(jobs, nodes or make_nodes(4), SimOptions(**options), failures)


def end_s(events: list[ev.Event], job: str = "a") -> float:
    ends = [event.time_s for event in events if isinstance(event, ev.JobEnded) and event.job == job]
    assert len(ends) == 1
    return ends[0]


def falls_back_to_s(events: list[ev.Event]) -> list[float]:
    """What the scheduler was told to be left, each time a job lost work."""
    return [event.remaining_s for event in events if isinstance(event, ev.JobProgressed)]


# -------------------------------------------------------------------------------------------- a job by itself


def test_a_job_alone_takes_its_restart_and_its_work_over_its_speed() -> None:
    events = play(machine(sim_job("a", 2, restart_s=30)), (0, start("a", "n0:01")))
    assert told(events) == [("JobStarted", 30, "a"), ("JobEnded", 80, "a")]


def test_the_truth_decides_and_not_what_the_scheduler_believes() -> None:
    job = sim_job("a", 2, truth=(300.0, SpeedCurve((0.0, 1.0, 1.5))))
    assert end_s(play(machine(job), (0, start("a", "n0:01")))) == 200


def test_one_restart_time_may_be_set_for_all() -> None:
    script = ((0.0, start("a", "n0:0")), (10.0, resize("a", "n0:01")))
    job = sim_job("a", restart_s=7, max=2)
    # 10 s and 50 s in vain; then 100 s of work left for two GPUs.
    assert end_s(play(machine(job, restart_s=50), *script)) == 10 + 50 + 50
    assert end_s(play(machine(job, restart_s=0), *script)) == 10 + 45


def test_a_resize_keeps_progress_and_its_old_end_never_comes() -> None:
    job = sim_job("a", max=4, restart_s=10)
    events = play(machine(job), (0, start("a", "n0:0")), (60, resize("a", "n0:0123")))
    # 50 of 100 s are done at 60; from 70 on four GPUs do the rest.
    assert told(events) == [("JobStarted", 10, "a"), ("JobStarted", 70, "a"), ("JobEnded", 82.5, "a")]


def test_a_job_without_work_ends_when_it_starts() -> None:
    events = play(machine(sim_job("a", work_s=0.0)), (0, start("a", "n0:0")))
    assert told(events) == [("JobStarted", 0, "a"), ("JobEnded", 0, "a")]


def test_a_size_without_speed_holds_its_gpus_for_ever() -> None:
    backend = machine(sim_job("a", truth=(100.0, SpeedCurve((0.0, 0.0)))))
    assert told(play(backend, (0, start("a", "n0:0")))) == [("JobStarted", 0, "a")]
    assert backend.quiet()
    assert backend.waiting() == 1


def test_gpu_types_have_their_speed() -> None:
    nodes = [Node("old", 1, gpu_type="k80"), Node("new", 1, gpu_type="a100")]
    job = sim_job("a", gpu_types=(("k80", 0.5), ("a100", 4.0)))
    assert end_s(play(machine(job, nodes=nodes), (0, start("a", "old:0")))) == 200
    assert end_s(play(machine(job, nodes=nodes), (0, start("a", "new:0")))) == 25


@pytest.mark.parametrize(("where", "seconds"), [("n0:01", 50), ("n0:0 n1:0", 100), ("n0:0 m0:0", 200)])
def test_a_job_that_spans_nodes_or_racks_is_slower(where: str, seconds: float) -> None:
    nodes = [*make_nodes(2, 2, rack="r0"), Node("m0", 2, rack="r1")]
    job = sim_job("a", 2, curve=scaling(2, across_nodes=0.5, across_racks=0.5))
    assert end_s(play(machine(job, nodes=nodes), (0, start("a", where)))) == seconds


# -------------------------------------------------------------------------------------------- several of them


def test_two_elastic_jobs_share() -> None:
    """The first has all 4 GPUs for 50 s, then both have 2; the second has all of them from 150 on."""
    jobs = [sim_job("a", work_s=400, max=4), sim_job("b", work_s=400, max=4, submit_s=50)]
    run = simulate(machine(*jobs), profile_for("elastic-fifo"), RunOptions("two", "1x4"))
    assert {job.id: job.end_s for job in run.jobs} == {"a": 150, "b": 200}


def test_two_jobs_on_the_same_node_do_not_slow_each_other() -> None:
    backend = machine(sim_job("a"), sim_job("b", 2))
    events = play(backend, (0, start("a", "n0:0")), (0, start("b", "n0:12")))
    assert (end_s(events, "a"), end_s(events, "b")) == (100, 50)


def test_jobs_arrive_in_the_order_of_the_workload_and_after_those_that_end() -> None:
    jobs = [sim_job("z"), sim_job("c", submit_s=100), sim_job("b", submit_s=100), sim_job("d", submit_s=100)]
    backend = machine(*jobs, failures=(FailureRecord(100.0, LOST, "n0"),))
    assert told(backend.next_events(None)) == [("JobSubmitted", 0, str(jobs[0].job))]
    backend.execute([start("z", "n0:0")], 0.0)
    events = backend.next_events(None)
    assert [type(event).__name__ for event in events] == ["JobEnded", *["JobSubmitted"] * 3, "NodeLost"]
    assert [event.job.id for event in events if isinstance(event, ev.JobSubmitted)] == ["c", "b", "d"]


# ------------------------------------------------------------------------------------------------- preemption


def test_preemption_keeps_progress() -> None:
    script = ((0.0, start("a", "n0:0")), (60.0, preempt("a")), (200.0, start("a", "n0:3")))
    backend = machine(sim_job("a", restart_s=10))
    assert end_s(play(backend, *script)) == 200 + 10 + 50
    assert backend.lost_gpu_s == {"a": 20}


def test_a_job_that_is_preempted_in_its_restart_has_lost_only_that_time() -> None:
    script = ((0.0, start("a", "n0:01")), (6.0, preempt("a")), (100.0, start("a", "n0:01")))
    backend = machine(sim_job("a", 2, restart_s=10))
    assert told(play(backend, *script)) == [("JobStarted", 110, "a"), ("JobEnded", 160, "a")]
    assert backend.lost_gpu_s == {"a": 2 * (6 + 10)}


def test_a_job_that_does_not_save_on_demand_goes_back_to_its_last_checkpoint() -> None:
    """Started at 0, up at 10, saved every 20 s: at 75 the last one is of 60, when 50 s were done."""
    script = ((0.0, start("a", "n0:0")), (75.0, preempt("a")), (100.0, start("a", "n0:0")))
    backend = machine(sim_job("a", restart_s=10, checkpoint_interval_s=20.0))
    events = play(backend, *script)
    assert falls_back_to_s(events) == [50]
    assert end_s(events) == 160
    assert backend.lost_gpu_s == {"a": 10 + 15 + 10}


def test_an_elastic_job_that_never_saves_begins_anew_after_each_resize() -> None:
    script = ((0.0, start("a", "n0:01")), (60.0, resize("a", "n0:0")))
    saves, never = (machine(sim_job("a", 2, min=1, work_s=200, restart_s=10, restartable=own)) for own in (True, False))
    assert end_s(play(saves, *script)) == 170  # 100 of 200 s are done when it goes on with one GPU at 70
    assert end_s(play(never, *script)) == 270
    assert never.lost_gpu_s == {"a": 2 * 10 + 2 * 50 + 10}


# --------------------------------------------------------------------------------------------------- failures


def test_a_node_failure_loses_the_work_since_the_last_checkpoint_and_the_scheduler_is_told() -> None:
    job = sim_job("a", 2, work_s=10_000)
    backend = machine(job, failures=(FailureRecord(2000.0, LOST, "n0"),), checkpoint_s=1800.0)
    events = play(backend, (0, start("a", "n0:01")))
    assert told(events)[1:] == [("NodeLost", 2000, "n0"), ("JobProgressed", 2000, "a")]
    assert falls_back_to_s(events) == [10_000 - 2 * 1800]
    assert backend.lost_gpu_s == {"a": 2 * 200}


def test_the_scheduler_is_told_in_its_own_terms() -> None:
    """It believes that the job is half as long as it is: so half of what is left."""
    job = sim_job("a", work_s=5000, truth=(10_000.0, scaling(1)))
    backend = machine(job, failures=(FailureRecord(2000.0, LOST, "n0"),))
    assert falls_back_to_s(play(backend, (0, start("a", "n0:0")))) == [(10_000 - 1800) / 2]


def test_before_its_first_checkpoint_a_job_begins_anew() -> None:
    backend = machine(sim_job("a", restart_s=10), failures=(FailureRecord(90.0, LOST, "n0"),), nodes=make_nodes(1, 1))
    events = play(backend, (0, start("a", "n0:0")), (95, start("a", "n1:0")))
    assert falls_back_to_s(events) == [100]
    assert end_s(events) == 95 + 10 + 100
    assert backend.lost_gpu_s == {"a": 90 + 10}


def test_what_was_done_before_an_earlier_stop_is_not_lost_in_a_crash() -> None:
    """Preemption saves: 50 s are done at 60. It runs again from 100, and crashes before a checkpoint."""
    backend = machine(sim_job("a", restart_s=10), failures=(FailureRecord(130.0, LOST, "n0"),))
    events = play(backend, (0, start("a", "n0:0")), (60, preempt("a")), (100, start("a", "n0:0")))
    assert falls_back_to_s(events) == [50]


def test_a_failure_in_the_restart_loses_no_work() -> None:
    backend = machine(sim_job("a", restart_s=50), failures=(FailureRecord(20.0, LOST, "n0"),))
    events = play(backend, (0, start("a", "n0:0")))
    assert told(events) == [("NodeLost", 20, "n0"), ("JobProgressed", 20, "a")]
    assert falls_back_to_s(events) == [100]


def test_a_job_that_ends_at_the_moment_of_a_failure_has_ended() -> None:
    backend = machine(sim_job("a"), failures=(FailureRecord(100.0, LOST, "n0"),))
    events = play(backend, (0, start("a", "n0:0")))
    assert told(events) == [("JobStarted", 0, "a"), ("JobEnded", 100, "a"), ("NodeLost", 100, "n0")]


def test_an_ill_gpu_stops_the_whole_gang_on_it_and_nobody_else() -> None:
    jobs = [sim_job("a", 2), sim_job("b")]
    ill = FailureRecord(30.0, FailureKind.GPU_FAILED, "n1", gpu=1)
    backend = machine(*jobs, nodes=make_nodes(2, 2), failures=(ill,))
    events = play(backend, (0, start("a", "n0:0 n1:1")), (0, start("b", "n1:0")))
    assert ("JobProgressed", 30, "a") in told(events)
    assert end_s(events, "b") == 100
    assert backend.waiting() == 1


def test_what_is_repaired_is_told() -> None:
    records = (
        FailureRecord(5.0, LOST, "n0"),
        FailureRecord(6.0, RETURNED, "n0"),
        FailureRecord(7.0, FailureKind.GPU_FAILED, "n0", gpu=2),
        FailureRecord(8.0, FailureKind.GPU_REPAIRED, "n0", gpu=2),
    )
    events = play(machine(sim_job("a", submit_s=9), failures=records))
    assert events == [
        *(ev.NodeLost(5.0, "n0"), ev.NodeReturned(6.0, "n0")),
        *(ev.GpuFailed(7.0, "n0", 2), ev.GpuRepaired(8.0, "n0", 2)),
    ]


# ------------------------------------------------------------------------------------------------- stragglers


def test_a_straggler_slows_its_jobs_until_it_is_normal_again() -> None:
    slow, normal = FailureRecord(50.0, SLOW, "n0", factor=0.5), FailureRecord(100.0, NORMAL, "n0")
    assert end_s(play(machine(sim_job("a"), failures=(slow,)), (0, start("a", "n0:0")))) == 150
    assert end_s(play(machine(sim_job("a"), failures=(slow, normal)), (0, start("a", "n0:0")))) == 125


def test_a_job_that_starts_on_a_slow_node_is_slow_from_the_beginning() -> None:
    slow = FailureRecord(0.0, SLOW, "n0", factor=0.25)
    assert end_s(play(machine(sim_job("a"), failures=(slow,)), (0, start("a", "n0:0")))) == 400


def test_a_gang_is_as_slow_as_its_slowest_node_and_others_are_not() -> None:
    slow = tuple(FailureRecord(0.0, SLOW, node, factor=f) for node, f in (("n0", 0.5), ("n1", 0.2)))
    backend = machine(sim_job("a", 2), sim_job("b"), nodes=make_nodes(1, 1, 1), failures=slow)
    events = play(backend, (0, start("a", "n0:0 n1:0")), (0, start("b", "n2:0")))
    assert end_s(events, "a") == pytest.approx(250)
    assert end_s(events, "b") == 100


def test_a_crash_goes_back_to_what_was_saved_at_the_pace_of_that_time() -> None:
    """Full pace to 900, half to the checkpoint at 1800: 1350 s are saved, whatever the pace after it."""
    records = (
        FailureRecord(900.0, SLOW, "n0", factor=0.5),
        FailureRecord(1900.0, NORMAL, "n0"),
        FailureRecord(2000.0, LOST, "n0"),
    )
    backend = machine(sim_job("a", work_s=10_000), failures=records)
    assert falls_back_to_s(play(backend, (0, start("a", "n0:0")))) == [10_000 - 1350]
    assert backend.lost_gpu_s == {"a": 200}


# --------------------------------------------------------------------------------------------- alone, and all


def test_alone_a_job_takes_the_best_size_within_its_share_or_slices_of_the_smallest() -> None:
    job = sim_job("a", 2, min=2, max=4, sizes=(2, 4), curve=SpeedCurve((0.0, 1.0, 2.0, 3.0, 2.5)), restart_s=7)
    assert alone_s(job, 4.0, None) == 100 / 2.5 + 7
    assert alone_s(job, 3.9, None) == 100 / 2 + 7
    assert alone_s(job, 1.0, 0.0) == 100 / 1
    assert alone_s(sim_job("b", truth=(1.0, SpeedCurve((0.0, 0.0)))), 1.0, None) == math.inf


@pytest.mark.parametrize("seed", range(3))
def test_after_an_eventful_night_every_number_is_finite(seed: int) -> None:
    run = simulate(eventful_night(seed), profile_for("elastic-srjf"), RunOptions("night", "16 GPUs"))
    assert run.complete
    for job in run.jobs:
        numbers = (job.jct_s, job.wait_s, job.gpu_s, job.lost_gpu_s, job.fairness)
        assert all(math.isfinite(number) and number >= 0 for number in numbers), job
        assert job.lost_gpu_s <= job.gpu_s + 1e-6


def limited(work_s: float) -> SimBackend:
    return SimBackend([sim_job("a", work_s=work_s, time_limit_s=100.0)], make_nodes(1))


def end_of(events: list[ev.Event]) -> ev.JobEnded:
    (found,) = [event for event in events if isinstance(event, ev.JobEnded)]
    return found


def test_a_job_that_has_run_for_as_long_as_it_may_fails_with_a_typed_reason():
    found = end_of(play(limited(1000.0), (0.0, start("a", "n0:0"))))
    assert (found.time_s, found.state) == (100.0, JobState.FAILED)
    assert (found.reason, found.evidence) == (Reason.TIME_LIMIT, (("limit_s", 100.0),))


def test_a_limit_counts_running_and_not_waiting():
    script = ((0.0, start("a", "n0:0")), (40.0, preempt("a")), (500.0, start("a", "n0:0")))
    assert end_of(play(limited(1000.0), *script)).time_s == 560.0


def test_a_job_that_is_done_within_its_limit_succeeds():
    found = end_of(play(limited(100.0), (0.0, start("a", "n0:0"))))
    assert (found.time_s, found.state, found.reason) == (100.0, JobState.SUCCEEDED, None)


def test_the_limit_of_a_task_file_holds_in_the_simulator():
    text = "run: x\nresources: {accelerators: 1, labels: {max-run-duration-seconds: '90'}}"
    job = task_to_job(parse_task(text), "a", 0.0, nodes=make_nodes(1))
    backend = SimBackend([SimJob(replace(job, restart_s=0.0), 1e6, job.curve)], make_nodes(1))
    found = end_of(play(backend, (0.0, start("a", "n0:0"))))
    assert (found.time_s, found.reason) == (90.0, Reason.TIME_LIMIT)
