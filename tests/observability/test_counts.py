"""What the engine's watcher counts: commands, waits, GPU time, work that was lost, reasons."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.api.cluster_metrics import count_reasons, node_metrics
from batuta.api.dependencies import NoNodeFacts
from batuta.api.scheduler_counters import CARRY_OUT, SchedulerCounters
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.decide import STEPS, decide
from batuta.core.job import Job, JobState
from batuta.core.plan import Command, Decisions, Migrate, Plan, Preempt, Resize, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.world import World
from tests.support.fixed_policy import rules_that_give
from tests.support.snapshots import snapshot_of
from tests.support.worlds import at, make_job, make_nodes, make_world


class Watched:
    """A World and the watch that sees all that happens to it."""

    def __init__(self, *jobs: Job, nodes: tuple[int, ...] = (4, 4)) -> None:
        self.world = World()
        self.watch = SchedulerCounters()
        self.tell(*(ev.NodeAdded(0.0, node) for node in make_nodes(*nodes)))
        self.tell(*(ev.JobSubmitted(0.0, job) for job in jobs))

    def tell(self, *events: ev.Event) -> None:
        for event in events:
            apply(self.world, event)
            self.watch.saw(self.world, event)
        self.watch.postponed(self.world)

    def plan(self, now_s: float, *commands: Command) -> None:
        self.tell(ev.Planned(now_s, Plan(self.world.version, now_s, "x", commands, (), no_decisions())))

    def run(self, job: str, where: str, now_s: float) -> None:
        self.plan(now_s, Start(job, at(where), Reason.ADMITTED))
        self.tell(ev.JobStarted(now_s, job))

    def lost(self) -> dict[str, float]:
        return {cause: found for cause, found in self.watch.schedule.lost_gpu_s.items() if found}


def test_waits_and_lengths_are_measured_from_the_submit():
    # given a job that starts after 40 s, is preempted, starts again and ends after 100 s
    seen = Watched(make_job("a"))
    seen.run("a", "n0:0", 40.0)
    seen.plan(50.0, Preempt("a", Reason.PREEMPTED))
    seen.run("a", "n0:0", 60.0)
    seen.tell(ev.JobEnded(100.0, "a", JobState.SUCCEEDED), ev.JobEnded(101.0, "a", JobState.FAILED))
    # then it has waited once, and ended once
    counts = seen.watch.schedule
    assert (sum(counts.waits.buckets), counts.waits.total_s) == (1, 40.0)
    assert (sum(counts.lengths.buckets), counts.lengths.total_s) == (1, 100.0)
    assert counts.ended == Counter(SUCCEEDED=1)
    assert counts.commands == {("start", "ADMITTED"): 2, ("preempt", "PREEMPTED"): 1}
    assert counts.admitted == Counter(default=2)


def test_a_job_that_saves_when_asked_loses_nothing_by_a_plan_and_all_by_a_crash():
    seen = Watched(make_job("a", 2))
    seen.run("a", "n0:01", 0.0)
    seen.plan(100.0, Preempt("a", Reason.PREEMPTED))
    assert seen.lost() == {}
    seen.run("a", "n0:01", 110.0)
    seen.tell(ev.JobInterrupted(140.0, "a"))
    assert seen.lost() == {"interrupted": 60.0}


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (Preempt("a", Reason.PREEMPTED), "preempted"),
        (Resize("a", at("n0:0"), Reason.SHRANK), "resized"),
        (Migrate("a", at("n1:01"), Reason.CONSOLIDATED), "migrated"),
        (Resize("a", at("n0:0"), Reason.REPAIRED), "interrupted"),
    ],
)
def test_a_job_that_saves_at_times_loses_what_came_after(command: Command, cause: str):
    # given two GPUs, a checkpoint every 60 s, and a run of 100 s
    seen = Watched(make_job("a", 2, min=1, max=4, checkpoint_interval_s=60.0))
    seen.run("a", "n0:01", 0.0)
    seen.plan(100.0, command)
    assert seen.lost() == {cause: 80.0}


@pytest.mark.parametrize(("saved_s", "lost"), [(None, {"resized": 200.0}), (60.0, {"resized": 80.0}), (100.5, {})])
def test_a_job_that_has_to_be_seen_to_save_loses_what_came_after_its_last_checkpoint(saved_s, lost):
    # given two GPUs, a run of 100 s, and a checkpoint before the plan, after it, or none
    seen = Watched(make_job("a", 2, min=1, max=4, restartable=False))
    seen.run("a", "n0:01", 0.0)
    seen.plan(100.0, Resize("a", at("n0:0"), Reason.SHRANK))
    assert seen.lost() == {}  # it was asked to save, and may still do so
    if saved_s is not None:
        seen.tell(ev.JobCheckpointed(101.0, "a", saved_s))
    seen.tell(ev.JobStarted(110.0, "a"))
    assert seen.lost() == lost


def test_work_is_lost_with_its_node():
    seen = Watched(make_job("a", 2))
    seen.run("a", "n0:01", 10.0)
    seen.tell(ev.NodeLost(30.0, "n0"))
    # when it starts elsewhere, much later: waiting is no work
    seen.run("a", "n1:01", 500.0)
    assert seen.lost() == {"interrupted": 40.0}


def test_gpu_time_is_all_of_the_time_of_all_gpus():
    # given eight GPUs: three of a job that starts at 10 and runs from 20 on, and a node lost at 50
    seen = Watched(make_job("a", 3))
    seen.plan(10.0, Start("a", at("n0:012"), Reason.ADMITTED))
    seen.tell(ev.JobStarted(20.0, "a"))
    seen.tell(ev.NodeLost(50.0, "n1"))
    spent = seen.watch.gpu_time.at(100.0)
    assert spent == {
        "used": 3 * 80.0,
        "idle": 0.0,
        "restarting": 3 * 10.0,
        "free": 8 * 10.0 + 5 * 40.0 + 1 * 50.0,
        "unavailable": 4 * 50.0,
    }
    assert sum(spent.values()) == 8 * 100.0


def test_gpus_that_are_held_and_not_used_are_idle():
    seen = Watched(make_job("a", 2), make_job("b", 2))
    seen.run("a", "n0:01", 0.0)
    seen.run("b", "n0:23", 0.0)
    seen.tell(ev.GpusUsed(10.0, "n0", (0.0, 0.0, 0.9, 0.9)))
    spent = seen.watch.gpu_time.at(30.0)
    assert (spent["idle"], spent["used"]) == (2 * 20.0, 4 * 10.0 + 2 * 20.0)


def test_gpu_time_never_goes_back():
    # given a scrape whose clock is ahead of the next event
    seen = Watched(make_job("a", 3))
    seen.run("a", "n0:012", 0.0)
    first = seen.watch.gpu_time.at(100.0)
    seen.tell(ev.JobEnded(99.0, "a", JobState.SUCCEEDED))
    second = seen.watch.gpu_time.at(100.0)
    assert all(second[use] >= first[use] for use in first)


def test_steps_of_cycles_have_times():
    watch, world = SchedulerCounters(), make_world(make_nodes(4), jobs=[make_job("a")])
    watch.deciding()
    plan = decide(world, 1000.0, rules_that_give(a=1), watch.step_done)
    watch.decided(world, plan)
    counts = {step: sum(times.buckets) for step, times in watch.step_times.items()}
    assert counts == dict.fromkeys((*STEPS, CARRY_OUT), 1)
    assert sum(times.total_s for times in watch.step_times.values()) <= watch.times.total_s


@given(st.data())
def test_reasons_are_counted_as_if_one_by_one(data: st.DataObject):
    n = data.draw(st.integers(0, 12))

    def column(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    kinds = data.draw(st.sampled_from([None, 2]))
    of_types = data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
    rows = st.integers(0, n - 1) if n else st.nothing()
    decisions = Decisions(
        ids=[str(row) for row in range(n)],
        gpus=np.array(column(0, 4), dtype=np.int64),
        moving=data.draw(st.sampled_from([None, np.array(column(0, 1), dtype=bool)])),
        asked=np.array(column(1, 4), dtype=np.int64),
        low=np.array(column(1, 8), dtype=np.int64),
        high=np.array(column(1, 4), dtype=np.int64),
        kind=None if kinds is None else np.array(column(-1, 1), dtype=np.int64),
        capacity=of_types,
        free=data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9))),
        special=data.draw(st.dictionaries(rows, st.just((Reason.PARKED, ())))),
    )
    assert count_reasons(decisions) == Counter(decision.reason.name for decision in decisions)


def test_how_well_jobs_lie():
    # given a job across nodes that one node could hold, and free GPUs in pieces and on a whole node
    world = make_world(make_nodes(4, 4, 4), {"a": "n0:0 n1:0", "b": "n0:123"}, [make_job("a", 2), make_job("b", 3)])
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in node_metrics(snapshot_of(world), NoNodeFacts())
        for sample in family.samples
    }
    assert found["batuta_cross_node_jobs", "yes"] == 1
    assert found["batuta_cross_node_jobs", "no"] == 0
    assert found["batuta_fragmentation_ratio",] == 3 / 7
    assert found["batuta_largest_free_block_gpus",] == 4
    assert found["batuta_node_gpus", "n1", "free"] == 3


def test_nodes_by_state():
    world = make_world(make_nodes(4, 4, 4), lost=["n0"], cordoned=["n1"])
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in node_metrics(snapshot_of(world), NoNodeFacts())
        for sample in family.samples
    }
    assert [found["batuta_nodes", state] for state in ("ready", "cordoned", "lost")] == [1, 1, 1]
    assert [found["batuta_node_ready", node] for node in ("n0", "n1", "n2")] == [0, 0, 1]
