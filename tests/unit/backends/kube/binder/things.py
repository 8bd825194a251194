"""Nodes and pods for tests of the binder, decoded from what the API server would send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from batuta.backends.kube import objects
from batuta.backends.kube.binder import Binder, Cluster, Group, Member, Outcome

GPU = "nvidia.com/gpu"


def node(name: str, *, labels: Mapping[str, str] | None = None, taints: Any = (), **more: Any) -> objects.Node:
    """A node with 8 CPUs, 32Gi, 110 pods and no GPUs, unless said otherwise."""
    has = {"cpu": "8", "memory": "32Gi", "pods": "110", **_resources(more)}
    annotations = more.get("annotations", {})
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, **(labels or {})},
                "annotations": annotations,
            },
            "spec": {"unschedulable": more.get("unschedulable", False), "taints": list(taints)},
            "status": {"allocatable": has, "capacity": {**has, **more.get("capacity", {})}},
        },
        objects.Node,
    )


def pod(name: str, *, on: str = "", spec: Mapping[str, Any] | None = None, **more: Any) -> objects.Pod:
    """A pod with one container that asks for `cpu`, `memory`, `gpu` and `requests`."""
    requests = _resources(more)
    full: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {"requests": requests}}],
        **(spec or {}),
    }
    if on:
        full["nodeName"] = on
    meta: dict[str, Any] = {
        "name": name,
        "namespace": more.get("namespace", "default"),
        "uid": more.get("uid", name),
        "labels": more.get("labels", {}),
        "annotations": more.get("annotations", {}),
    }
    if more.get("terminating"):
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return msgspec.convert(
        {"metadata": meta, "spec": full, "status": {"phase": more.get("phase", "Pending")}}, objects.Pod
    )


def cluster(*things: objects.Node | objects.Pod) -> Cluster:
    made = Cluster()
    for one in things:
        if isinstance(one, objects.Node):
            made.node_set(one)
        else:
            made.pod_set(one)
    return made


def single(one: objects.Pod, **more: Any) -> Group:
    """A group of one pod."""
    return Group(one.metadata.name, (Member(one),), **more)


def gang(key: str, *pods: objects.Pod, **more: Any) -> Group:
    return Group(key, tuple(map(Member, pods)), **more)


def bind(where: Cluster, *groups: Group | objects.Pod, now_s: float = 0.0) -> Outcome:
    """One cycle of a binder with the default profile."""
    wanted = [single(one) if isinstance(one, objects.Pod) else one for one in groups]
    return Binder(where).schedule(wanted, now_s)


def places(outcome: Outcome) -> dict[str, str]:
    """Pod name → node."""
    return {one.pod.metadata.name: one.node for one in outcome.bindings}


def message(where: Cluster, one: objects.Pod | Group) -> str:
    """Why a pod cannot be placed; empty when it can."""
    outcome = bind(where, one)
    return outcome.refusals[0].message if outcome.refusals else ""


def _resources(more: Mapping[str, Any]) -> dict[str, str]:
    short = {"cpu": "cpu", "memory": "memory", "gpu": GPU, "pods": "pods"}
    found = {name: str(more[word]) for word, name in short.items() if word in more}
    return {**found, **more.get("requests", {})}
