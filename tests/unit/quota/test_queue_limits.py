"""Quota by queue: given jobs and quotas, when they are admitted, then each may have so much."""

from typing import Any

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node, Queue
from batuta.core.command import Start
from batuta.core.job import Job
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.quota.queue_limits import QueueLimits
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world


def job(name: str, size: int = 1, **changes: Any) -> Job:
    return make_job(name, size, **{"queue": "q"} | changes)


def world_of(jobs: list[Job], *queues: Queue, nodes: list[Node] | None = None, **running: str) -> World:
    world = make_world(nodes or make_nodes(16), running, jobs)
    for queue in queues:
        apply(world, ev.QueueSet(0.0, queue))
    return world


def caps(world: World) -> dict[str, int]:
    """By job: what it is admitted to."""
    admitted = QueueLimits().admit(world, NOW_S)
    assert admitted.cap is not None
    return dict(zip(world.jobs.ids, admitted.cap.tolist(), strict=True))


def refusals(world: World) -> dict[str, tuple[Reason, dict[str, float]]]:
    found = QueueLimits().admit(world, NOW_S).refused or {}
    return {world.jobs.ids[row]: (reason, dict(numbers)) for row, (reason, numbers) in found.items()}


def quota(gpus: int, **by_type: int) -> Queue:
    return Queue("q", (("*", gpus), *by_type.items()))


@pytest.mark.parametrize("queues", [(), (Queue("q"),), (Queue("q", cohort="c", weight=2.0), Queue("other"))])
def test_without_limits_everybody_is_admitted(queues: tuple[Queue, ...]) -> None:
    admitted = QueueLimits().admit(world_of([job("a", 8)], *queues), NOW_S)
    assert (admitted.cap, admitted.refused, admitted.gpu_type) == (None, None, None)


@pytest.mark.parametrize(
    ("gpus", "jobs", "expected"),
    [
        # All fit.
        (8, [job("a", 4), job("b", 4)], {"a": 4, "b": 4}),
        # In order of submission; who does not fit is passed by.
        (5, [job("a", 4), job("b", 4), job("c", 1)], {"a": 4, "b": 0, "c": 1}),
        # A higher priority goes first.
        (4, [job("a", 4), job("b", 4, priority=1)], {"a": 0, "b": 4}),
        # First the minimum of each, then in turns.
        (8, [job("a", 1, max=8), job("b", 1, max=8)], {"a": 4, "b": 4}),
        (7, [job("a", 1, max=8), job("b", 1, max=8)], {"a": 4, "b": 3}),
        (8, [job("a", 2, max=8), job("b", 1, max=2)], {"a": 6, "b": 2}),
        # Steps that do not fit are left out, smaller ones of others are not.
        (8, [job("a", 2, max=8, sizes=(2, 8)), job("b", 1, max=9)], {"a": 2, "b": 6}),
        (9, [job("a", 3, max=9, gpus_per_replica=3), job("b", 1, max=9)], {"a": 6, "b": 3}),
        # Nothing for nobody.
        (0, [job("a"), job("b")], {"a": 0, "b": 0}),
        # Other queues do not count.
        (2, [job("a", 2), job("b", 9, queue="elsewhere")], {"a": 2, "b": 9}),
    ],
)
def test_a_queue_stays_within_its_quota(gpus: int, jobs: list[Job], expected: dict[str, int]) -> None:
    assert caps(world_of(jobs, quota(gpus))) == expected


def test_who_runs_goes_first_among_equals() -> None:
    assert caps(world_of([job("a", 4), job("b", 4)], quota(4), b="n0:0123")) == {"a": 0, "b": 4}


def test_but_not_before_a_higher_priority() -> None:
    jobs = [job("a", 4, priority=1), job("b", 4)]
    assert caps(world_of(jobs, quota(4), b="n0:0123")) == {"a": 4, "b": 0}


def test_who_runs_has_no_better_turn_when_the_rest_is_divided() -> None:
    """Otherwise sizes would depend on who runs, and who runs on the sizes."""
    jobs = [job("a", 1, max=8), job("b", 1, max=8)]
    assert caps(world_of(jobs, quota(7))) == caps(world_of(jobs, quota(7), b="n0:0"))


def test_a_job_in_transition_keeps_what_it_has_and_others_share_the_rest() -> None:
    world = world_of([job("a", 1, max=8), job("b", 1, max=8)], quota(8))
    carry_out(world, [Start("a", at("n0:012345"), Reason.ADMITTED)], 1.0)
    assert caps(world) == {"a": 6, "b": 2}
    apply(world, ev.QueueSet(2.0, quota(4)))
    assert caps(world) == {"a": 6, "b": 0}


