"""Why a job found no place: the sentence that people read."""

import pytest

from batuta.core.cluster import Node
from batuta.core.job import Spread, Topology
from batuta.placement import TopologyPlacer
from tests.support.worlds import make_job, make_nodes, make_world, place

RACKS = [Node("n0", 4, rack="x"), Node("n1", 4, rack="x"), Node("n2", 4, rack="y")]


@pytest.mark.parametrize(
    ("nodes", "running", "job", "sentence"),
    [
        (
            make_nodes(3, 3),
            {},
            {"size": 6, "gpus_per_replica": 2},
            "needs 6 GPUs, 6 are free but not in a usable arrangement",
        ),
        (
            make_nodes(4, 4),
            {},
            {"size": 6, "topology": Topology(Spread.NODE, True)},
            "needs 6 GPUs close together, the best place has 4",
        ),
        (
            RACKS,
            {},
            {"size": 10, "topology": Topology(Spread.RACK, True)},
            "needs 10 GPUs close together, the best place has 8",
        ),
        (
            make_nodes(4),
            {},
            {"size": 2, "node_labels": (("a", "b"),)},
            "no node has the labels it wants or the taints it tolerates",
        ),
        (
            make_nodes(4, cpus_milli=1000),
            {},
            {"size": 2, "cpus_milli_per_gpu": 900},
            "GPUs are free, but the CPU or memory beside them is not",
        ),
        (
            make_nodes(4, 4),
            {"a": "n0:012"},
            {"size": 6},
            "needs 6 GPUs, 5 of 8 are left by the jobs that go first",
        ),
        (make_nodes(4, 4), {}, {"size": 9}, "needs 9 GPUs, the cluster has 8 that it may use"),
        (
            make_nodes(4, 4),
            {"a": "n0:012"},
            {"size": 8, "min": 6},
            "needs 6 GPUs, 5 of 8 are left by the jobs that go first",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_start(nodes, running, job, sentence):
    size = job.pop("size")
    world = make_world(
        nodes, running, [*(make_job(name, 3) for name in running), make_job("x", size, submit_s=1.0, **job)]
    )
    (failure,) = place(TopologyPlacer(), world, {"x": size}).failures.values()
    assert failure.reason.sentence(failure.evidence) == sentence


def test_growth_counts_what_is_missing():
    jobs = [make_job("a", 4, max=8, sizes=(4, 8)), make_job("b", 2)]
    world = make_world(make_nodes(4, 4), {"a": "n0:0123", "b": "n1:01"}, jobs)
    (failure,) = place(TopologyPlacer(), world, {"a": 8}).failures.values()
    assert failure.reason.sentence(failure.evidence) == "needs 4 GPUs, 2 of 8 are left by the jobs that go first"


def test_ill_gpus_do_not_count():
    from batuta.core import event as ev
    from batuta.core.apply import apply

    world = make_world(make_nodes(4, 4), {}, [make_job("a", 8)])
    apply(world, ev.GpuFailed(1.0, "n0", 2))
    (failure,) = place(TopologyPlacer(), world, {"a": 8}).failures.values()
    assert failure.reason.sentence(failure.evidence) == "needs 8 GPUs, the cluster has 7 that it may use"
