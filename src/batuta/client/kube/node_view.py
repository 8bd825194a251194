"""Nodes of a cluster with their GPUs, and which jobs hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cards import gpu_indices
from batuta.backends.kube.binder.requests import pod_requests
from batuta.backends.kube.binder.tenant import is_over
from batuta.backends.kube.health.people import cordoned_by, cordoned_s
from batuta.backends.kube.health.shown import Shown, read_shown
from batuta.backends.kube.operator.nodes import ill_cards, is_open, is_unhealthy, read_node
from batuta.client import answers as a
from batuta.core.health_record import WHOLE_NODE


def node_views(
    nodes: Iterable[objects.Node],
    pods: Iterable[objects.Pod],
    gpu_resources: Sequence[str] = names.GPU_RESOURCES,
) -> tuple[a.Node, ...]:
    """The nodes that have GPUs, by name."""
    guests: dict[str, list[objects.Pod]] = {}
    for pod in pods:
        if pod.spec.node_name and not is_over(pod):
            guests.setdefault(pod.spec.node_name, []).append(pod)
    views = [node_view(node, guests.get(node.metadata.name, []), gpu_resources) for node in nodes]
    return tuple(sorted((view for view in views if view is not None), key=lambda view: view.name))


def node_view(
    node: objects.Node, pods: Sequence[objects.Pod], gpu_resources: Sequence[str] = names.GPU_RESOURCES
) -> a.Node | None:
    """One node with the pods that are on it; None when it has no GPUs."""
    known = read_node(node, None, gpu_resources)
    if known is None:
        return None
    by = cordoned_by(node)
    shown, ill = read_shown(node.metadata.annotations).by_gpu(), ill_cards(node)
    return a.Node(
        name=known.name,
        state=_state(node),
        gpu_type=known.gpu_type,
        gpu_memory_mib=known.gpu_memory_mib,
        rack=known.rack,
        labels=dict(node.metadata.labels),
        address=next((one.address for one in node.status.addresses if one.type == "InternalIP"), ""),
        gpus=tuple(
            a.Gpu(index, index not in ill, tuple(tenants), health=_health(shown.get(index)))
            for index, tenants in enumerate(_tenants(known.gpus, pods, gpu_resources))
        ),
        cordoned_by=by,
        cordoned_s=cordoned_s(node) or None if by else None,
        health=_health(shown.get(WHOLE_NODE)),
    )


def _health(shown: Shown | None) -> a.Health | None:
    return None if shown is None else a.Health(**msgspec.structs.asdict(shown))


def _state(node: objects.Node) -> str:
    if is_open(node):
        return "ready"
    ready = next((one.status for one in node.status.conditions if one.type == "Ready"), "True")
    if ready != "True":
        return "lost"
    return "cordoned" if cordoned_by(node) else "unhealthy" if is_unhealthy(node) else "cordoned"


def _tenants(count: int, pods: Sequence[objects.Pod], gpu_resources: Sequence[str]) -> list[list[a.Tenant]]:
    """Who is on each GPU. Pods that were given none by number get the first that are left."""
    found: list[list[a.Tenant]] = [[] for _ in range(count)]
    unnamed: list[tuple[a.Tenant, int]] = []
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        asked = pod_requests(pod)
        share = _share(asked)
        tenant, whole = a.Tenant(owner_of(pod), share), sum(asked.get(name, 0) for name in gpu_resources)
        given = [index for index in gpu_indices(pod.metadata.annotations) if index < count]
        if (whole or share) and given:
            for index in given:
                found[index].append(tenant)
        elif whole:
            unnamed.append((tenant, whole))
    free = iter([index for index in range(count) if not found[index]])
    for tenant, whole in unnamed:
        for _, index in zip(range(whole), free, strict=False):
            found[index].append(tenant)
    return found


def _share(asked: dict[str, int]) -> a.Share | None:
    units, compute = asked.get(names.SHARE_MEMORY, 0), asked.get(names.SHARE_COMPUTE, 0)
    return a.Share(units * names.SHARE_UNIT_MIB, compute) if units or compute else None


def owner_of(pod: objects.Pod) -> str:
    """The UnifiedJob of a pod, or the pod itself, as `namespace/name`."""
    meta = pod.metadata
    return f"{meta.namespace}/{meta.labels.get(names.JOB_NAME) or meta.name}"
