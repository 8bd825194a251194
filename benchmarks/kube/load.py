"""What there is to schedule: pods with one GPU each, alone or in gangs that both schedulers understand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.support.kube.control_plane import ControlPlane

_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups"
_PODS = "/api/v1/namespaces/{}/pods"
_THREADS = 8


@contextmanager
def pods(cluster: ControlPlane, scheduler: str, count: int, gang: int = 0) -> Iterator[str]:
    """Pods that wait for this scheduler, in a namespace of their own: its name. They are gone afterwards."""
    namespace = cluster.new_namespace()
    groups = range(-(-count // gang)) if gang else ()
    cluster.api.create_all(_GROUPS.format(namespace), (_group(k, gang) for k in groups), _THREADS)
    bodies = (_pod(k, scheduler, k // gang if gang else None) for k in range(count))
    cluster.api.create_all(_PODS.format(namespace), bodies, _THREADS)
    try:
        yield namespace
    finally:
        _delete(cluster, (f"{_PODS.format(namespace)}/{_name(k)}" for k in range(count)))


def _delete(cluster: ControlPlane, paths: Iterable[str]) -> None:
    # One by one: thousands at once take longer than the API server gives a request.
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda path: cluster.api.delete(path, gracePeriodSeconds=0), paths))


def check(cluster: ControlPlane, namespace: str, gpus_per_node: int) -> None:
    """Raises unless every pod has a node, and no node more pods than GPUs."""
    nodes = Counter(pod["spec"].get("nodeName", "") for pod in cluster.api.items(_PODS.format(namespace)))
    assert "" not in nodes, f"{nodes['']} pods have no node"
    assert max(nodes.values()) <= gpus_per_node, f"a node has more pods than GPUs: {nodes.most_common(1)}"


def _pod(number: int, scheduler: str, group: int | None) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"}}
    spec: dict[str, Any] = {
        "schedulerName": scheduler,
        "containers": [{"name": "main", "image": "none", "resources": resources}],
    }
    if group is not None:
        spec["schedulingGroup"] = {"podGroupName": f"gang-{group}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _name(number)}, "spec": spec}


def _name(number: int) -> str:
    return f"pod-{number}"


def _group(number: int, members: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": f"gang-{number}"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": members}}},
    }
