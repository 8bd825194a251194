"""How many GPUs a job could have if it were alone, by what it wants of nodes."""

from dataclasses import replace
from typing import Any

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import Share, Spread, Topology
from batuta.core.node_table import most_gpus, wishes_of, within_reach
from batuta.core.world import World
from tests.support.worlds import make_job, make_world


def cluster() -> World:
    """Rack r1: 8 GPUs on two NUMA nodes, 4 with a label. Rack r2: 4 tainted, 4 of type b with little CPU."""
    return make_world(
        [
            Node("big", 8, gpu_type="a", rack="r1", numa=(0, 0, 0, 0, 1, 1, 1, 1)),
            Node("x", 4, gpu_type="a", rack="r1", labels=(("zone", "x"),)),
            Node("spot", 4, gpu_type="a", rack="r2", taints=("spot",)),
            Node("poor", 4, gpu_type="b", rack="r2", cpus_milli=2500, memory_mib=100, gpu_memory_mib=1000),
        ]
    )


@pytest.mark.parametrize(
    ("wishes", "most"),
    [
        ({}, [12, 4]),
        ({"tolerations": ("spot",)}, [16, 4]),
        ({"node_labels": (("zone", "x"),)}, [4, 0]),
        ({"node_labels": (("zone", "nowhere"),)}, [0, 0]),
        ({"gpus_per_replica": 3}, [9, 3]),
        ({"gpus_per_replica": 8}, [8, 0]),
        ({"cpus_milli_per_gpu": 1000}, [12, 2]),
        ({"memory_mib_per_gpu": 101}, [12, 0]),
        ({"topology": Topology(Spread.NODE, required=True)}, [8, 4]),
        ({"topology": Topology(Spread.NODE)}, [12, 4]),
        ({"topology": Topology(Spread.RACK, required=True), "tolerations": ("spot",)}, [12, 4]),
        ({"topology": Topology(single_numa=True)}, [8, 4]),
        ({"share": Share(memory_mib=2000)}, [12, 0]),
    ],
)
def test_by_type(wishes: dict[str, Any], most: list[int]) -> None:
    job = make_job("j", wishes.get("gpus_per_replica", 1), **wishes)
    assert most_gpus(cluster(), wishes_of(job)) == most


@pytest.mark.parametrize(
    ("event", "most"),
    [
        (ev.NodeLost(1.0, "big"), [4, 4]),
        (ev.NodeCordoned(1.0, "x"), [8, 4]),
        (ev.GpuFailed(1.0, "big", 3), [11, 4]),
        (ev.NodeAdded(1.0, Node("new", 2, gpu_type="c")), [12, 4, 2]),
    ],
)
def test_it_follows_what_happens_to_nodes(event: ev.Event, most: list[int]) -> None:
    world = cluster()
    apply(world, ev.JobSubmitted(0.0, make_job("j")))
    apply(world, event)
    assert world.caches.reach[wishes_of(make_job("j"))] == most


@pytest.mark.parametrize(
    ("size", "low", "high", "wishes", "narrow"),
    [
        (4, 1, 4, {}, False),
        (4, 1, 100, {}, False),
        (8, 1, 100, {}, True),
        (1, 1, 4, {"node_labels": (("zone", "x"),)}, False),
        (1, 1, 5, {"node_labels": (("zone", "x"),)}, True),
    ],
)
def test_only_who_wants_more_than_that_is_marked(
    size: int, low: int, high: int, wishes: dict[str, Any], narrow: bool
) -> None:
    """What all see, a policy sees too: there only a size beyond all GPUs is worth a mark."""
    nodes = [Node("n0", 4, labels=(("zone", "x"),)), Node("n1", 2)]
    world = make_world(nodes, {}, [make_job("j", size, min=low, max=high, **wishes)])
    assert world.jobs.narrow == int(narrow)
    cap, reach = within_reach(world, None, None)
    if narrow:
        assert cap is not None
        assert reach is not None
        assert cap.tolist() == [min(high, int(reach.most[0]))]
    else:
        assert (cap, reach) == (None, None)


def test_whoever_runs_keeps_what_it_has_though_it_could_not_start_there_now() -> None:
    world = make_world([Node("n0", 4)], {"a": "n0:0123"}, [make_job("a", 4)], cordoned=["n0"])
    cap, reach = within_reach(world, None, None)
    assert cap is not None
    assert reach is not None
    assert (cap.tolist(), reach.rows.tolist(), reach.most.tolist()) == ([4], [0], [0])


def test_the_mark_follows_a_change_of_the_request_and_leaves_with_the_job() -> None:
    job = make_job("a", 2)
    world = make_world([Node("n0", 4)], {}, [job])
    apply(world, ev.JobChanged(1.0, replace(job, size=5, min=5, max=5)))
    assert world.jobs.narrow == 1
    apply(world, ev.JobChanged(2.0, job))
    assert world.jobs.narrow == 0
