"""How crowded it was since a job came, as a policy sees it: a fair share is judged by that."""

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import JobState
from batuta.core.world import World
from batuta.core.world_view import pool_view
from tests.support.worlds import make_job, make_nodes, make_world


def crowd(world: World, now_s: float) -> dict[str, float]:
    """By job: living jobs on average since it came, over those of now."""
    view = pool_view(world, now_s, None, 4, None)
    assert view.crowd is not None
    return dict(zip(view.ids, view.crowd.tolist(), strict=True))


def submit(world: World, *names: str, at_s: float) -> None:
    for name in names:
        apply(world, ev.JobSubmitted(at_s, make_job(name, submit_s=at_s)))


def test_who_lived_through_a_rush_has_met_more_than_there_are_now() -> None:
    world = make_world(make_nodes(4))
    submit(world, "a", "b", "c", "d", at_s=0.0)
    for name in "bcd":
        apply(world, ev.JobEnded(100.0, name, JobState.SUCCEEDED))
    submit(world, "late", at_s=100.0)
    # Four for 100 s and two for 300 s are two and a half on average: 1.25 times as many as now.
    assert crowd(world, 400.0) == pytest.approx({"a": 1.25, "late": 1.0})


def test_it_is_kept_by_a_fork_and_does_not_depend_on_how_often_somebody_looks() -> None:
    often, once = make_world(make_nodes(4)), make_world(make_nodes(4))
    for world in (often, once):
        submit(world, "a", "b", at_s=0.0)
        if world is often:
            for second in range(0, 50, 10):
                apply(world, ev.TimePassed(float(second)))
        apply(world, ev.JobEnded(50.0, "b", JobState.SUCCEEDED))
    assert crowd(often.fork(), 100.0) == pytest.approx(crowd(once, 100.0))
    assert crowd(once, 100.0) == pytest.approx({"a": 1.5})


def test_a_job_that_came_just_now_has_met_those_who_are_here() -> None:
    world = make_world(make_nodes(4))
    submit(world, "a", "b", at_s=7.0)
    assert crowd(world, 7.0) == {"a": 1.0, "b": 1.0}
