"""Which GPU type a job competes for."""

from typing import Any

import pytest

from batuta.core import event as ev
from batuta.core.allocate import assign_types
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import Job
from tests.support.worlds import make_job, make_world


def types_of(
    nodes: list[Node],
    jobs: list[Job],
    running: dict[str, str] | None = None,
    possible: dict[str, str] | None = None,
    idle: tuple[str, ...] = (),
) -> dict[str, str]:
    """By job the name of its type; `possible` has the only type of some, `idle` do not start."""
    world = make_world(nodes, running, jobs)
    row, types = world.jobs.row, world.nodes.types
    only = {row(name): {types.index(kind)} for name, kind in (possible or {}).items()}
    found = assign_types(world, world.capacity(), only, set(map(row, idle)))
    names = [*world.nodes.types, "none"]
    return {job: names[kind] for job, kind in zip(world.jobs.ids, found, strict=True)}


BOTH = [Node("s", 4, gpu_type="small"), Node("l", 8, gpu_type="large")]


def job(name: str, size: int = 1, **changes: Any) -> Job:
    return make_job(name, size, **changes)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        # The largest pool first, the next when it is full, in row order.
        ([job("a", 6), job("b", 3)], {"a": "large", "b": "small"}),
        ([job("a", 6), job("b", 2), job("c", 1)], {"a": "large", "b": "large", "c": "small"}),
        # The fastest accepted one.
        ([job("a", gpu_types=(("large", 1.0), ("small", 2.0)))], {"a": "small"}),
        ([job("a", 5, gpu_types=(("large", 1.0), ("small", 2.0)))], {"a": "large"}),
        ([job("a", gpu_types=(("tpu", 1.0),))], {"a": "none"}),
        # A range counts with its minimum.
        ([job("a", 8, min=2), job("b", 6)], {"a": "large", "b": "large"}),
        # With no room anywhere: where the queue is shortest for the size of the pool.
        (
            [job("a", 8), job("b", 4), job("c", 4), job("d", 4)],
            {"a": "large", "b": "small", "c": "small", "d": "large"},
        ),
        # Never where it can never run.
        ([job("a", 8), job("b", 5)], {"a": "large", "b": "large"}),
        ([job("a", 4, gpus_per_replica=4), job("b", 8, gpus_per_replica=8)], {"a": "large", "b": "large"}),
    ],
)
def test_who_waits(jobs: list[Job], expected: dict[str, str]) -> None:
    assert types_of(BOTH, jobs) == expected


def test_who_has_gpus_stays_with_their_type() -> None:
    assert types_of(BOTH, [job("a", 2)], {"a": "s:01"}) == {"a": "small"}


def test_a_job_goes_where_its_labels_are() -> None:
    labelled = Node("x", 2, gpu_type="small", labels=(("zone", "x"),))
    assert types_of([labelled, BOTH[1]], [job("a", node_labels=(("zone", "x"),))]) == {"a": "small"}


def test_a_job_goes_where_its_quota_is() -> None:
    assert types_of(BOTH, [job("a", 2)], possible={"a": "small"}) == {"a": "small"}
    assert types_of(BOTH, [job("a", 2)], possible={"a": "large"}) == {"a": "large"}


def test_a_job_that_can_never_run_takes_no_room() -> None:
    jobs = [job("hopeless", 8, node_labels=(("zone", "x"),)), job("b", 8)]
    assert types_of(BOTH, jobs)["b"] == "large"


def test_a_job_that_does_not_start_takes_no_room() -> None:
    """Given that "a" has two; when "b" wants four but gets no quota; then "c" has its choice."""
    jobs = [job("a", 2), job("b", 4), job("c", 4, queue="other", submit_s=9.0)]
    assert types_of(BOTH, jobs, {"a": "l:01"}) == {"a": "large", "b": "large", "c": "small"}
    refused = types_of(BOTH, jobs, {"a": "l:01"}, idle=("b",))
    assert refused == {"a": "large", "b": "large", "c": "large"}


def test_where_a_job_waits_does_not_depend_on_who_runs_behind_it() -> None:
    """If it did, a start behind it would send it elsewhere, which might undo the start, and so on."""
    jobs = [job("a", 4), job("c", 4), job("d", submit_s=9.0), job("e", 4, submit_s=9.0)]
    idle = types_of(BOTH, jobs, {"a": "l:0123", "e": "s:0123"})
    busy = types_of(BOTH, jobs, {"a": "l:0123", "e": "s:0123", "d": "l:4"})
    assert idle["c"] == busy["c"] == "large"


def test_closed_nodes_are_no_reason_to_wait_there() -> None:
    world = make_world(BOTH, {}, [job("a", 2)])
    apply(world, ev.NodeCordoned(1.0, "l"))
    assert assign_types(world, world.capacity()).tolist() == [0]


def test_with_one_type_each_job_has_it_that_accepts_it() -> None:
    """Given one type; when every job accepts it, or one accepts another only; then that one alone has none."""
    one = [Node("s", 4, gpu_type="small")]
    fast, slow = (("large", 2.0), ("small", 1.0)), (("small", 1.0),)
    jobs = [job("a"), job("b", 9, gpu_types=fast), job("c", gpu_types=slow), job("d", 2, gpus_per_replica=0)]
    assert types_of(one, jobs) == {"a": "small", "b": "small", "c": "small", "d": "none"}
    picky = job("e", gpu_types=(("large", 2.0),))
    assert types_of(one, [*jobs, picky]) == {"a": "small", "b": "small", "c": "small", "d": "none", "e": "none"}
