"""Everything anew: what fits is packed, and the matching leaves as many GPUs as possible with their jobs."""

from itertools import permutations
from random import Random

import pytest

from batuta.core.arrays import mask_of
from batuta.core.cluster import Node
from batuta.core.job import Spread, Topology
from batuta.placement import TopologyPlacer
from batuta.placement.cluster_state import ClusterState
from batuta.placement.defragmentation import Item, LogicalNode, match, repack
from tests.support.worlds import at, make_job, make_nodes, make_world, outcome, place, shown

ONE_NODE = Topology(Spread.NODE, required=True)


def repacked(nodes, held: dict[str, str], sizes: dict[str, int], **common) -> dict[str, str] | None:
    jobs = [make_job(name, size, **common) for name, size in sizes.items()]
    world = make_world(nodes, {}, jobs)
    room, scope = ClusterState(world.layout.fork(), {}), world.layout.usable
    items = [Item(row, job, job.size, at(held.get(job.id, "")), scope) for row, job in enumerate(world.jobs.jobs)]
    found = repack(room, items, scope)
    if found is None:
        return None
    return {world.jobs.ids[row]: shown(placement) for row, placement in found.items()}


@pytest.mark.parametrize(
    ("why", "nodes", "held", "sizes", "expected"),
    [
        (
            "nobody moves without need",
            make_nodes(4, 4),
            {"a": "n1:0123", "b": "n0:23"},
            {"a": 4, "b": 2},
            {"a": "n1:0123", "b": "n0:23"},
        ),
        (
            "the newcomer goes where the others are not",
            make_nodes(4, 4),
            {"a": "n0:13"},
            {"a": 2, "new": 4},
            {"a": "n0:13", "new": "n1:0123"},
        ),
        (
            "one of two moves to the other",
            make_nodes(4, 4),
            {"a": "n0:3", "b": "n1:12"},
            {"a": 1, "b": 2, "new": 4},
            {"a": "n1:0", "b": "n1:12", "new": "n0:0123"},
        ),
        (
            "on nodes of different sizes the large job gets the large node",
            make_nodes(2, 8, 4),
            {"a": "n1:01", "b": "n2:01"},
            {"a": 2, "b": 2, "new": 8},
            {"a": "n0:01", "b": "n2:01", "new": "n1:01234567"},
        ),
        ("it cannot be packed", make_nodes(4, 4), {}, {"a": 3, "b": 3, "c": 2}, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_repack(why, nodes, held, sizes, expected):
    assert repacked(nodes, held, sizes, topology=ONE_NODE) == expected, why


def test_parts_of_large_jobs_stay_too():
    found = repacked(make_nodes(4, 4, 4), {"a": "n2:0123 n0:01", "b": "n1:02"}, {"a": 6, "b": 2})
    # One of them has to move: two parts of two go onto one node of four, and two GPUs stay either way.
    assert found in ({"a": "n2:0123 n0:01", "b": "n0:23"}, {"a": "n2:0123 n1:13", "b": "n1:02"})


def test_as_many_gpus_stay_as_any_matching_allows():
    """Against all permutations, on random loads and nodes of different sizes."""
    rng = Random(5)
    for _ in range(200):
        sizes = [rng.choice((2, 4, 8)) for _ in range(5)]
        world = make_world([Node(f"n{k}", size) for k, size in enumerate(sizes)], {}, [])
        room = ClusterState(world.layout.fork(), {})
        logical, items, held = [], [], []
        for i, size in enumerate(sizes):
            count = rng.randint(1, size)
            where = rng.randrange(5)
            items.append(Item(i, make_job(f"j{i}", count), count, at(""), world.layout.usable))
            held.append({where: mask_of(tuple(range(rng.randint(1, sizes[where]))))})
            logical.append(LogicalNode(i, {i: mask_of(tuple(range(count)))}))

        def stay(physical, logical=logical, held=held):
            return sum(
                min(node.count(k), held[k].get(i, 0).bit_count())
                for node, i in zip(logical, physical, strict=True)
                for k in node.masks
            )

        allowed = [
            p
            for p in permutations(range(5))
            if all(n.count(k) <= sizes[i] for n, i in zip(logical, p, strict=True) for k in n.masks)
        ]
        found = match(room, items, held, logical, range(5))
        assert tuple(found) in allowed
        assert stay(found) == max(map(stay, allowed))


def test_repack_is_used_when_clearing_a_node_is_not_enough():
    """Two replicas of three need two nodes cleared at once, and those who leave need each other's place."""
    jobs = [make_job(name, 2, topology=ONE_NODE) for name in "abc"]
    jobs.append(make_job("new", 6, submit_s=1.0, gpus_per_replica=3))
    world = make_world(make_nodes(4, 4, 4), {"a": "n0:01", "b": "n1:01", "c": "n2:01"}, jobs)
    placed = place(TopologyPlacer(), world, {"new": 6})
    found = outcome(world, placed)
    assert found.get("new") == "FRAGMENTED", "twelve GPUs, six of them in threes: the twos need another node"
    world = make_world(make_nodes(4, 4, 4, 2), {"a": "n0:01", "b": "n1:01", "c": "n2:01"}, jobs)
    placed = place(TopologyPlacer(), world, {"new": 6})
    assert not placed.failures
    assert len(placed.moves) == 2
