"""A pod never goes where the kubelet's topology manager would refuse it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from batuta.backends.kube import objects
from batuta.backends.kube.binder import Binder, Cluster, Group, Member
from tests.support.kube.cluster_invariants import check_cluster
from tests.unit.backends.kube.binder.things import GPU, bind, cluster, message, node, pod, single

REFUSED = "0/1 nodes are available: 1 cannot align the pod's resources on NUMA nodes"


def report(
    *zones: dict[str, Any], policy: str = "single-numa-node", scope: str = "container", **more: str
) -> objects.NodeResourceTopology:
    """Each zone: resource → what is available of it; `*_capacity` where that is more."""
    stated = {"topologyManagerPolicy": policy, "topologyManagerScope": scope, **more}
    return msgspec.convert(
        {
            "metadata": {"name": "n"},
            "attributes": [{"name": name, "value": value} for name, value in stated.items()],
            "zones": [
                {
                    "name": f"node-{number}",
                    "type": "Node",
                    "resources": [
                        {"name": name, "available": str(free), "capacity": str(max(int(free), 4))}
                        for name, free in zone.items()
                    ],
                }
                for number, zone in enumerate(zones)
            ],
        },
        objects.NodeResourceTopology,
    )


def aligned(*zones: dict[str, Any], **more: Any) -> Cluster:
    where = cluster(node("n", cpu=16, memory="64Gi", gpu=8))
    where.topology_set(report(*zones, **more))
    return where


def spec(*containers: dict[str, str], guaranteed: bool = True, init: Any = ()) -> dict[str, Any]:
    def container(number: int, resources: dict[str, str]) -> dict[str, Any]:
        both = {"requests": resources, **({"limits": resources} if guaranteed else {})}
        return {"name": f"c{number}", "resources": both}

    return {
        "containers": [container(number, resources) for number, resources in enumerate(containers)],
        "initContainers": [container(10 + number, resources) for number, resources in enumerate(init)],
    }


def needs(cpu: str = "1", gpu: int = 0) -> dict[str, str]:
    return {"cpu": cpu, "memory": "1", **({GPU: str(gpu)} if gpu else {})}


@pytest.mark.parametrize(
    ("zones", "wanted", "fits"),
    [
        ([{GPU: 2}, {GPU: 2}], spec(needs(gpu=2)), True),
        ([{GPU: 1}, {GPU: 1}], spec(needs(gpu=2)), False),
        # CPU and GPU must come from the same NUMA node.
        ([{GPU: 1, "cpu": 0}, {GPU: 0, "cpu": 4}], spec(needs("2", gpu=1)), False),
        ([{GPU: 1, "cpu": 2}, {GPU: 0, "cpu": 4}], spec(needs("2", gpu=1)), True),
        # Only Guaranteed pods with whole CPUs have CPUs of their own.
        ([{"cpu": 1}, {"cpu": 1}], spec(needs("2")), False),
        ([{"cpu": 1}, {"cpu": 1}], spec(needs("1500m")), True),
        ([{"cpu": 1}, {"cpu": 1}], spec(needs("2"), guaranteed=False), True),
        # Devices count for every pod.
        ([{GPU: 1}, {GPU: 1}], spec(needs(gpu=2), guaranteed=False), False),
        # What the report does not speak of is not aligned.
        ([{"cpu": 4}, {"cpu": 4}], spec(needs(gpu=2)), True),
        ([{"memory": 0}, {"memory": 0}], spec(needs()), False),
    ],
)
def test_a_single_numa_node_must_have_all_that_is_aligned(zones: Any, wanted: Any, fits: bool) -> None:
    assert message(aligned(*zones), pod("p", spec=wanted)) == ("" if fits else REFUSED)


@pytest.mark.parametrize(
    ("scope", "containers", "fits"),
    [
        ("container", [needs(gpu=2), needs(gpu=2)], True),
        ("pod", [needs(gpu=2), needs(gpu=2)], False),
        ("pod", [needs(gpu=1), needs(gpu=1)], True),
        ("container", [needs(gpu=2), needs(gpu=1), needs(gpu=2)], False),
    ],
)
def test_containers_are_aligned_one_by_one_or_the_pod_as_a_whole(scope: str, containers: Any, fits: bool) -> None:
    where = aligned({GPU: 2}, {GPU: 2}, scope=scope)

    assert message(where, pod("p", spec=spec(*containers))) == ("" if fits else REFUSED)


def test_what_an_init_container_had_is_free_for_the_others() -> None:
    where = aligned({GPU: 2})

    assert bind(where, pod("p", spec=spec(needs(gpu=2), init=[needs(gpu=2)]))).bindings


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({"policy": "none"}, True),
        ({"policy": "best-effort"}, True),
        ({"policy": "restricted"}, False),
        ({"policy": "single-numa-node"}, False),
    ],
)
def test_only_strict_policies_refuse(settings: Any, fits: bool) -> None:
    where = aligned({GPU: 1}, {GPU: 1}, **settings)

    assert message(where, pod("p", spec=spec(needs(gpu=2)))) == ("" if fits else REFUSED)


def test_restricted_accepts_as_many_numa_nodes_as_an_empty_node_would_need() -> None:
    """A NUMA node has 4 GPUs at most, so 6 can only come from two, which single-numa-node never allows."""
    assert bind(aligned({GPU: 4}, {GPU: 4}, policy="restricted"), pod("p", spec=spec(needs(gpu=6)))).bindings
    assert message(aligned({GPU: 4}, {GPU: 4}), pod("p", spec=spec(needs(gpu=6)))) == REFUSED


def test_restricted_refuses_resources_that_need_different_numbers_of_numa_nodes() -> None:
    where = aligned({GPU: 4, "cpu": 4}, {GPU: 4, "cpu": 4}, policy="restricted")

    assert message(where, pod("p", spec=spec(needs("2", gpu=6)))) == REFUSED


def test_kubelets_that_do_not_pin_cpus_or_memory_do_not_align_them() -> None:
    loose = {"cpuManagerPolicy": "none", "memoryManagerPolicy": "None"}

    assert bind(aligned({"cpu": 1, "memory": 0}, **loose), pod("p", spec=spec(needs("4")))).bindings


def test_the_older_way_to_state_the_policy_is_understood() -> None:
    where = cluster(node("n", gpu=8))
    old = report({GPU: 1}, {GPU: 1})
    where.topology_set(msgspec.structs.replace(old, attributes=[], topology_policies=["SingleNUMANodePodLevel"]))

    assert message(where, pod("p", gpu=2)) == REFUSED


class TestBetweenReports:
    def test_pods_that_were_sent_are_taken_off_every_numa_node_until_a_report_shows_them(self) -> None:
        where = aligned({GPU: 2}, {GPU: 2})
        binder = Binder(where)
        first = pod("first", gpu=1)
        assert binder.schedule([single(first)], 0.0).bindings

        # It may have landed on either NUMA node, so neither is sure to have two left.
        assert not binder.schedule([single(pod("second", gpu=2))], 0.0).bindings

        where.pod_set(pod("first", gpu=1, on="n", annotations={"batuta.dev/gpus": "0"}, phase="Running"))
        where.topology_set(report({GPU: 1}, {GPU: 2}))
        assert binder.schedule([single(pod("second", gpu=2))], 1.0).bindings
        check_cluster(where)

    def test_a_report_that_came_before_the_pod_ran_does_not_show_it(self) -> None:
        where = aligned({GPU: 2}, {GPU: 2})
        binder = Binder(where)
        binder.schedule([single(pod("first", gpu=1))], 0.0)

        where.topology_set(report({GPU: 2}, {GPU: 2}))

        assert not binder.schedule([single(pod("second", gpu=2))], 0.0).bindings

    def test_a_change_of_a_pod_that_a_report_shows_does_not_count_it_twice(self) -> None:
        where = aligned({GPU: 2}, {GPU: 2})
        where.pod_set(pod("first", gpu=1, on="n", phase="Running"))
        where.topology_set(report({GPU: 1}, {GPU: 2}))

        where.pod_set(pod("first", gpu=1, on="n", phase="Running", labels={"new": "label"}))

        assert bind(where, pod("second", gpu=2)).bindings


class TestAskedFor:
    def group(self, gpus: int = 2) -> Group:
        return Group("g", (Member(pod("p", gpu=gpus)),), single_numa=True)

    def test_one_numa_node_can_be_asked_for_whatever_the_kubelet_does(self) -> None:
        assert message(aligned({GPU: 1}, {GPU: 1}, policy="none"), self.group()) == REFUSED
        assert bind(aligned({GPU: 2}, {GPU: 0}, policy="none"), self.group()).bindings

    def test_a_node_that_does_not_report_cannot_promise_it(self) -> None:
        assert message(cluster(node("n", gpu=8)), self.group()) == (
            "0/1 nodes are available: 1 does not report its NUMA nodes"
        )


def test_a_topology_that_goes_is_forgotten_and_one_that_comes_first_is_kept() -> None:
    where = aligned({GPU: 1}, {GPU: 1})
    where.topology_gone("n")
    assert bind(where, pod("p", gpu=2)).bindings

    early = Cluster()
    early.topology_set(report({GPU: 1}, {GPU: 1}))
    early.node_set(node("n", gpu=8))
    assert message(early, pod("p", gpu=2)) == REFUSED
