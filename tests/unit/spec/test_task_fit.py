"""A job that can never run says so, and what is in its way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.cluster import Node
from batuta.core.job import Job, Share, Spread, Topology
from batuta.core.node_table import most_gpus, wishes_of
from batuta.spec.task_job import check_fits
from tests.support.worlds import make_world

NODES = [
    Node("a", 8, "H100", cpus_milli=64_000, memory_mib=2**19, rack="r0", numa=(0, 0, 0, 0, 1, 1, 1, 1)),
    Node("b", 8, "H100", cpus_milli=64_000, memory_mib=2**19, rack="r1"),
    Node("c", 4, "T4", gpu_memory_mib=15_360, rack="r1"),
    Node("d", 16, "T4", taints=("spot",)),
]


def job(size: int, each: int = 1, **changes) -> Job:
    changes = {"min": size, "max": size, "gpus_per_replica": each} | changes
    return Job("j", 0.0, size=size, **changes)


def types(*names: str) -> tuple[tuple[str, float], ...]:
    return tuple((name, 1.0) for name in names)


def said(found: Job) -> list[str]:
    return [str(problem) for problem in check_fits(found, NODES)]


@pytest.mark.parametrize(
    "found",
    [
        job(1),
        job(16, 8),
        job(16, 8, gpu_types=types("H100")),
        job(4, 4, gpu_types=types("T4", "K80")),
        job(64, 8, min=8, max=64),
        job(8, 8, topology=Topology(Spread.NODE, True)),
        job(16, 8, topology=Topology(Spread.NODE, False)),
        job(1, share=Share(16_000, 50)),
        job(1, tolerations=("spot",)),
        job(16, 16, tolerations=("spot",)),
        job(8, 8, cpus_milli_per_gpu=8000, memory_mib_per_gpu=65_536),
    ],
)
def test_a_job_that_fits_has_nothing_to_say(found):
    assert said(found) == []


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (job(1, gpu_types=types("H10")), "no node has a GPU of type H10 (did you mean H100?)"),
        (
            job(1, gpu_types=types("V100m", "K80")),
            "no node has a GPU of type V100m or K80 (did you mean H100?)",
        ),
        (job(1, gpu_types=types("K80")), "no node has a GPU of type K80 (this cluster has H100, T4)"),
        (job(16, 16), "needs 16 GPUs on each node; the largest node has 8 (fewer GPUs, more nodes)"),
        (job(8, 8, gpu_types=types("T4")), "needs 8 GPUs on each node; the largest node has 4"),
        (
            job(24, 8),
            "needs at least 24 GPUs of any type; the cluster gives 16 (fewer nodes, or a smaller min_nodes)",
        ),
        (job(6, gpu_types=types("T4")), "needs at least 6 GPUs of T4; the cluster gives 4"),
        (
            job(16, 8, topology=Topology(Spread.NODE, True)),
            "needs at least 16 GPUs in one node; the best node gives 8 (gpu.topology: prefer-node",
        ),
        (
            job(16, 8, topology=Topology(Spread.RACK, True)),
            "needs at least 16 GPUs in one rack; the best rack gives 8 (gpu.topology: prefer-rack",
        ),
        (
            job(9, 9, topology=Topology(single_numa=True)),
            "needs 9 GPUs on each node; the largest node has 8",
        ),
        (
            job(8, 8, cpus_milli_per_gpu=16_000, gpu_types=types("H100")),
            "needs 128 CPUs on each node; the largest node has 64 (resources.cpus)",
        ),
        (
            job(8, 8, memory_mib_per_gpu=2**17, gpu_types=types("H100")),
            "needs 1024 GiB of memory on each node; the largest node has 512 (resources.memory)",
        ),
        (
            job(1, share=Share(90_000, 50)),
            "needs 90000 MiB on one GPU; the largest GPU has 16384 (gpu.memory)",
        ),
        (job(1, node_labels=(("pool", "x"),)), "every node that would do is tainted or lacks a label"),
    ],
)
def test_a_job_that_can_never_run_says_what_is_in_its_way(found, message):
    (first,) = said(found)
    assert first.startswith(message)


def test_one_numa_node_can_be_too_small():
    nodes = [NODES[0]]
    (problem,) = check_fits(job(8, 8, topology=Topology(single_numa=True)), nodes)
    assert problem.message == "needs 8 GPUs of one NUMA node; the largest has 4"


def test_a_replica_can_need_too_much_of_everything_together():
    nodes = [Node("a", 8, cpus_milli=1000), Node("b", 1, cpus_milli=64_000)]
    (problem,) = check_fits(job(4, 4, cpus_milli_per_gpu=1000), nodes)
    assert problem.message == "no single node has all that one replica needs"


def test_a_cluster_without_nodes_has_room_for_nothing():
    assert [problem.message for problem in check_fits(job(1), [])] == ["the cluster has no nodes"]


nodes = st.lists(
    st.builds(
        Node,
        name=st.just("n"),
        gpus=st.integers(1, 8),
        gpu_type=st.sampled_from(["T4", "H100"]),
        gpu_memory_mib=st.sampled_from([1000, 2000]),
        cpus_milli=st.sampled_from([0, 4000, 16_000]),
        memory_mib=st.sampled_from([0, 4000, 16_000]),
        rack=st.sampled_from(["", "r0", "r1"]),
        taints=st.sampled_from([(), (), ("spot",)]),
    ),
    min_size=1,
    max_size=5,
)


@given(nodes, st.data())
def test_it_agrees_with_what_the_scheduler_goes_by(found, data):
    halves = [data.draw(st.booleans()) for _ in found]
    found = [
        replace(node, name=f"n{k}", numa=tuple(gpu % 2 for gpu in range(node.gpus)) if halves[k] else ())
        for k, node in enumerate(found)
    ]
    each, replicas = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    shared = data.draw(st.booleans()) and each * replicas == 1
    wanted = job(
        each * replicas,
        each,
        gpu_types=data.draw(st.sampled_from([(), types("T4"), types("T4", "H100")])),
        cpus_milli_per_gpu=data.draw(st.sampled_from([0, 1000, 3000])),
        memory_mib_per_gpu=data.draw(st.sampled_from([0, 1000, 3000])),
        topology=Topology(data.draw(st.sampled_from(list(Spread))), data.draw(st.booleans()), data.draw(st.booleans())),
        tolerations=data.draw(st.sampled_from([(), ("spot",)])),
        share=Share(1500, 10) if shared else None,
    )
    world = make_world(found)
    accepted = dict(wanted.gpu_types)
    most = [
        gpus
        for name, gpus in zip(world.nodes.types, most_gpus(world, wishes_of(wanted)), strict=True)
        if not accepted or name in accepted
    ]
    assert (check_fits(wanted, found) == []) == (max(most, default=0) >= wanted.min)
