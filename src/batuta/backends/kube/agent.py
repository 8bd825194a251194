"""The node agent's side of the cluster: the pods of its node and their jobs, and the annotations it writes.

Annotations that no longer hold are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Conflict, NotFound
from batuta.backends.kube.client.kinds import NODE, POD

_log = logging.getLogger("batuta.agent")
PodKey: TypeAlias = tuple[str, str]  # namespace and name
Annotations: TypeAlias = Mapping[str, str]
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


class NodeAnnotator:
    """The annotations of one node. What is there already is not written again."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self.writes = 0
        self.failures = 0

    async def write(self, node: Annotations, pods: Mapping[PodKey, Annotations], there: Iterable[objects.Pod]) -> None:
        """`pods`: what those shall carry that use GPUs; all others of the node that are `there` lose it."""
        body = {"metadata": {"annotations": dict(node)}}
        await self._try(f"node {self._node}", self._api.patch(NODE, self._node, body))
        for pod in there:
            meta = pod.metadata
            if changes := _changes(meta.annotations, pods.get((meta.namespace, meta.name), {})):
                # With its uid, because another pod may have the name by now.
                metadata = {"uid": meta.uid, "annotations": changes}
                write = self._api.patch(POD, meta.name, {"metadata": metadata}, meta.namespace)
                await self._try(f"pod {meta.namespace}/{meta.name}", write, may_be_gone=True)

    async def _try(self, what: str, write: Coroutine[None, None, object], may_be_gone: bool = False) -> None:
        """A write that fails is made again with the next report: nothing here is worth a crash."""
        try:
            await write
        except ApiError as error:
            # A pod that has gone took its annotations with it.
            if not may_be_gone or not isinstance(error, NotFound | Conflict):
                self.failures += 1
                _log.warning("cannot annotate %s: %s", what, error)
                return
        self.writes += 1


def _changes(now: Annotations, wanted: Annotations) -> dict[str, str | None]:
    """What has to be written so that all of our annotations, and only ours, are as wanted."""
    gone = {key: None for key in now if key.startswith(names.GPU_PREFIX) and key not in wanted}
    return {**gone, **{key: text for key, text in wanted.items() if now.get(key) != text}}
