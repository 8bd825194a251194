"""A picture shows the World as it is, is taken once for each version, and never changes."""

import threading
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from batuta.api.cycle_watch import CycleWatch
from batuta.api.picture import Pictures
from batuta.bootstrap import rules_for
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.arrays import IntArray
from batuta.core.job import JobState
from batuta.core.view import PoolView
from batuta.core.wish import Wish
from batuta.core.world import World
from tests.support.live_service import live_service
from tests.support.pictures import StillService, pictures_of
from tests.support.stories import Story
from tests.support.worlds import make_job, make_nodes, make_world


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_the_world_at_every_moment(seed: int) -> None:
    world = World()
    pictures = pictures_of(world)
    for number, event in enumerate(islice(Story(seed), 1500)):
        apply(world, event)
        if number % 7:
            continue
        pictures.refresh()
        picture = pictures.take()
        assert picture.version == world.version
        assert [job.id for job in picture.jobs] == world.jobs.ids
        assert picture.states == [world.state_of(row) for row in range(world.jobs.n)]
        assert [picture.wish_of(row) for row in range(world.jobs.n)] == [
            world.jobs.wish_of(row) for row in range(world.jobs.n)
        ]
        assert {past.job.id: past for _, past in picture.past} == world.past
        assert [key for key, _ in picture.past] == sorted(key for key, _ in picture.past)
        counts = dict.fromkeys(JobState, 0)
        for row in range(world.jobs.n):
            counts[world.state_of(row)] += 1
        for past in world.past.values():
            counts[past.state] += 1
        assert picture.state_counts == counts


def test_it_does_not_change_with_the_world() -> None:
    world = make_world(make_nodes(4), {"a": "n0:01"}, [make_job("a", 2), make_job("b", 2)])
    picture = pictures_of(world).take()
    before = (picture.states[:], picture.ints.copy(), len(picture.past))
    apply(world, ev.JobWished(5.0, "b", Wish.PARK))
    apply(world, ev.JobEnded(6.0, "a", JobState.SUCCEEDED))
    assert picture.states == before[0]
    assert (picture.ints == before[1]).all()
    assert len(picture.past) == before[2]
    assert picture.rows == {"a": 0, "b": 1}


def test_one_picture_serves_all_until_somebody_knows_of_a_change() -> None:
    world, cycles = make_world(make_nodes(2), jobs=[make_job("a")]), CycleWatch()
    service = StillService(world)
    pictures = Pictures(service, cycles)  # type: ignore[arg-type]
    first = pictures.take()
    assert pictures.take() is first
    apply(world, ev.TimePassed(1.0))
    assert pictures.take() is first, "nobody can know yet"
    pictures.refresh()
    second = pictures.take()
    assert (second.version, service.reads) == (world.version, 3)
    # A cycle without commands leaves the World as it is, and gives other reasons.
    pictures.refresh()
    assert pictures.take() is second
    cycles.count += 1
    pictures.refresh()
    assert pictures.take() is not second


def test_no_picture_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(make_nodes(2), jobs=[make_job("a")])
    pictures = pictures_of(world)
    first = pictures.take()
    apply(world, ev.TimePassed(1.0))
    assert pictures.take() is first
    monkeypatch.setattr("batuta.api.picture._OLDEST_S", 0.0)
    assert pictures.take().version == world.version


def test_jobs_that_the_world_forgets_are_forgotten() -> None:
    world = make_world(make_nodes(2), jobs=[make_job(name) for name in "abc"])
    for name in "abc":
        apply(world, ev.JobEnded(1.0, name, JobState.FAILED))
    pictures = pictures_of(world)
    assert len(pictures.take().past) == 3
    apply(world, ev.JobForgotten(2.0, "a"))
    apply(world, ev.JobForgotten(2.0, "b"))
    # As many have ended since: their number alone would say nothing.
    for name in "de":
        apply(world, ev.JobSubmitted(3.0, make_job(name)))
        apply(world, ev.JobEnded(4.0, name, JobState.SUCCEEDED))
    pictures.refresh()
    picture = pictures.take()
    assert [past.job.id for _, past in picture.past] == ["c", "d", "e"]
    assert set(picture.past_by_id) == {"c", "d", "e"}
    assert picture.state_counts[JobState.FAILED] == 1


class Pensive:
    """A policy that decides when it is let."""

    name = "pensive"

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
    monkeypatch.setattr("batuta.api.picture._OLDEST_S", 3600.0)
    pensive = Pensive()
    monkeypatch.setattr(
        "tests.support.live_service.rules_for", lambda name: replace(rules_for(name), policy=pensive)
    )
    with live_service(tmp_path) as live:
        pictures: Pictures = live.app.state.desk.pictures
        pictures.take()
        try:
            live.service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("a"))])
            assert pensive.begun.wait(60)
            assert [job.id for job in pictures.take().jobs] == ["a"]
            assert not pensive.let.is_set()
        finally:
            pensive.let.set()
