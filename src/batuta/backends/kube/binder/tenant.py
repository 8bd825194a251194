"""A pod that holds something of a node, whoever put it there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cards import NO_GPUS, Holding, gpu_indices
from batuta.backends.kube.binder.pod_class import PodClass
from batuta.backends.kube.binder.requests import Needs, is_resized, pod_requests

_OVER: Final = frozenset({"Succeeded", "Failed"})
_BEGUN: Final = _OVER | {"Running"}


@dataclass(frozen=True, slots=True)
class Tenant:
    """What a pod holds. Two that hold the same are equal, so that an update without news costs nothing."""

    key: str
    uid: str
    node: str
    cls: PodClass
    requests: Needs
    holding: Holding
    namespace: str
    labels: Mapping[str, str]
    terminating: bool = False
    running: bool = False
    """Whether the kubelet has let it in, so that what it holds shows in the kubelet's reports."""


def pod_key(pod: objects.Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def is_over(pod: objects.Pod) -> bool:
    """A pod that has ended holds nothing."""
    return pod.status.phase in _OVER


def has_begun(pod: objects.Pod) -> bool:
    """A pod whose processes run, or did."""
    return pod.status.phase in _BEGUN


def tenant_of(pod: objects.Pod, cls: PodClass) -> Tenant:
    """What a pod that is bound holds of its node."""
    meta = pod.metadata
    requests = tuple(pod_requests(pod).items()) if is_resized(pod) else cls.requests
    return Tenant(
        key=pod_key(pod),
        uid=meta.uid,
        node=pod.spec.node_name,
        cls=cls,
        requests=requests,
        holding=holding_of(cls, gpu_indices(meta.annotations), expected_load(meta.annotations)),
        namespace=meta.namespace,
        labels=meta.labels,
        terminating=bool(meta.deletion_timestamp),
        running=pod.status.phase == "Running",
    )


def holding_of(cls: PodClass, gpus: tuple[int, ...], load: float | None) -> Holding:
    """What a pod of a class holds of the GPUs that it was given."""
    if cls.gpus:
        return Holding(cls.gpus, gpus[: cls.gpus])
    if cls.share is not None:
        return Holding(1, gpus[:1], cls.share, load or 0.0)
    return NO_GPUS


def expected_load(annotations: Mapping[str, str]) -> float | None:
    """How busy a pod is expected to keep its GPU, from 0 to 1; None where nobody says."""
    try:
        said = float(annotations[names.EXPECTED_UTILISATION])
    except (KeyError, ValueError):
        return None
    return min(max(said, 0.0), 1.0) if math.isfinite(said) else None
