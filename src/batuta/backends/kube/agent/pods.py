"""The pods of one node, and which job each belongs to."""

from __future__ import annotations

from typing import Final, NamedTuple

from batuta.backends.kube import names, objects

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
    """Whether none of its containers will run again."""
    return pod.status.phase in _FINISHED
