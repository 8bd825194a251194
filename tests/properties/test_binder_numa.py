"""The binder says of a pod and a node what the kubelet's way of merging topology hints says of them."""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.backends.kube.binder import Cluster, Need
from batuta.backends.kube.binder.plugins.numa import Numa
from tests.support.examples import examples
from tests.unit.backends.kube.binder.test_numa import report, spec
from tests.unit.backends.kube.binder.things import GPU, node, pod

CAPACITY = 4
Zones = list[dict[str, int]]
Mask = tuple[int, ...]


def hints(zones: Zones, resource: str, wanted: int) -> list[tuple[Mask, bool]]:
    """Sets of NUMA nodes with enough left; preferred when none smaller would do even on an empty node."""
    masks = [mask for size in range(1, len(zones) + 1) for mask in combinations(range(len(zones)), size)]
    possible = [len(mask) for mask in masks if CAPACITY * len(mask) >= wanted]
    fewest = min(possible, default=len(zones))
    return [(mask, len(mask) == fewest) for mask in masks if sum(zones[zone][resource] for zone in mask) >= wanted]


def merged(zones: Zones, wanted: dict[str, int], policy: str) -> Mask | None:
    """The best combination of hints that the policy admits: all preferred, all for the same NUMA nodes."""
    offers = [
        [
            mask
            for mask, preferred in hints(zones, name, value)
            if preferred and (policy != "single-numa-node" or len(mask) == 1)
        ]
        for name, value in wanted.items()
    ]
    agreed = [masks[0] for masks in product(*offers) if len(set(masks)) == 1]
    return min(agreed, key=lambda mask: (len(mask), mask), default=None)


def kubelet_admits(zones: Zones, containers: list[dict[str, int]], policy: str, scope: str) -> bool:
    if scope == "pod":
        total = {name: sum(one.get(name, 0) for one in containers) for name in ("cpu", GPU)}
        containers = [{name: value for name, value in total.items() if value}]
    left = [dict(zone) for zone in zones]
    for wanted in containers:
        if not wanted:
            continue
        mask = merged(left, wanted, policy)
        if mask is None:
            return False
        for name, value in wanted.items():
            for zone in mask:
                part = min(value, left[zone][name])
                left[zone][name] -= part
                value -= part
    return True


@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["single-numa-node", "restricted"]),
    scope=st.sampled_from(["pod", "container"]),
)
@settings(max_examples=examples(150), deadline=None)
def test_the_binder_and_the_kubelet_agree(seed: int, policy: str, scope: str) -> None:
    dice = random.Random(seed)
    reports: list[Zones] = [
        [{"cpu": dice.randint(0, CAPACITY), GPU: dice.randint(0, CAPACITY)} for _ in range(dice.randint(1, 3))]
        for _ in range(6)
    ]
    cluster = Cluster()
    for number, zones in enumerate(reports):
        cluster.node_set(node(f"n{number}", cpu=99, memory=99, gpu=99))
        found = report(*zones, policy=policy, scope=scope)
        found.metadata.name = f"n{number}"
        cluster.topology_set(found)
    containers: list[dict[str, int]] = [
        {name: value for name, value in (("cpu", dice.randint(1, 5)), (GPU, dice.randint(0, 5))) if value}
        for _ in range(dice.randint(1, 3))
    ]
    resources: list[dict[str, Any]] = [{"memory": "1", **{k: str(v) for k, v in one.items()}} for one in containers]
    one = pod("p", spec=spec(*resources))
    need = Need(cluster.class_of(one))

    fits = Numa().filter(need, cluster, np.arange(len(reports)))

    for number, zones in enumerate(reports):
        expected = kubelet_admits(zones, containers, policy, scope)
        assert bool(fits[number]) == expected, (zones, containers)
        assert (Numa().check(need, cluster, number) is None) == expected, (zones, containers)
