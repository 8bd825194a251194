"""Where a job goes that starts: given a cluster, when it asks for GPUs, then it gets these."""

from dataclasses import replace

import pytest

from batuta.core.cluster import Node
from batuta.core.job import Spread, Topology
from batuta.placement import TopologyPlacer
from tests.support.worlds import make_job, make_nodes, make_world, outcome, place, scaling

ONE_NODE = Topology(Spread.NODE, required=True)
ONE_RACK = Topology(Spread.RACK, required=True)
ONE_NUMA = Topology(single_numa=True)
NEAR = Topology(Spread.RACK)


def racks(*sizes: tuple[str, int]) -> list[Node]:
    return [Node(f"n{k}", gpus, rack=rack) for k, (rack, gpus) in enumerate(sizes)]


def started(nodes, running, wanted, **job) -> str:
    """Where a job of `wanted` GPUs goes; the jobs in `running` hold what stands there."""
    others = [make_job(name, sum(len(part.split(":")[1]) for part in text.split())) for name, text in running.items()]
    world = make_world(nodes, running, [*others, make_job("new", wanted, submit_s=1.0, **job)])
    return outcome(world, place(TopologyPlacer(), world, {"new": wanted}))["new"]


@pytest.mark.parametrize(
    ("why", "nodes", "running", "wanted", "expected"),
    [
        ("empty cluster: the lowest node", make_nodes(4, 4), {}, 2, "n0:01"),
        ("the fullest node that fits", make_nodes(4, 4, 4), {"a": "n0:0", "b": "n1:01"}, 2, "n1:23"),
        ("not the fullest if it does not fit", make_nodes(4, 4), {"a": "n1:012"}, 2, "n0:01"),
        ("the smaller of two empty nodes", make_nodes(8, 4), {}, 4, "n1:0123"),
        (
            "one node rather than two with gaps",
            make_nodes(4, 4, 8),
            {"a": "n0:01", "b": "n1:01"},
            4,
            "n2:0123",
        ),
        ("more than a node: whole nodes, then a rest", make_nodes(4, 4, 4), {}, 6, "n0:0123 n1:01"),
        ("the rest where it fits best", make_nodes(4, 4, 4), {"a": "n0:01"}, 6, "n1:0123 n0:23"),
        ("as few nodes as possible", make_nodes(8, 2, 2, 2), {"a": "n0:012345"}, 6, "n0:67 n1:01 n2:01"),
        ("the widest nodes first", make_nodes(2, 4, 8), {}, 12, "n2:01234567 n1:0123"),
        (
            "gaps only when nothing else is left",
            make_nodes(4, 4),
            {"a": "n0:012", "b": "n1:012"},
            2,
            "n0:3 n1:3",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_packing(why, nodes, running, wanted, expected):
    assert started(nodes, running, wanted) == expected, why


@pytest.mark.parametrize(
    ("why", "nodes", "running", "wanted", "job", "expected"),
    [
        (
            "one rack rather than two, though another node comes first",
            racks(("x", 4), ("y", 4), ("y", 4)),
            {},
            8,
            {},
            "n1:0123 n2:0123",
        ),
        (
            "the rack with less left over",
            racks(("x", 4), ("x", 4), ("x", 4), ("y", 4), ("y", 4)),
            {},
            8,
            {},
            "n3:0123 n4:0123",
        ),
        ("two racks if it must be", racks(("x", 4), ("y", 4)), {}, 8, {}, "n0:0123 n1:0123"),
        (
            "two racks though one is preferred",
            racks(("x", 4), ("y", 4)),
            {},
            8,
            {"topology": NEAR},
            "n0:0123 n1:0123",
        ),
        (
            "not two racks if one is required",
            racks(("x", 4), ("y", 4)),
            {},
            8,
            {"topology": ONE_RACK},
            "TOPOLOGY_UNMET",
        ),
        (
            "not two nodes if one is required",
            make_nodes(4, 4),
            {},
            8,
            {"topology": ONE_NODE},
            "TOPOLOGY_UNMET",
        ),
        (
            "a smaller size within the node",
            make_nodes(4, 4),
            {},
            8,
            {"topology": ONE_NODE, "min": 1},
            "n0:0123",
        ),
        ("a smaller legal size", make_nodes(4, 3), {}, 8, {"min": 2, "sizes": (2, 4, 8)}, "n0:0123"),
        ("replicas are not split", make_nodes(3, 3, 3), {}, 4, {"gpus_per_replica": 2}, "n0:01 n1:01"),
        (
            "replicas are not split to fill gaps",
            make_nodes(3, 3),
            {"a": "n0:0", "b": "n1:0"},
            4,
            {"gpus_per_replica": 2},
            "n0:12 n1:12",
        ),
        ("no room for one more replica", make_nodes(3, 3), {}, 6, {"gpus_per_replica": 2}, "FRAGMENTED"),
        ("fewer replicas", make_nodes(3, 3), {}, 6, {"gpus_per_replica": 2, "min": 2}, "n0:01 n1:01"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_topology(why, nodes, running, wanted, job, expected):
    assert started(nodes, running, wanted, **job) == expected, why


PAIRS = Node("n0", 8, nvlink=(0, 0, 1, 1, 2, 2, 3, 3))
QUADS = Node("n0", 8, nvlink=(0, 0, 0, 0, 1, 1, 1, 1), numa=(0, 0, 0, 0, 1, 1, 1, 1))
CROSSED = Node("n0", 4, nvlink=(0, 1, 0, 1))


@pytest.mark.parametrize(
    ("why", "nodes", "running", "wanted", "job", "expected"),
    [
        ("a pair stays a pair", [PAIRS], {"a": "n0:0"}, 2, {}, "n0:23"),
        ("a single takes what is broken up already", [PAIRS], {"a": "n0:0"}, 1, {}, "n0:1"),
        ("as few groups as possible", [PAIRS], {"a": "n0:0", "b": "n0:2"}, 4, {}, "n0:4567"),
        ("the smallest group that suffices", [QUADS], {"a": "n0:0"}, 3, {}, "n0:123"),
        ("a group that suffices rather than two", [QUADS], {"a": "n0:01"}, 3, {}, "n0:456"),
        ("replicas follow the groups", [CROSSED], {}, 4, {"gpus_per_replica": 2}, "n0:0213"),
        (
            "of equally full nodes the one with a whole group",
            [replace(PAIRS, name="n0", gpus=4, nvlink=(0, 0, 1, 1)), Node("n1", 4, nvlink=(0, 0, 1, 1))],
            {"a": "n0:02", "b": "n1:01"},
            2,
            {},
            "n1:23",
        ),
        ("one NUMA node", [QUADS], {"a": "n0:0"}, 4, {"topology": ONE_NUMA}, "n0:4567"),
        (
            "a replica wider than a NUMA node",
            [QUADS],
            {},
            8,
            {"topology": ONE_NUMA, "gpus_per_replica": 8},
            "TOPOLOGY_UNMET",
        ),
        ("two machines without NUMA", make_nodes(4, 4), {}, 4, {"topology": ONE_NUMA}, "n0:0123"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gpus_of_a_node(why, nodes, running, wanted, job, expected):
    assert started(nodes, running, wanted, **job) == expected, why


@pytest.mark.parametrize(
    ("why", "nodes", "running", "job", "expected"),
    [
        (
            "CPU of the fuller node does not suffice",
            make_nodes(4, 4, cpus_milli=4000),
            {"a": "n0:0"},
            {"cpus_milli_per_gpu": 2000},
            "n0:12",
        ),
        (
            "CPU beside a used GPU counts",
            [Node("n0", 4, cpus_milli=3000), Node("n1", 4)],
            {},
            {"cpus_milli_per_gpu": 2000},
            "n1:01",
        ),
        (
            "memory likewise",
            [Node("n0", 4, memory_mib=30), Node("n1", 4)],
            {},
            {"memory_mib_per_gpu": 20},
            "n1:01",
        ),
        (
            "spread when each has CPU for one",
            make_nodes(4, 4, cpus_milli=3000),
            {},
            {"cpus_milli_per_gpu": 2000},
            "n0:0 n1:0",
        ),
        (
            "no CPU at all",
            make_nodes(4, cpus_milli=1000),
            {},
            {"cpus_milli_per_gpu": 2000},
            "SHORT_OF_CPU_OR_MEMORY",
        ),
        (
            "labels",
            [Node("n0", 4), Node("n1", 4, labels=(("zone", "x"),))],
            {},
            {"node_labels": (("zone", "x"),)},
            "n1:01",
        ),
        ("no such label", make_nodes(4), {}, {"node_labels": (("zone", "x"),)}, "NO_MATCHING_NODE"),
        ("a taint keeps it away", [Node("n0", 4, taints=("spot",)), Node("n1", 8)], {}, {}, "n1:01"),
        (
            "unless it is tolerated",
            [Node("n0", 4, taints=("spot",)), Node("n1", 8)],
            {},
            {"tolerations": ("spot",)},
            "n0:01",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_beside_the_gpus(why, nodes, running, job, expected):
    assert started(nodes, running, 2, **job) == expected, why


def test_gpu_type():
    world = make_world([Node("n0", 4, "T4"), Node("n1", 4, "A100")], {}, [make_job("a", 2)])
    assert outcome(world, place(TopologyPlacer(), world, {"a": (2, "A100")})) == {"a": "n1:01"}


def test_cordoned_nodes_get_nothing_new():
    world = make_world(make_nodes(4, 4), {}, [make_job("a", 2)], cordoned=["n0"])
    assert outcome(world, place(TopologyPlacer(), world, {"a": 2})) == {"a": "n1:01"}


def test_large_jobs_choose_first():
    jobs = [make_job("a", 1), make_job("b", 1), make_job("c", 4), make_job("d", 8)]
    world = make_world(make_nodes(4, 4, 4, 4), {}, jobs)
    placed = place(TopologyPlacer(), world, {"a": 1, "b": 1, "c": 4, "d": 8})
    assert outcome(world, placed) == {"a": "n3:0", "b": "n3:1", "c": "n2:0123", "d": "n0:0123 n1:0123"}


def test_releases_come_before_starts():
    jobs = [make_job("a", 4), make_job("b", 4, min=2), make_job("c", 6)]
    world = make_world(make_nodes(4, 4), {"a": "n0:0123", "b": "n1:0123"}, jobs)
    placed = place(TopologyPlacer(), world, {"a": 0, "b": 2, "c": 6})
    assert outcome(world, placed) == {"b": "n1:01", "c": "n0:0123 n1:23"}


def test_spread_start_makes_a_small_job_move_when_that_pays():
    jobs = [make_job("a"), make_job("b"), make_job("c", 4, submit_s=1.0, curve=scaling(4, across_nodes=0.5))]
    world = make_world(make_nodes(4, 4), {"a": "n0:0", "b": "n1:0"}, jobs)
    assert outcome(world, place(TopologyPlacer(), world, {"c": 4})) == {"a": "MADE_ROOM n1:1", "c": "n0:0123"}
