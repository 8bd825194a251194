"""The number of series stays bounded, whatever there is."""

from collections import Counter

import pytest

from batuta.api.dependencies import MAX_JOB_SERIES, NoNodeFacts
from batuta.api.routes.metrics import cluster_metrics
from batuta.api.scheduler_counters import SchedulerCounters
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Placement, Span
from batuta.core.job import Progress
from batuta.core.plan import Plan, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.world import World
from tests.support.snapshots import snapshot_of
from tests.support.worlds import make_job, make_nodes, make_world

JOBS = 10_000
GPUS = 8


@pytest.fixture(scope="module")
def busy() -> tuple[World, SchedulerCounters]:
    """A World in which ten thousand jobs run and report, and a watch that saw all of it."""
    world, watch = make_world(make_nodes(*(GPUS for _ in range(JOBS // GPUS)))), SchedulerCounters()

    def tell(event: ev.Event) -> None:
        apply(world, event)
        watch.saw(world, event)

    for number in range(JOBS):
        tell(ev.JobSubmitted(0.0, make_job(f"{number:05}", queue=f"queue-{number}")))
    starts = tuple(
        Start(f"{number:05}", Placement((Span(f"n{number // GPUS}", (number % GPUS,)),)), Reason.ADMITTED)
        for number in range(JOBS)
    )
    tell(ev.Planned(1.0, Plan(world.version, 1.0, "fifo", starts, (), no_decisions())))
    for number in range(JOBS):
        tell(ev.JobStarted(1.0, f"{number:05}"))
        progress = Progress(fraction=0.5, step_s=1.0, samples_per_s=64.0)
        tell(ev.JobProgressed(2.0, f"{number:05}", 5.0, progress=progress))
    watch.postponed(world)
    return world, watch


def series(busy: tuple[World, SchedulerCounters], per_job: int) -> Counter[str]:
    """How many series each metric has; of a histogram, its buckets."""
    world, watch = busy
    families = cluster_metrics(snapshot_of(world), watch, 3.0, NoNodeFacts(), per_job)
    return Counter(sample.name for family in families for sample in family.samples)


def test_ten_thousand_jobs_do_not_make_ten_thousand_series(busy: tuple[World, SchedulerCounters]):
    found = series(busy, MAX_JOB_SERIES)
    own = {name: count for name, count in found.items() if name.startswith("batuta_job_")}
    assert own["batuta_job_gpus"] == own["batuta_job_progress_ratio"] == MAX_JOB_SERIES
    assert max(own.values()) == MAX_JOB_SERIES
    # Nodes have three series each, and everything else far fewer.
    others = {name: count for name, count in found.items() if not name.startswith("batuta_node_")}
    assert max(others.values()) < 300
    assert found["batuta_node_gpus"] == 3 * JOBS // GPUS


def test_jobs_have_none_of_their_own_when_nobody_wants_them(busy: tuple[World, SchedulerCounters]):
    found = series(busy, 0)
    assert found["batuta_job_gpus"] == found["batuta_job_step_seconds"] == 0
    assert found["batuta_jobs"] > 0


def test_all_have_their_own_when_somebody_asks_for_it(busy: tuple[World, SchedulerCounters]):
    assert series(busy, JOBS)["batuta_job_progress_ratio"] == JOBS
