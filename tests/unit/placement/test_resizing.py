"""Growing, shrinking and repair: who stays, where the rest goes, and in which order the workers are."""

import pytest

from batuta.core.cluster import Node
from batuta.core.job import Spread, Topology
from batuta.placement import TopologyPlacer
from tests.support.worlds import make_job, make_nodes, make_world, outcome, place, scaling

ONE_NODE = Topology(Spread.NODE, required=True)
ONE_RACK = Topology(Spread.RACK, required=True)
NODE_IF_POSSIBLE = Topology(Spread.NODE)
PAIRS = [Node("n0", 4, nvlink=(0, 1, 0, 1))]


def resized(nodes, held, wanted, others=None, **job) -> str:
    """Where job `a` goes that holds `held` and shall have `wanted` GPUs."""
    running = {"a": held, **(others or {})}
    jobs = [make_job(name, sum(len(part.split(":")[1]) for part in text.split())) for name, text in running.items()]
    size = jobs[0].size
    job = {"min": 1, "max": 16, **job}
    jobs[0] = make_job("a", size, **job)
    world = make_world(nodes, running, jobs)
    return outcome(world, place(TopologyPlacer(), world, {"a": wanted})).get("a", "unchanged")


SLOW = {"curve": scaling(16, across_nodes=0.5)}


