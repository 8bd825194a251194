"""Which requests the kubelet gives from particular NUMA nodes, by the rules of its topology manager."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.backends.kube import objects
from batuta.backends.kube.binder.requests import ContainerNeed, Needs, container_needs, is_guaranteed


def aligned_containers(spec: objects.PodSpec) -> tuple[ContainerNeed, ...]:
    """What each container takes from NUMA nodes.

    Devices always count. CPUs do for pods with the QoS class Guaranteed that ask for whole ones, memory for
    Guaranteed pods; neither does where resources are stated for the whole pod.
    """
    stated = spec.resources
    pinned = is_guaranteed(spec) and not (stated is not None and (stated.requests or stated.limits))
    return tuple(
        ContainerNeed(
            tuple(
                (name, value) for name, value in one.requests if value and _is_aligned(name, value, pinned)
            ),
            one.kept,
        )
        for one in container_needs(spec)
    )


def aligned_pod(containers: Iterable[ContainerNeed]) -> Needs:
    """What a pod as a whole takes from NUMA nodes: the most at any one time."""
    total: dict[str, int] = {}
    peak: dict[str, int] = {}
    # Init containers come first, and a sidecar among them goes on while later ones run.
    for container in containers:
        for name, value in container.requests:
            if container.kept:
                total[name] = total.get(name, 0) + value
            else:
                peak[name] = max(peak.get(name, 0), total.get(name, 0) + value)
    return tuple(sorted((name, max(total.get(name, 0), peak.get(name, 0))) for name in {*total, *peak}))


def _is_aligned(name: str, value: int, pinned: bool) -> bool:
    if "/" in name:
        return True
    if name == "cpu":
        return pinned and value % 1000 == 0
    return pinned and (name == "memory" or name.startswith("hugepages-"))
