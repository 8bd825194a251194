"""The view that a policy gets of a World: columns on demand, the same numbers as in the job table."""

from dataclasses import fields, replace

import numpy as np
import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node, Placement, Span
from batuta.core.curve import linear_curve
from batuta.core.job import Job
from batuta.core.plan import Plan, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.view import PoolView
from batuta.core.world import World
from batuta.core.world_view import pool_view

NOW_S = 100.0


@pytest.fixture
def world() -> World:
    """Three jobs; the second has run with 2 GPUs for 40 s."""
    world = World()
    apply(world, ev.NodeAdded(0.0, Node("a", 8)))
    for k, name in enumerate(("x", "y", "z")):
        job = Job(name, float(k), size=2, min=1, max=4, curve=linear_curve(4), work_s=1000.0)
        apply(world, ev.JobSubmitted(float(k), job))
    start = Start("y", Placement((Span("a", (0, 1)),)), Reason.ADMITTED)
    apply(world, ev.Planned(60.0, Plan(world.version, 60.0, "test", (start,), (), no_decisions())))
    apply(world, ev.JobStarted(60.0, "y"))
    return world


def test_what_changes_with_time_is_brought_up_to_now(world: World):
    view = pool_view(world, NOW_S, None, 8, None)
    assert view.remaining_s.tolist() == [1000.0, 920.0, 1000.0]
    assert view.attained_gpu_s.tolist() == view.service_gpu_s.tolist() == [0.0, 80.0, 0.0]


def test_work_done_stays_done_whatever_is_told_of_what_is_left(world: World):
    apply(world, ev.JobProgressed(80.0, "y", 5000.0))
    view = pool_view(world, NOW_S, None, 8, None)
    assert view.done_s is not None
    assert view.done_s.tolist() == [0.0, 80.0, 0.0]
    assert view.remaining_s[1] == 5000.0 - 2 * 20


def test_work_done_is_counted_in_gpus_of_the_type_like_what_is_left():
    world = World()
    apply(world, ev.NodeAdded(0.0, Node("a", 2, "fast")))
    apply(world, ev.JobSubmitted(0.0, Job("x", 0.0, gpu_types=(("fast", 4.0),), work_s=1000.0)))
    start = Start("x", Placement((Span("a", (0,)),)), Reason.ADMITTED)
    apply(world, ev.Planned(0.0, Plan(world.version, 0.0, "test", (start,), (), no_decisions())))
    apply(world, ev.JobStarted(0.0, "x"))
    view = pool_view(world, NOW_S, None, 2, None, kind=0)
    assert view.done_s is not None
    assert (view.done_s.tolist(), view.remaining_s.tolist()) == ([100.0], [150.0])


def test_every_column_is_there_and_as_long_as_the_view(world: World):
    view = pool_view(world, NOW_S, None, 8, None)
    for column in fields(PoolView):
        value = getattr(view, column.name)
        assert value is getattr(view, column.name)
        if isinstance(value, np.ndarray):
            assert len(value) == len(view) == 3, column.name


def test_columns_of_the_table_cannot_be_written(world: World):
    view = pool_view(world, NOW_S, None, 8, None)
    for column in ("gpus", "min", "max", "size", "tier", "submit_s", "last_start_s"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(view, column)[0] = 7


def test_some_rows(world: World):
    view = pool_view(world, NOW_S, np.array([1, 2]), 8, None)
    assert len(view) == 2
    assert list(view.ids) == ["y", "z"]
    assert view.gpus.tolist() == [2, 0]
    assert view.remaining_s.tolist() == [920.0, 1000.0]
    assert view.speed.at(view.max).tolist() == [4.0, 4.0]


def test_a_cap_lowers_the_largest_and_the_wanted_size(world: World):
    view = pool_view(world, NOW_S, np.array([0, 2]), 8, np.array([3, 4, 1]))
    assert view.max.tolist() == view.sizes.max.tolist() == [3, 1]
    assert view.size.tolist() == [2, 1]


def test_a_view_can_be_changed_into_another(world: World):
    view = pool_view(world, NOW_S, None, 8, None)
    changed = replace(view, tier=np.array([1, 1, 1]))
    assert changed.tier.tolist() == [1, 1, 1]
    assert view.tier.tolist() == [0, 0, 0]
    assert len(changed) == 3


def test_what_no_view_has_is_not_found(world: World):
    view = pool_view(world, NOW_S, None, 8, None)
    assert not hasattr(view, "colour")
    assert not hasattr(replace(view, capacity=1), "colour")
