"""What a simulation finds out: lives of jobs, the cluster over time, sums; and the story of one job."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from batuta.backends.sim.backend import SimBackend
from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.failures import FailureKind, FailureRecord
from batuta.backends.sim.recorder import DecisionHistory
from batuta.backends.sim.result import RunResult, Segment, summarise
from batuta.backends.sim.run import RunOptions, simulate
from batuta.backends.sim.workload import SimJob, Workload, resample
from batuta.core.cluster import Node
from batuta.core.job import JobState
from batuta.core.plan import Plan
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.engine.profile import profile_for
from tests.support.sims import eventful_night, sim_job
from tests.support.worlds import make_nodes

SETTING = RunOptions("by hand", "small")


def run_of(
    jobs: Sequence[SimJob],
    nodes: Sequence[Node],
    policy: str = "fifo",
    failures: Sequence[FailureRecord] = (),
    cadence: Cadence = Cadence(),  # noqa: B008  (frozen)
) -> RunResult:
    return simulate(SimBackend(jobs, nodes, failures=failures), profile_for(policy), SETTING, cadence)


# ---------------------------------------------------------------------------------------------- lives of jobs


def test_the_life_of_a_job_that_waits_and_runs() -> None:
    run = run_of([sim_job("a", 2), sim_job("b", 2, submit_s=10, restart_s=5)], make_nodes(2))
    b = run.jobs[1]
    assert (b.id, b.state, b.size) == ("b", JobState.SUCCEEDED, 2)
    assert (b.submit_s, b.first_start_s, b.end_s) == (10, 50, 105)
    assert (b.wait_s, b.jct_s, b.gpu_s, b.lost_gpu_s) == (40, 95, 110, 10)
    assert (b.restarts, b.migrations, b.preemptions) == (0, 0, 0)


def test_jobs_are_listed_in_submit_order_with_those_that_never_ran() -> None:
    run = run_of([sim_job("z"), sim_job("huge", 9, submit_s=1), sim_job("a", submit_s=2)], make_nodes(2))
    assert [job.id for job in run.jobs] == ["z", "huge", "a"]
    huge = run.jobs[1]
    assert huge.state is JobState.PENDING
    assert math.isnan(huge.first_start_s)
    assert math.isnan(huge.end_s)
    assert math.isnan(huge.fairness)
    assert huge.gpu_s == 0
    assert run.complete
    assert run.notes == ("1 jobs were never started",)


def test_preemptions_are_counted_per_job() -> None:
    jobs = [
        sim_job("long", work_s=1000),
        *(sim_job(f"s{k}", submit_s=100 + 50 * k, work_s=10) for k in range(3)),
    ]
    run = run_of(jobs, make_nodes(1), "srjf")
    assert {job.id: (job.preemptions, job.restarts) for job in run.jobs if job.preemptions} == {"long": (3, 3)}
    assert run.jobs[0].end_s == 1030


def test_finish_time_fairness_is_the_jct_over_that_of_a_fair_share() -> None:
    """Two jobs that need both GPUs, one after the other, 100 s each.

    a: 200 GPU-seconds over 200 job-seconds is a share of 1 GPU, with which it would take 200 s.
    b: 400 over 300 is a share of 4/3 GPUs: 150 s; but it took 200.
    """
    run = run_of([sim_job("a", 2, work_s=200), sim_job("b", 2, work_s=200)], make_nodes(2))
    assert [job.fairness for job in run.jobs] == pytest.approx([100 / 200, 200 / 150])
    fairness = summarise(run)["finish_time_fairness"]
    assert fairness == {"mean": pytest.approx(11 / 12), "max": pytest.approx(4 / 3), "above_one": 0.5}


def test_a_job_alone_is_treated_fairly() -> None:
    run = run_of([sim_job("a", 2, restart_s=30)], make_nodes(2))
    assert run.jobs[0].fairness == pytest.approx(1)


# ------------------------------------------------------------------------------------------ cluster over time


def by_hand() -> RunResult:
    """Of 4 and 2 GPUs, a has three from 0 to 100 and b both of the second node from 50 to 150."""
    return run_of([sim_job("a", 3, work_s=300), sim_job("b", 2, work_s=200, submit_s=50)], make_nodes(4, 2))


def test_the_timeline_is_a_step_function_of_what_is_in_use() -> None:
    line = by_hand().timeline
    assert line.time_s.tolist() == [0, 50, 100, 150]
    assert line.used_gpus.tolist() == [3, 5, 2, 0]
    assert line.capacity_gpus.tolist() == [6, 6, 6, 6]
    assert line.running.tolist() == [1, 2, 1, 0]
    assert line.pending.tolist() == [0, 0, 0, 0]
    # Of 3 free GPUs one lies beside a; then it is the only free one; then all free ones are on an empty node.
    assert line.fragmentation.tolist() == pytest.approx([1 / 3, 1, 0, 0])


def test_utilisation_and_fragmentation_are_means_over_time() -> None:
    told = summarise(by_hand())
    assert told["gpu_utilisation"] == pytest.approx((3 + 5 + 2) * 50 / (6 * 150))
    assert told["fragmentation"] == pytest.approx((1 / 3 + 1) * 50 / 150)
    assert told["makespan_s"] == 150


def test_a_lost_node_takes_its_capacity_with_it() -> None:
    failures = [
        FailureRecord(20.0, FailureKind.NODE_LOST, "n1"),
        FailureRecord(60.0, FailureKind.NODE_RETURNED, "n1"),
    ]
    line = run_of([sim_job("a")], make_nodes(1, 3), failures=failures).timeline
    assert line.time_s.tolist() == [0, 20, 60, 100]
    assert line.capacity_gpus.tolist() == [4, 1, 4, 4]


def test_between_decisions_the_timeline_still_sees_what_happens() -> None:
    """The job ends at 130, though the next round would only be at 180."""
    line = run_of([sim_job("a", submit_s=10, work_s=70)], make_nodes(1), cadence=Cadence(round_s=60)).timeline
    assert line.time_s.tolist() == [10, 60, 120, 130]
    assert line.used_gpus.tolist() == [0, 1, 1, 0]
    assert line.pending.tolist() == [1, 0, 0, 0]


# --------------------------------------------------------------------------------------------------- segments


def test_segments_say_who_had_which_gpus() -> None:
    assert by_hand().segments == (Segment("a", 0, 100, 3, ("n0",)), Segment("b", 50, 150, 2, ("n1",)))


@pytest.mark.parametrize("cadence", [Cadence(), Cadence(round_s=90)])
@pytest.mark.parametrize("policy", ["elastic-fifo", "elastic-srjf", "afs-l", "tiresias-replay"])
def test_segments_sum_to_the_gpu_seconds_that_were_held(policy: str, cadence: Cadence) -> None:
    run = simulate(eventful_night(4), profile_for(policy), SETTING, cadence)
    held: dict[str, float] = defaultdict(float)
    for segment in run.segments:
        held[segment.job] += (segment.end_s - segment.start_s) * segment.gpus
    assert held == pytest.approx({job.id: job.gpu_s for job in run.jobs})


def test_a_job_that_loses_a_gpu_holds_the_others_until_the_next_decision() -> None:
    failures = [
        FailureRecord(30.0, FailureKind.GPU_FAILED, "n0", gpu=1),
        FailureRecord(90.0, FailureKind.GPU_REPAIRED, "n0", gpu=1),
    ]
    run = run_of([sim_job("a", 2)], make_nodes(2), failures=failures, cadence=Cadence(round_s=60))
    assert [(s.start_s, s.end_s, s.gpus) for s in run.segments] == [(0, 30, 2), (30, 60, 1), (120, 170, 2)]
    assert run.jobs[0].gpu_s == 2 * 30 + 30 + 2 * 50


def test_segments_of_a_job_do_not_overlap() -> None:
    run = simulate(eventful_night(5), profile_for("elastic-srjf"), SETTING)
    last_s: dict[str, float] = {}
    for segment in sorted(run.segments, key=lambda s: (s.job, s.start_s)):
        assert last_s.get(segment.job, 0.0) <= segment.start_s < segment.end_s
        last_s[segment.job] = segment.end_s


def test_segments_are_kept_only_when_asked_and_nothing_else_changes() -> None:
    with_segments = simulate(eventful_night(6), profile_for("elastic-srjf"), SETTING)
    without = simulate(
        eventful_night(6), profile_for("elastic-srjf"), RunOptions("by hand", "small", keep_segments=False)
    )
    assert with_segments.segments
    assert not without.segments
    assert repr(without.jobs) == repr(with_segments.jobs)


# ------------------------------------------------------------------------------------------------------- sums

KEYS = (
    *("policy", "workload", "cluster", "seed", "gpus", "jobs", "finished", "complete", "jct_s", "makespan_s"),
    *("wait_s", "finish_time_fairness", "gpu_utilisation", "fragmentation", "restarts", "migrations"),
    *("preemptions", "lost_gpu_s", "decide_ms", "cpu_s", "events", "notes"),
)


def test_the_summary_has_these_keys_in_this_order_and_is_json() -> None:
    told = summarise(by_hand())
    assert tuple(told) == KEYS
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["jct_s"] == {"mean": 100, "p50": 100, "p90": 100, "p99": 100, "max": 100}
    assert (told["policy"], told["workload"], told["cluster"], told["gpus"]) == (
        "fifo",
        "by hand",
        "small",
        6,
    )


def test_the_summary_of_nothing_is_zeros_and_no_nan() -> None:
    for run in (run_of([], make_nodes(2)), run_of([sim_job("huge", 9)], make_nodes(2))):
        told = json.loads(json.dumps(summarise(run), allow_nan=False))
        assert told["finished"] == 0
        assert told["jct_s"]["mean"] == told["makespan_s"] == 0


def test_cycles_and_their_steps_are_timed() -> None:
    run = by_hand()
    assert len(run.decide_ms) == 3, "at 0, 50 and 100; at 150 there is nobody left to decide on"
    assert set(run.step_ms) == {"admit", "allocate", "place", "weigh", "explain"}
    assert run.events == 2 * len(("submitted", "planned", "started", "ended"))


# ------------------------------------------------------------------------------------------------ interrupted


def test_an_interrupted_run_says_so_and_keeps_what_was_done() -> None:
    def watch(world: World, plan: Plan) -> None:
        if plan.time_s == 100:
            raise KeyboardInterrupt

    jobs = [sim_job("a"), sim_job("b", 2, submit_s=20, work_s=600), sim_job("c", submit_s=500)]
    run = simulate(SimBackend(jobs, make_nodes(3)), profile_for("fifo"), SETTING, watch=watch)
    assert not run.complete
    assert run.notes == ()
    assert [(job.id, job.state) for job in run.jobs] == [("a", JobState.SUCCEEDED), ("b", JobState.RUNNING)]
    assert run.jobs[1].gpu_s == 2 * 80
    assert run.segments == (Segment("a", 0, 100, 1, ("n0",)), Segment("b", 20, 100, 2, ("n0",)))
    assert run.timeline.time_s.tolist() == [0, 20, 100]
    told = summarise(run)
    assert (told["complete"], told["finished"], told["jobs"]) == (False, 1, 2)


# ------------------------------------------------------------------------------------------------- resampling


def workload(jobs: int = 30) -> Workload:
    sims = (sim_job(f"j{k:02}", submit_s=10.0 * k, work_s=100.0 + k, sequence=k) for k in range(jobs))
    return Workload("drawn", "test", tuple(sims))


def test_seed_0_is_the_workload_itself() -> None:
    whole = workload()
    assert resample(whole, 0) is whole
    empty = workload(0)
    assert resample(empty, 3) is empty


def test_the_same_seed_draws_the_same_jobs_and_another_seed_others() -> None:
    whole = workload()
    assert resample(whole, 1) == resample(whole, 1)
    assert resample(whole, 1) != resample(whole, 2)


def test_drawing_keeps_the_arrivals_and_repeats_jobs() -> None:
    whole, drawn = workload(), resample(workload(), 7)

    def arrivals(of: Workload) -> list[tuple[str, float, int]]:
        return [(sim.job.id, sim.job.submit_s, sim.job.sequence) for sim in of.jobs]

    assert arrivals(drawn) == arrivals(whole)
    works = Counter(sim.work_s for sim in drawn.jobs)
    assert set(works) < {sim.work_s for sim in whole.jobs}
    assert max(works.values()) > 1
    assert all(sim.work_s == sim.job.work_s for sim in drawn.jobs)


def test_only_the_first_jobs_when_asked() -> None:
    runs = [run_experiment(Experiment("fifo", "sample", "8x4", limit=limit)) for limit in (2, None)]
    assert [job.id for job in runs[0].jobs] == [job.id for job in runs[1].jobs[:2]]
    assert len(runs[1].jobs) == 120


# ------------------------------------------------------------------------------------------- story of one job


def test_the_story_of_a_job_has_a_chapter_for_every_change() -> None:
    story = DecisionHistory("b")
    jobs = [sim_job("a", work_s=300), sim_job("b", work_s=500, max=2), sim_job("c", submit_s=50, work_s=10)]
    simulate(SimBackend(jobs, make_nodes(1)), profile_for("srjf"), SETTING, watch=story.watch)
    chapters = [(c.time_s, c.decision.gpus, c.decision.reason, c.command) for c in story.changes]
    assert chapters == [
        (0, 0, Reason.WAITING_FOR_GPUS, ""),
        (310, 1, Reason.AT_ASKED_SIZE, "start: starts with 1 GPU"),
    ]


def test_the_story_tells_of_growing_and_of_being_preempted() -> None:
    story = DecisionHistory("a")
    jobs = [sim_job("a", work_s=1000, max=2), sim_job("b", 2, submit_s=100, work_s=20)]
    simulate(SimBackend(jobs, make_nodes(2)), profile_for("elastic-srjf"), SETTING, watch=story.watch)
    assert [(c.time_s, c.decision.gpus, c.command.partition(":")[0]) for c in story.changes] == [
        (0, 2, "start"),
        (100, 0, "preempt"),
        (110, 2, "start"),
    ]


def test_the_story_of_a_stranger_is_empty() -> None:
    story = DecisionHistory("nobody")
    simulate(SimBackend([sim_job("a")], make_nodes(1)), profile_for("fifo"), SETTING, watch=story.watch)
    assert not story.changes
