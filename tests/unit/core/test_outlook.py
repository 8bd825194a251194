"""How a job's speed changes until its end, as a policy asks for it."""

import numpy as np
import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.curve import SpeedCurve
from batuta.core.job import Job, JobState
from batuta.core.phases import Outlook, Phases, SharedOutlook, shared_outlooks
from batuta.core.world import World
from batuta.core.world_view import pool_view
from tests.support.worlds import make_nodes


def phases(*per_s: tuple[float, ...], marks: tuple[float, ...] | None = None) -> Phases:
    found = marks or tuple(100.0 * k for k in range(len(per_s) + 1))
    return Phases(np.array(found), np.array(per_s))


LATER_BETTER = phases((0.0, 1.0, 1.0), (0.0, 1.0, 2.0))
"""200 s on one GPU; a second one brings nothing in the first half and doubles the speed in the second."""


def shared(own: Phases, *ends: float) -> SharedOutlook:
    return SharedOutlook(np.arange(len(ends)), own, np.array(ends))


def sizes(*rows: tuple[int, ...]) -> np.ndarray:
    return np.array(rows)


def test_time_left_is_counted_phase_by_phase() -> None:
    left_s = shared(LATER_BETTER, 200.0).left_s(np.array([200.0]), sizes((0, 1, 2, 5)))
    assert left_s.tolist() == [[np.inf, 200.0, 150.0, 150.0]]


def test_where_a_job_is_follows_from_what_is_left() -> None:
    both = shared(LATER_BETTER, 200.0, 150.0)
    assert both.at(np.array([60.0, 60.0])).tolist() == [140.0, 90.0]
    # 10 s in the first phase with two GPUs, then 50 units at double speed.
    assert both.left_s(np.array([60.0, 60.0]), sizes((2,), (2,))).tolist() == [[30.0], [35.0]]


def test_running_for_a_while_leads_to_where_another_size_goes_on() -> None:
    one = shared(LATER_BETTER, 200.0)
    later_s = one.left_after_s(np.array([200.0]), sizes((1, 2)), np.array([[120.0, 120.0]]), np.array([1]))
    # With one GPU 80 are left; with two, the last 20 s did 40.
    assert later_s.tolist() == [[80.0, 60.0]]
    over_s = one.left_after_s(np.array([10.0]), sizes((2,)), np.array([[1e6]]), np.array([2]))
    assert over_s.tolist() == [[0.0]]


def test_one_phase_is_the_same_as_a_curve() -> None:
    curve = SpeedCurve((0.0, 1.0, 1.7, 2.1))
    one = shared(phases(curve.speeds, marks=(0.0, 500.0)), 500.0)
    n = sizes((1, 2, 3))
    np.testing.assert_allclose(one.left_s(np.array([300.0]), n), [[300 / curve.at(k) for k in (1, 2, 3)]])


@pytest.mark.parametrize(
    ("marks", "per_s"),
    [
        ((0.0,), ()),
        ((0.0, 0.0), ((0.0, 1.0),)),
        ((0.0, 1.0), ((0.0, 0.0),)),
        ((0.0, 1.0), ((0.0, float("nan")),)),
        ((0.0, float("inf")), ((0.0, 1.0),)),
        ((0.0, 1.0), ((0.0,),)),
    ],
)
def test_what_makes_no_sense_is_refused(marks: tuple[float, ...], per_s: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(ValueError, match="outlook"):
        Phases(np.array(marks), np.array(per_s, dtype=float))


def test_jobs_of_one_application_are_asked_together() -> None:
    other = phases((0.0, 1.0), marks=(0.0, 9.0))
    known = {"a": Outlook(LATER_BETTER, 200.0), "c": Outlook(other, 9.0), "d": Outlook(LATER_BETTER, 50.0)}
    first, second = shared_outlooks(["a", "b", "c", "d"], known)
    assert first.rows.tolist() == [0, 3]
    assert first.ends.tolist() == [200.0, 50.0]
    assert second.rows.tolist() == [2]
    assert shared_outlooks(["a"], {}) == ()


def test_a_report_brings_it_into_the_view_and_the_end_of_the_job_takes_it_away() -> None:
    world = World()
    for node in make_nodes(1, 4):
        apply(world, ev.NodeAdded(0.0, node))
    for name in ("a", "b"):
        apply(world, ev.JobSubmitted(0.0, Job(name, 0.0, max=2)))
    apply(world, ev.JobProgressed(1.0, "b", 150.0, outlook=Outlook(LATER_BETTER, 200.0)))
    (found,) = pool_view(world, 1.0, None, 4, None).outlooks
    assert found.rows.tolist() == [1]
    # A report without one leaves it as it was, and a copy of the World has it, too.
    apply(world, ev.JobProgressed(2.0, "b", 149.0))
    twin = world.fork()
    apply(world, ev.JobEnded(3.0, "b", JobState.CANCELLED))
    assert pool_view(world, 3.0, None, 4, None).outlooks == ()
    assert len(pool_view(twin, 3.0, None, 4, None).outlooks) == 1
