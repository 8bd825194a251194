"""The objects that the operator watches, by key, without those of finished jobs.

Of a finished UnifiedJob only the name is kept until its object is deleted, so that the operator's memory does
not grow with the number of jobs. When a finished object changes, the operator reads it anew.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.client.api import Propagation
from batuta.backends.kube.client.informer import Change, ChangeType, key_of
from batuta.backends.kube.operator.gangs import Owners
from batuta.backends.kube.operator.workqueue import WriteQueue, delete_object
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.core.job import JobId

_ENDS = ("Complete", "Failed", "Succeeded")  # conditions of UnifiedJobs, Jobs and MPIJobs that are over
ASK_AGAIN_S = 30.0  # an object that should be gone and is not is asked to go again after this


class FinishedJobs:
    """By job: the uid of its object. What is to be deleted in time is asked to go. For one thread."""

    def __init__(self) -> None:
        self._uid: dict[JobId, str] = {}
        self._expires: list[tuple[float, JobId, str]] = []
        """A heap: when an object is to be deleted, by the word of its user."""

    def __contains__(self, job: JobId) -> bool:
        return job in self._uid

    def __len__(self) -> int:
        return len(self._uid)

    def add(self, job: JobId, uid: str, expires_s: float) -> None:
        self._uid[job] = uid
        if expires_s < math.inf:
            heapq.heappush(self._expires, (expires_s, job, uid))

    def discard(self, job: JobId) -> None:
        """Its object is gone, or is looked at anew."""
        self._uid.pop(job, None)

    def has_pod(self, pod: objects.Pod) -> bool:
        name = pod.metadata.labels.get(names.JOB_NAME)
        return name is not None and is_over(pod) and f"{pod.metadata.namespace}/{name}" in self._uid

    def owns(self, meta: objects.Meta) -> bool:
        uid = self._uid.get(f"{meta.namespace}/{meta.labels.get(names.JOB_NAME, '')}")
        return uid is not None and any(owner.uid == uid for owner in meta.owner_references)

    def drive(self, writes: WriteQueue, now_s: float) -> None:
        """Asks those objects to go whose time has come, again and again until they are gone."""
        while self._expires and self._expires[0][0] <= now_s:
            _, job, uid = heapq.heappop(self._expires)
            if self._uid.get(job) == uid:
                delete_unified_job(writes, job, uid, now_s)
                heapq.heappush(self._expires, (now_s + ASK_AGAIN_S, job, uid))

    def next_s(self) -> float:
        return self._expires[0][0] if self._expires else math.inf


def delete_unified_job(writes: WriteQueue, job: JobId, uid: str, now_s: float) -> None:
    """Deletes the object of a job, and with it all that it owns."""
    namespace, _, name = job.partition("/")
    meta = objects.Meta(name=name, namespace=namespace, uid=uid)
    do = partial(delete_object, UNIFIED_JOB, meta, propagation=Propagation.BACKGROUND)
    writes.ask(f"{job}//delete/{uid}", do, now_s)


def slim_pod(pod: objects.Pod) -> objects.Pod:
    """A pod; of one that is over only what tells which it was."""
    if not is_over(pod):
        return pod
    spec, status = _slim_parts(pod.spec.node_name, pod.spec.scheduler_name, pod.status.phase)
    return objects.Pod(metadata=_slim(pod.metadata), spec=spec, status=status)


@lru_cache(maxsize=4096)
def _slim_parts(node: str, scheduler: str, phase: str) -> tuple[objects.PodSpec, objects.PodStatus]:
    """The same objects for all pods that are alike, so that thousands of them take little."""
    return objects.PodSpec(node_name=node, scheduler_name=scheduler), objects.PodStatus(phase=phase)


def slim_batch(job: objects.Batch) -> objects.Batch:
    """A Job or MPIJob; of one that is over only what tells which it was."""
    return objects.Batch(metadata=_slim(job.metadata)) if objects.has_condition(job.status, *_ENDS) else job


def slim_unified_job(job: UnifiedJob) -> UnifiedJob:
    """A UnifiedJob; of one that is over only what tells which it was."""
    return UnifiedJob(metadata=_slim(job.metadata)) if objects.has_condition(job.raw_status, *_ENDS) else job


def _slim(meta: objects.Meta) -> objects.Meta:
    labels = _NOTHING
    for key in (names.JOB_NAME, names.TRIAL_RUN):
        if key in meta.labels:
            labels = {**labels, key: meta.labels[key]}
    return objects.Meta(
        name=meta.name,
        namespace=sys.intern(meta.namespace),
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels=labels,
        annotations=_NOTHING,
        owner_references=_NO_OWNERS,
    )


# Objects of an informer are never changed in place, so all share these.
_NOTHING: dict[str, str] = {}
_NO_OWNERS: list[objects.OwnerReference] = []


@dataclass(slots=True)
class ObjectCache:
    """What the API server shows, as far as we have heard."""

    nodes: dict[str, objects.Node] = field(default_factory=dict)
    pods: dict[str, objects.Pod] = field(default_factory=dict)
    unified_jobs: dict[str, UnifiedJob] = field(default_factory=dict)
    jobs: dict[str, objects.Batch] = field(default_factory=dict)
    job_sets: dict[str, objects.Batch] = field(default_factory=dict)
    mpi_jobs: dict[str, objects.Batch] = field(default_factory=dict)
    pod_groups: dict[str, objects.PodGroup] = field(default_factory=dict)
    workload_groups: dict[str, objects.Batch] = field(default_factory=dict)
    topologies: dict[str, objects.NodeResourceTopology] = field(default_factory=dict)
    priorities: dict[str, objects.PriorityClass] = field(default_factory=dict)
    workload_priorities: dict[str, int] = field(default_factory=dict)
    """What administrators of quota call priorities, which are about quota and not about pods."""
    namespaces: dict[str, objects.Batch] = field(default_factory=dict)
    settled: FinishedJobs = field(default_factory=FinishedJobs)
    """UnifiedJobs that are over and done with; nothing else of them is here."""
    _owned: dict[JobId, set[str]] = field(default_factory=dict)
    """By UnifiedJob: the keys of Jobs, JobSets and MPIJobs that say that they belong to it."""

    def owners(self) -> Owners:
        return Owners(self.jobs, self.job_sets, self.pod_groups, self.workload_groups)

    def note(self, table: dict[str, Any], change: Change[Any]) -> str:
        """Notes one change, and returns the key of the object."""
        key = key_of(change.object.metadata)
        if change.did is ChangeType.DELETED:
            table.pop(key, None)
        else:
            table[key] = change.object
        return key

    def note_child(self, table: dict[str, objects.Batch], change: Change[objects.Batch]) -> str:
        """The same for an object that may belong to a UnifiedJob; of a settled one nothing is kept."""
        key, meta = self.note(table, change), change.object.metadata
        name = meta.labels.get(names.JOB_NAME)
        if name is None:
            return key
        job = f"{meta.namespace}/{name}"
        if self.settled.owns(meta):
            table.pop(key, None)
        own = self._owned.setdefault(job, set())
        if any(key in one for one in self._tables()):
            own.add(key)
        else:
            own.discard(key)
        if not own:
            del self._owned[job]
        return key

    def owned(self, table: dict[str, objects.Batch], job: JobId) -> list[objects.Batch]:
        name = job.partition("/")[2]
        found = (table[key] for key in sorted(self._owned.get(job, ())) if key in table)
        return [one for one in found if one.metadata.labels.get(names.JOB_NAME) == name]

    def settle(self, job: UnifiedJob, pods: Iterable[str], expires_s: float) -> None:
        """A UnifiedJob is over and done with, and so is all that belongs to it."""
        self.settled.add(job.id, job.metadata.uid, expires_s)
        self.unified_jobs.pop(job.id, None)
        for key in pods:
            self.pods.pop(key, None)
        for key in self._owned.pop(job.id, ()):
            for table in self._tables():
                table.pop(key, None)

    def _tables(self) -> tuple[dict[str, objects.Batch], ...]:
        return self.jobs, self.job_sets, self.mpi_jobs

    def is_going(self, namespace: str) -> bool:
        """Whether a namespace is being deleted, and everything in it sooner or later."""
        found = self.namespaces.get(namespace)
        return found is not None and bool(found.metadata.deletion_timestamp)