@pytest.mark.parametrize(
    ("why", "nodes", "held", "wanted", "others", "job", "expected"),
    [
        ("on its own node first", make_nodes(4, 4), "n1:0", 3, {}, {}, "n1:012"),
        (
            "after the workers that it has",
            make_nodes(4, 4),
            "n0:3 n1:2",
            4,
            {"b": "n0:012", "c": "n1:3"},
            {},
            "n0:3 n1:201",
        ),
        (
            "then in its rack",
            [Node("n0", 2, rack="x"), Node("n1", 2, rack="y"), Node("n2", 4, rack="x")],
            "n0:01",
            4,
            {},
            {},
            "n0:01 n2:01",
        ),
        (
            "then elsewhere",
            [Node("n0", 2, rack="x"), Node("n1", 2, rack="y")],
            "n0:01",
            4,
            {},
            {},
            "n0:01 n1:01",
        ),
        ("as much as fits", make_nodes(4, 2), "n0:01", 8, {"b": "n0:2"}, {}, "n0:013 n1:01"),
        (
            "as much as fits, if that is legal",
            make_nodes(4, 2),
            "n0:01",
            8,
            {"b": "n0:2"},
            {"sizes": (1, 2, 4, 8, 16)},
            "n0:013 n1:0",
        ),
        ("not at all", make_nodes(4), "n0:01", 4, {"b": "n0:23"}, {}, "WAITING_FOR_GPUS"),
        (
            "to another node, if it must lie on one",
            make_nodes(4, 8),
            "n0:01",
            6,
            {},
            {"topology": ONE_NODE},
            "n1:012345",
        ),
        (
            "a little, if it must lie on one node",
            make_nodes(4, 4),
            "n0:01",
            6,
            {},
            {"topology": ONE_NODE},
            "n0:0123",
        ),
        (
            "within its rack, if it must",
            [Node("n0", 2, rack="x"), Node("n1", 4, rack="y")],
            "n0:01",
            4,
            {},
            {"topology": ONE_RACK},
            "n1:0123",
        ),
        ("to one node, if spread costs speed", make_nodes(2, 2, 4), "n0:01", 4, {}, SLOW, "n2:0123"),
        (
            "to one node, if it wants that",
            make_nodes(2, 2, 4),
            "n0:01",
            4,
            {},
            {"topology": NODE_IF_POSSIBLE},
            "n2:0123",
        ),
        ("not away, if spread costs nothing", make_nodes(2, 2, 4), "n0:01", 4, {}, {}, "n0:01 n1:01"),
        ("beside its NVLink peers", PAIRS, "n0:1", 2, {}, {}, "n0:13"),
        (
            "whole replicas",
            make_nodes(4, 3),
            "n0:01",
            6,
            {"b": "n0:2"},
            {"gpus_per_replica": 2, "min": 2},
            "n0:01 n1:01",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_growing(why, nodes, held, wanted, others, job, expected):
    assert resized(nodes, held, wanted, others, **job) == expected, why


@pytest.mark.parametrize(
    ("why", "nodes", "held", "wanted", "job", "expected"),
    [
        ("the last workers of a node go", make_nodes(4), "n0:3102", 2, {}, "n0:31"),
        ("the smallest part goes first", make_nodes(4, 4), "n0:0 n1:012", 3, {}, "n1:012"),
        ("the survivors keep their order", make_nodes(4, 4), "n1:3 n0:0 n1:1 n0:2 n1:0", 3, {}, "n1:310"),
        ("then as much as needed of the next", make_nodes(4, 4), "n0:0 n1:012", 2, {}, "n1:01"),
        (
            "a part of the right size rather than two halves",
            make_nodes(4, 4, 4),
            "n0:01 n1:0123 n2:0123",
            6,
            {},
            "n0:01 n2:0123",
        ),
        ("NVLink peers stay together", PAIRS, "n0:013", 2, {}, "n0:13"),
        ("whole replicas go", make_nodes(4), "n0:3102", 2, {"gpus_per_replica": 2, "min": 2}, "n0:31"),
        (
            "closer together while it restarts anyway",
            make_nodes(4, 4, 8),
            "n0:012 n1:012",
            5,
            SLOW,
            "n2:01234",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_shrinking(why, nodes, held, wanted, job, expected):
    assert resized(nodes, held, wanted, **job) == expected, why


def test_shrinking_leaves_cordoned_nodes_first():
    jobs = [make_job("a", 5, min=1)]
    world = make_world(make_nodes(4, 4), {"a": "n0:012 n1:01"}, jobs, cordoned=["n0"])
    assert outcome(world, place(TopologyPlacer(), world, {"a": 2})) == {"a": "n1:01"}


@pytest.mark.parametrize(
    ("why", "nodes", "held", "wanted", "job", "expected"),
    [
        (
            "new GPUs for those that were lost",
            make_nodes(4, 4, 4),
            "n0:0123 n1:0123",
            8,
            {},
            "n1:0123 n2:0123",
        ),
        ("what it holds is enough", make_nodes(4, 4), "n0:0123 n1:0123", 4, {}, "n1:0123"),
        ("less than it holds", make_nodes(4, 4), "n0:0123 n1:0123", 2, {}, "n1:01"),
        (
            "a smaller size, as there are no others",
            make_nodes(4, 4, 2),
            "n0:0123 n1:0123",
            8,
            {},
            "n1:0123 n2:01",
        ),
        ("what is left, as there are no others", make_nodes(4, 4), "n0:0123 n1:0123", 8, {}, "n1:0123"),
        (
            "not legal with what is left",
            make_nodes(4, 4),
            "n0:0123 n1:0123",
            8,
            {"min": 8},
            "EXCEEDS_CLUSTER",
        ),
        (
            "elsewhere, if it must lie within a rack",
            [Node("n0", 2, rack="x"), Node("n1", 2, rack="x"), Node("n2", 4, rack="y")],
            "n0:01 n1:01",
            4,
            {"topology": ONE_RACK},
            "n2:0123",
        ),
        (
            "to one node while it restarts anyway",
            make_nodes(4, 2, 2, 8),
            "n0:0123 n1:01",
            6,
            SLOW,
            "n3:012345",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_repair_after_a_node_is_lost(why, nodes, held, wanted, job, expected):
    size = sum(len(part.split(":")[1]) for part in held.split())
    world = make_world(nodes, {"a": held}, [make_job("a", size, **{"min": 1, "max": 16, **job})], lost=["n0"])
    assert outcome(world, place(TopologyPlacer(), world, {"a": wanted})) == {"a": expected}, why


def test_repair_comes_before_growth_and_starts():
    jobs = [make_job("a", 4), make_job("b", 1, max=4), make_job("c", 4, submit_s=1.0)]
    running = {"a": "n0:01 n1:01", "b": "n1:2"}
    world = make_world(make_nodes(2, 4, 4), running, jobs, lost=["n0"])
    placed = place(TopologyPlacer(), world, {"a": 4, "b": 4, "c": 4})
    assert outcome(world, placed) == {"a": "n1:013 n2:0", "b": "n1:2 n2:123", "c": "WAITING_FOR_GPUS"}


@pytest.mark.parametrize("cpus", [0, 1000])
def test_a_job_that_cannot_be_repaired_gives_up_its_gpus(cpus):
    jobs = [
        make_job("a", 8, cpus_milli_per_gpu=cpus),
        make_job("b", 4, submit_s=1.0, cpus_milli_per_gpu=cpus),
    ]
    nodes = make_nodes(4, 4, cpus_milli=4000)
    world = make_world(nodes, {"a": "n0:0123 n1:0123"}, jobs, lost=["n0"])
    placed = place(TopologyPlacer(), world, {"a": 8, "b": 4})
    assert outcome(world, placed) == {"a": "EXCEEDS_CLUSTER", "b": "n1:0123"}


def test_two_jobs_swap_their_gpu_types():
    nodes = [Node("n0", 4, "T4"), Node("n1", 4, "A100"), Node("n2", 4, "A100")]
    jobs = [make_job("a", 4), make_job("b", 8, min=4)]
    world = make_world(nodes, {"a": "n0:0123", "b": "n1:0123 n2:0123"}, jobs)
    placed = place(TopologyPlacer(), world, {"a": (4, "A100"), "b": (4, "T4")})
    assert outcome(world, placed) == {"a": "n1:0123", "b": "n0:0123"}
    world = make_world(nodes, {"a": "n0:0123", "b": "n1:0123"}, [jobs[0], make_job("b", 4)])
    placed = place(TopologyPlacer(), world, {"a": (4, "A100"), "b": (4, "T4")})
    assert outcome(world, placed) == {"a": "n2:0123", "b": "n0:0123"}


def test_jobs_that_stand_in_each_others_way_stay_when_not_all_of_them_find_a_place():
    nodes = [Node("n0", 4, "T4"), Node("n1", 2, "A100")]
    jobs = [make_job("a", 4), make_job("b", 2)]
    world = make_world(nodes, {"a": "n0:0123", "b": "n1:01"}, jobs)
    placed = place(TopologyPlacer(), world, {"a": (4, "A100"), "b": (2, "T4")})
    assert outcome(world, placed) == {"a": "EXCEEDS_CLUSTER", "b": "WAITING_FOR_GPUS"}
    assert placed.layout.total_free == 0
