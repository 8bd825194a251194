"""A picture shows the World as it is, is taken once for each version, and never changes."""

import asyncio
import threading
from dataclasses import replace
from itertools import islice
from pathlib import Path

import anyio.to_thread
import numpy as np
import pytest

from batuta.api.scheduler_counters import SchedulerCounters
from batuta.api.snapshot import SnapshotCache, WorldSnapshot
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.arrays import IntArray
from batuta.core.job import DesiredState, JobState
from batuta.core.plan import Plan
from batuta.core.policy import PLAIN
from batuta.core.view import PoolView
from batuta.core.world import World
from batuta.engine.profile import profile_for
from tests.support.live_service import live_service
from tests.support.snapshots import StillService, snapshots_of
from tests.support.stories import Story
from tests.support.worlds import make_job, make_nodes, make_world


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_the_world_at_every_moment(seed: int) -> None:
    world = World()
    snapshots = snapshots_of(world)
    for number, event in enumerate(islice(Story(seed), 1500)):
        apply(world, event)
        if number % 7:
            continue
        snapshots.refresh()
        snapshot = snapshots.take()
        assert snapshot.version == world.version
        assert [job.id for job in snapshot.jobs] == world.jobs.ids
        assert snapshot.states == [world.state_of(row) for row in range(world.jobs.n)]
        assert [snapshot.columns.wish_of(row) for row in range(world.jobs.n)] == [
            world.jobs.wish_of(row) for row in range(world.jobs.n)
        ]
        assert {past.job.id: past for _, past in snapshot.past} == world.past
        assert [key for key, _ in snapshot.past] == sorted(key for key, _ in snapshot.past)
        counts = dict.fromkeys(JobState, 0)
        for row in range(world.jobs.n):
            counts[world.state_of(row)] += 1
        for past in world.past.values():
            counts[past.state] += 1
        assert snapshot.state_counts == counts


def test_it_does_not_change_with_the_world() -> None:
    world = make_world(make_nodes(4), {"a": "n0:01"}, [make_job("a", 2), make_job("b", 2)])
    snapshot = snapshots_of(world).take()
    before = (snapshot.states[:], snapshot.columns.wish.tolist(), len(snapshot.past))
    apply(world, ev.JobWished(5.0, "b", DesiredState.PARK))
    apply(world, ev.JobEnded(6.0, "a", JobState.SUCCEEDED))
    assert snapshot.states == before[0]
    assert snapshot.columns.wish.tolist() == before[1]
    assert len(snapshot.past) == before[2]
    assert [snapshot.row_of(job) for job in "abc"] == [0, 1, None]


def test_one_picture_serves_all_until_somebody_knows_of_a_change() -> None:
    world, cycles = make_world(make_nodes(2), jobs=[make_job("a")]), SchedulerCounters()
    service = StillService(world)
    snapshots = SnapshotCache(service, cycles)  # type: ignore[arg-type]
    first = snapshots.take()
    assert snapshots.take() is first
    apply(world, ev.TimePassed(1.0))
    assert snapshots.take() is first, "nobody can know yet"
    snapshots.refresh()
    second = snapshots.take()
    assert (second.version, service.reads) == (world.version, 3)
    # A cycle without commands leaves the World as it is, and gives other reasons.
    snapshots.refresh()
    assert snapshots.take() is second
    cycles.count += 1
    snapshots.refresh()
    assert snapshots.take() is not second


def test_no_picture_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(make_nodes(2), jobs=[make_job("a")])
    snapshots = snapshots_of(world)
    first = snapshots.take()
    apply(world, ev.TimePassed(1.0))
    assert snapshots.take() is first
    monkeypatch.setattr("batuta.api.snapshot._MAX_AGE_S", 0.0)
    assert snapshots.take().version == world.version


class BusyService(StillService):
    """A service whose engine decides, and lets nobody read, until it is let go on."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.is_free = threading.Event()
        self.is_free.set()

    def __enter__(self) -> tuple[World, Plan | None]:
        assert self.is_free.wait(60)
        return super().__enter__()


def test_requests_that_wait_for_a_picture_leave_threads_to_others() -> None:
    world = make_world(make_nodes(2), jobs=[make_job("a")])
    service = BusyService(world)
    snapshots = SnapshotCache(service, SchedulerCounters())  # type: ignore[arg-type]

    async def ask() -> list[WorldSnapshot]:
        service.is_free.clear()
        asked = [asyncio.create_task(snapshots.newest()) for _ in range(200)]
        try:
            await asyncio.wait_for(anyio.to_thread.run_sync(int), 20)
        finally:
            service.is_free.set()
        return await asyncio.gather(*asked)

    assert len({id(found) for found in asyncio.run(ask())}) == 1


def test_jobs_that_the_world_forgets_are_forgotten() -> None:
    world = make_world(make_nodes(2), jobs=[make_job(name) for name in "abc"])
    for name in "abc":
        apply(world, ev.JobEnded(1.0, name, JobState.FAILED))
    snapshots = snapshots_of(world)
    assert len(snapshots.take().past) == 3
    apply(world, ev.JobForgotten(2.0, "a"))
    apply(world, ev.JobForgotten(2.0, "b"))
    # As many have ended since: their number alone would say nothing.
    for name in "de":
        apply(world, ev.JobSubmitted(3.0, make_job(name)))
        apply(world, ev.JobEnded(4.0, name, JobState.SUCCEEDED))
    snapshots.refresh()
    snapshot = snapshots.take()
    assert [past.job.id for _, past in snapshot.past] == ["c", "d", "e"]
    assert set(snapshot.past_by_id) == {"c", "d", "e"}
    assert snapshot.state_counts[JobState.FAILED] == 1


class Pensive:
    """A policy that decides when it is let."""

    name = "pensive"
    traits = PLAIN

    def __init__(self) -> None:
        self.let = threading.Event()
        self.begun = threading.Event()

    def allocate(self, view: PoolView) -> IntArray:
        self.begun.set()
        assert self.let.wait(60)
        return np.zeros(len(view.ids), dtype=np.int64)


def test_who_has_submitted_a_job_sees_it_while_the_decision_on_it_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batuta.api.snapshot._MAX_AGE_S", 3600.0)
    pensive = Pensive()
    monkeypatch.setattr(
        "tests.support.live_service.profile_for", lambda name: replace(profile_for(name), policy=pensive)
    )
    with live_service(tmp_path) as live:
        snapshots: SnapshotCache = live.app.state.batuta.snapshots
        snapshots.take()
        try:
            live.service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("a"))])
            assert pensive.begun.wait(60)
            assert [job.id for job in snapshots.take().jobs] == ["a"]
            assert not pensive.let.is_set()
        finally:
            pensive.let.set()
