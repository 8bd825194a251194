"""The node agent's side of the cluster: the pods of its node and their jobs, and the annotations it writes.

Annotations that no longer hold are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Conflict, NotFound
from batuta.backends.kube.client.kinds import NODE, POD

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


_log = logging.getLogger("batuta.agent")

PodKey: TypeAlias = tuple[str, str]
"""Namespace and name."""
Annotations: TypeAlias = Mapping[str, str]
MANAGER: Final = "batuta-agent"


class NodeAnnotator:
    """The annotations of one node. What is there already is not written again."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self.writes = 0
        self.failures = 0

    async def write(self, node: Annotations, pods: Mapping[PodKey, Annotations], there: Iterable[objects.Pod]) -> None:
        """`pods`: what those shall carry that use GPUs; all others of the node that are `there` lose it."""
        await self._try(f"node {self._node}", self._write_node(node))
        for pod in there:
            key = (pod.metadata.namespace, pod.metadata.name)
            changes = _changes(pod.metadata.annotations, pods.get(key, {}))
            if changes:
                await self._try(f"pod {'/'.join(key)}", self._write_pod(pod, changes))

    async def _write_node(self, annotations: Annotations) -> None:
        await self._api.patch(NODE, self._node, {"metadata": {"annotations": dict(annotations)}})

    async def _write_pod(self, pod: objects.Pod, changes: Mapping[str, str | None]) -> None:
        # With its uid, because another pod may have the name by now.
        metadata: dict[str, Any] = {"uid": pod.metadata.uid, "annotations": dict(changes)}
        try:
            await self._api.patch(POD, pod.metadata.name, {"metadata": metadata}, pod.metadata.namespace)
        except (NotFound, Conflict):
            return  # it has gone, and its annotations with it

    async def _try(self, what: str, write: Coroutine[None, None, None]) -> None:
        """A write that fails is made again with the next report: nothing here is worth a crash."""
        try:
            await write
            self.writes += 1
        except ApiError as error:
            self.failures += 1
            _log.warning("cannot annotate %s: %s", what, error)


def _changes(now: Annotations, wanted: Annotations) -> dict[str, str | None]:
    """What has to be written so that all of our annotations, and only ours, are as wanted."""
    gone = {key: None for key in now if key.startswith(names.GPU_PREFIX) and key not in wanted}
    return {**gone, **{key: text for key, text in wanted.items() if now.get(key) != text}}
