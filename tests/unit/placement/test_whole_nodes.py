"""The placer that keeps every job tight."""

import pytest

from batuta.core.job import Job, Spread, Topology
from batuta.core.world import World
from batuta.placement import TopologyPlacer, WholeNodePlacer
from tests.support.worlds import make_job, make_nodes, make_world, outcome, place


def world_of(*nodes: int, running: dict[str, str], waiting: dict[str, int]) -> World:
    jobs = [make_job(name, sum(len(span) for span in text.split()), min=1, max=8) for name, text in running.items()]
    jobs += [make_job(name, size) for name, size in waiting.items()]
    return make_world(make_nodes(*nodes), running, jobs)


def test_whole_nodes_come_from_empty_ones_and_parts_from_the_fullest() -> None:
    world = world_of(4, 4, 4, running={"a": "n1:0"}, waiting={"two": 2, "six": 6, "one": 1})
    placed = place(WholeNodePlacer(), world, {"two": 2, "six": 6, "one": 1})
    assert outcome(world, placed) == {"six": "n0:0123 n1:12", "two": "n2:01", "one": "n1:3"}


def test_small_jobs_make_way_for_one_that_needs_a_whole_node() -> None:
    world = world_of(4, 4, running={"a": "n0:0", "b": "n1:0", "c": "n1:1"}, waiting={"big": 4})
    placed = place(WholeNodePlacer(), world, {"big": 4})
    assert outcome(world, placed) == {"big": "n0:0123", "a": "MADE_ROOM n1:2"}


def test_one_gpu_job_makes_way_for_a_pair() -> None:
    world = world_of(2, 2, running={"a": "n0:0", "b": "n1:0"}, waiting={"pair": 2})
    assert outcome(world, place(WholeNodePlacer(), world, {"pair": 2})) == {
        "pair": "n0:01",
        "a": "MADE_ROOM n1:1",
    }


def test_who_is_resized_stays_where_it_can() -> None:
    world = world_of(4, 4, running={"a": "n1:01"}, waiting={})
    assert outcome(world, place(WholeNodePlacer(), world, {"a": 4})) == {"a": "n1:0123"}
    assert outcome(world, place(WholeNodePlacer(), world, {"a": 1})) == {"a": "n1:0"}


@pytest.mark.parametrize(
    "job",
    [make_job("w", 2, topology=Topology(Spread.NODE, required=True)), make_job("w", 2, memory_mib_per_gpu=1)],
)
def test_wishes_are_left_to_the_placer_that_knows_them(job: Job) -> None:
    world = make_world(make_nodes(2, 4, memory_mib=100), {}, [job])
    mine, other = place(WholeNodePlacer(), world, {"w": 2}), place(TopologyPlacer(), world, {"w": 2})
    assert outcome(world, mine) == outcome(world, other)
