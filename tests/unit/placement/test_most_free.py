"""The baselines' placer: the node with the most free GPUs first, as many as there are."""

import pytest

from batuta.placement import MostFreePlacer
from tests.support.worlds import make_job, make_nodes, make_world, outcome, place


@pytest.mark.parametrize(
    ("why", "running", "wanted", "expected"),
    [
        ("the lowest of equally free nodes", {}, {"x": 2}, {"x": "n0:01"}),
        ("the node with the most free GPUs", {"a": "n0:01", "b": "n1:0"}, {"x": 2}, {"x": "n2:01"}),
        (
            "as many as there are, and so on",
            {"a": "n0:01", "b": "n1:0", "c": "n2:0"},
            {"x": 5},
            {"x": "n1:123 n2:12"},
        ),
        ("in the order given", {}, {"x": 1, "y": 4}, {"x": "n0:0", "y": "n1:0123"}),
        ("running jobs keep their nodes", {"a": "n2:0"}, {"x": 3}, {"x": "n0:012"}),
        (
            "stopped ones make room first",
            {"a": "n0:0123", "b": "n1:0123", "c": "n2:0123"},
            {"a": 0, "x": 4},
            {"x": "n0:0123"},
        ),
        ("too many", {"a": "n0:0123", "b": "n1:0123"}, {"x": 5}, {"x": "WAITING_FOR_GPUS"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_order_of_rows(why, running, wanted, expected):
    jobs = [make_job(name, sum(len(part.split(":")[1]) for part in text.split())) for name, text in running.items()]
    jobs += [make_job(name, gpus, submit_s=1.0) for name, gpus in wanted.items() if name not in running]
    world = make_world(make_nodes(4, 4, 4), running, jobs)
    assert outcome(world, place(MostFreePlacer(), world, wanted)) == expected, why


def test_smallest_first():
    jobs = [make_job("x", 4), make_job("y", 1), make_job("z", 1)]
    world = make_world(make_nodes(4, 4), {}, jobs)
    placed = place(MostFreePlacer(by_size=True), world, {"x": 4, "y": 1, "z": 1})
    assert outcome(world, placed) == {"x": "n0:123 n1:1", "y": "n0:0", "z": "n1:0"}


def test_changed_jobs_are_released_before_any_is_placed():
    jobs = [make_job("a", 4, min=1), make_job("b", 2, min=1, max=4)]
    world = make_world(make_nodes(4, 4), {"a": "n0:0123", "b": "n1:01"}, jobs)
    placed = place(MostFreePlacer(by_size=True), world, {"a": 2, "b": 4})
    assert outcome(world, placed) == {"a": "n0:01", "b": "n1:0123"}


def test_who_cannot_grow_keeps_what_it_has():
    jobs = [make_job("a", 2, max=6), make_job("b", 2, submit_s=1.0)]
    world = make_world(make_nodes(4), {"a": "n0:01"}, jobs)
    placed = place(MostFreePlacer(), world, {"a": 6, "b": 2})
    assert outcome(world, placed) == {"a": "WAITING_FOR_GPUS", "b": "n0:23"}