def test_who_is_refused_is_told_what_is_left() -> None:
    found = refusals(world_of([job("a", 3), job("b", 2), job("c", 1, max=8)], quota(5)))
    assert found == {"c": (Reason.QUOTA_EXHAUSTED, {"needs": 1, "quota_left": 0, "quota": 5})}
    found = refusals(world_of([job("a", 3), job("c", 1, max=8)], quota(5)))
    assert found == {"c": (Reason.QUOTA_REACHED, {})}


# ------------------------------------------------------------------------------------------------------ types

TYPES = [Node("s", 8, gpu_type="small"), Node("l", 16, gpu_type="large")]
SMALL: dict[str, Any] = {"gpu_types": (("small", 1.0),)}
LARGE: dict[str, Any] = {"gpu_types": (("large", 1.0),)}


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (Queue("q", (("small", 2),)), {"s": 2, "l": 8}),
        (Queue("q", (("small", 2), ("large", 3))), {"s": 2, "l": 3}),
        (Queue("q", (("*", 6),)), {"s": 3, "l": 3}),
        (Queue("q", (("*", 6), ("small", 2))), {"s": 2, "l": 4}),
        (Queue("q", (("tpu", 0),)), {"s": 8, "l": 8}),
    ],
)
def test_quota_may_be_by_type(queue: Queue, expected: dict[str, int]) -> None:
    jobs = [job("s", 1, max=8, **SMALL), job("l", 1, max=8, submit_s=1.0, **LARGE)]
    assert caps(world_of(jobs, queue, nodes=TYPES)) == expected


def test_who_is_refused_by_its_type_uses_nothing_of_the_quota_of_all() -> None:
    jobs = [job("s", 4, **SMALL), job("l", 4, submit_s=1.0, **LARGE)]
    queue = Queue("q", (("*", 4), ("small", 0)))
    assert caps(world_of(jobs, queue, nodes=TYPES)) == {"s": 0, "l": 4}


def test_a_job_that_may_choose_goes_where_there_is_quota() -> None:
    world = world_of([job("a", 4)], Queue("q", (("large", 2), ("small", 4))), nodes=TYPES)
    admitted = QueueLimits().admit(world, NOW_S)
    assert admitted.gpu_type is not None
    assert (admitted.gpu_type.tolist(), caps(world)) == ([0], {"a": 4})


@pytest.mark.parametrize(
    "hopeless",
    [
        {"size": 17},
        {"size": 4, "node_labels": (("zone", "x"),)},
        {"size": 4, "gpu_types": (("tpu", 1.0),)},
    ],
)
def test_who_can_never_run_uses_no_quota(hopeless: dict[str, Any]) -> None:
    wishes = dict(hopeless)
    jobs = [job("never", wishes.pop("size"), **wishes), job("b", 4, submit_s=1.0)]
    assert caps(world_of(jobs, quota(4)))["b"] == 4


# ------------------------------------------------------------------------------------------------------- held

HELD = Queue("q", held=True)


def test_a_held_queue_starts_nothing_and_lets_run_what_runs() -> None:
    world = world_of([job("a", 2, max=8), job("b")], HELD, a="n0:012")
    assert caps(world) == {"a": 3, "b": 0}
    assert refusals(world) == {"a": (Reason.QUEUE_HELD, {}), "b": (Reason.QUEUE_HELD, {})}


def test_a_held_job_that_lost_gpus_may_have_as_many_again() -> None:
    world = world_of([job("a", 3, max=8)], HELD, nodes=make_nodes(4, 4), a="n0:01 n1:0")
    apply(world, ev.NodeLost(5.0, "n0"))
    assert caps(world) == {"a": 3}


def test_a_held_job_whose_user_wants_more_than_it_has_is_not_admitted() -> None:
    world = world_of([job("a", 2, max=8)], HELD, a="n0:01")
    apply(world, ev.JobChanged(5.0, job("a", 4, max=8)))
    assert caps(world) == {"a": 0}


def test_a_held_queue_still_has_its_quota() -> None:
    queue = Queue("q", (("*", 3),), held=True)
    assert caps(world_of([job("a", 2), job("b", 2)], queue, a="n0:01", b="n0:23")) == {"a": 2, "b": 0}
