"""The node agent's side of the cluster: the pods of its node and their jobs, and the annotations of the node.

An agent writes on its own node alone. What belongs to pods the operator writes on them (`operator/pod_usage.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.kinds import NODE

MANAGER: Final = "batuta-agent"
_STATIC: Final = ("kubernetes.io/config.hash", "kubernetes.io/config.mirror")
"""Annotations of a static pod: its kubelet calls it by these, and not by the uid that the API server gave."""
_GROUP_LABELS: Final = (
    names.JOB_NAME,
    names.GANG_NAME,
    names.POD_GROUP,
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
)
_FINISHED: Final = ("Succeeded", "Failed")


class PodIdentity(NamedTuple):
    """Who a pod is: by all its uids, and whose."""

    uids: frozenset[str]
    job: str
    name: str
    namespace: str


def identity_of(pod: objects.Pod) -> PodIdentity:
    """A pod belongs to the job that its labels name, else to its controller, else to itself."""
    meta = pod.metadata
    named = next((meta.labels[label] for label in _GROUP_LABELS if meta.labels.get(label)), "")
    controller = next((owner.name for owner in meta.owner_references if owner.controller), "")
    uids = {meta.uid, *(meta.annotations[key] for key in _STATIC if meta.annotations.get(key))}
    return PodIdentity(frozenset(uids), named or controller or meta.name, meta.name, meta.namespace)


def has_ended(pod: objects.Pod) -> bool:
    return pod.status.phase in _FINISHED


@dataclass(frozen=True, slots=True)
class NodeAnnotator:
    """Writes annotations of one node."""

    _api: Api
    _node: str

    async def write(self, annotations: Mapping[str, str]) -> objects.Node:
        """Writes these, removes those that are empty, and returns the node with what others wrote. Raises ApiError."""
        written = {name: text or None for name, text in annotations.items()}
        return await self._api.patch(NODE, self._node, {"metadata": {"annotations": written}})
