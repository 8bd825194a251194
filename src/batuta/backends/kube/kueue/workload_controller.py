"""Batuta decides: publish its jobs as Workloads, so that tools made for Kueue show them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.kinds import Kind, Stored
from batuta.backends.kube.kueue.kinds import WORKLOAD, KueueObject, truths, updated
from batuta.backends.kube.kueue.workload import (
    WorkloadRequest,
    WorkloadState,
    owner_reference,
    request_of_gang,
    request_of_unified_job,
)
from batuta.backends.kube.kueue.workload_cache import WorkloadCache
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import JobReconciler
from batuta.backends.kube.operator.gang_reconciler import GangReconciler
from batuta.backends.kube.operator.unified_job_reconciler import UnifiedJobReconciler
from batuta.backends.kube.operator.workqueue import Changed, Written
from batuta.core.job import JobId, JobState

REWORD_S: Final = 15.0  # a status is not written sooner than this for other numbers in its sentences alone


def owner_of_gang(job: JobId, first: objects.Pod, observed: ObjectCache) -> objects.OwnerReference | None:
    """A Job, JobSet or PodGroup, else the gang's first pod; None while the owner is not known."""
    namespace, _, rest = job.partition("/")
    kind, _, name = rest.partition(":")
    tables: dict[str, tuple[Kind[Any], Mapping[str, Stored]]] = {
        "job": (kinds.JOB, observed.jobs),
        "jobset": (kinds.JOB_SET, observed.job_sets),
        "podgroup": (kinds.POD_GROUP, observed.pod_groups),
    }
    its_kind, table = tables.get(kind, (kinds.POD, {}))
    found = table.get(f"{namespace}/{name}") if kind in tables else first
    return None if found is None else owner_reference(its_kind.api_version, its_kind.name, found.metadata)


@dataclass(slots=True)
class _PublishedWorkload:
    """One job and its Workload."""

    standing: WorkloadState
    asking: WorkloadRequest | None = None
    made_of: object = None  # what `asking` was made of: it is made anew when that is another
    end: tuple[JobState, str] | None = None
    written_s: float = -math.inf


@dataclass(slots=True, eq=False)
class WorkloadController:
    """Gets the state of jobs after each decision. For the engine's thread."""

    _cache: WorkloadCache
    _runs: Mapping[JobId, JobReconciler]
    _observed: ObjectCache
    _jobs: dict[JobId, _PublishedWorkload] = field(default_factory=dict)
    _job_of: dict[str, JobId] = field(default_factory=dict)
    _pending: dict[JobId, None] = field(default_factory=dict)
    _later: dict[JobId, float] = field(default_factory=dict)
    _due_s: float = math.inf

    def note(self, standing: WorkloadState) -> None:
        job = standing.job.id
        shown = self._jobs.get(job)
        if shown is not None and shown.standing == standing:
            return
        if shown is None:
            shown = self._jobs[job] = _PublishedWorkload(standing)
        shown.standing = standing
        self._pending[job] = None

    def ended(self, job: JobId, state: JobState, detail: str) -> None:
        shown = self._jobs.get(job)
        if shown is not None:
            shown.end = state, detail
            self._pending[job] = None

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind is not WORKLOAD:
            return
        for key in self._cache.take(changed):
            if key in self._job_of:
                self._pending[self._job_of[key]] = None
        if not changed.changes:
            self._pending.update(dict.fromkeys(self._jobs))

    def heard(self, written: Written, now_s: float) -> None:
        self._cache.heard(written)

    def next_s(self) -> float:
        return min(self._due_s, min(self._later.values(), default=math.inf))

    def drive(self, now_s: float) -> None:
        for job in [job for job, due_s in self._later.items() if due_s <= now_s]:
            del self._later[job]
            self._pending[job] = None
        if not self._pending or not self._cache.is_served:
            return
        self._pending = {job: None for job in self._pending if not self._tend(job, now_s)}
        self._due_s = self._cache.later_s(now_s)

    def _tend(self, job: JobId, now_s: float) -> bool:
        """Does the next thing for one job; whether nothing is left to do until something changes."""
        shown = self._jobs.get(job)
        if shown is None:
            return True
        if shown.end is None:
            self._ask_anew(job, shown)
        if shown.asking is None:
            self._forget(job, shown)
            return True
        self._job_of[shown.asking.key] = job
        there = self._cache.shown.get(shown.asking.key)
        if shown.end is not None:
            is_done = there is not None and self._cache.finish(there, *shown.end, now_s)
            if is_done:
                self._forget(job, shown)
            return is_done or there is None
        there = self._cache.bring(shown.asking, now_s)
        return there is not None and self._write(job, shown, there, now_s)

    def _ask_anew(self, job: JobId, shown: _PublishedWorkload) -> None:
        run = self._runs.get(job)
        if isinstance(run, UnifiedJobReconciler):
            made_of: object = (run.uj.metadata.uid, run.uj.metadata.generation, shown.standing.job)
            if made_of != shown.made_of:
                shown.made_of, shown.asking = made_of, request_of_unified_job(run.uj, shown.standing.job)
        elif isinstance(run, GangReconciler) and shown.made_of != shown.standing.job:
            shown.made_of, shown.asking = shown.standing.job, self._asked_by(run, shown)

    def _asked_by(self, run: GangReconciler, shown: _PublishedWorkload) -> WorkloadRequest | None:
        """Only for pods that name a queue."""
        pods = list(run.pods().values())
        first = min(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name), default=None)
        if first is None or first.metadata.labels.keys().isdisjoint((names.QUEUE_NAME, names.KUEUE_QUEUE_NAME)):
            return None
        owner = owner_of_gang(run.id, first, self._observed)
        return None if owner is None else request_of_gang(owner, first, shown.standing.job)

    def _write(self, job: JobId, shown: _PublishedWorkload, there: KueueObject, now_s: float) -> bool:
        standing = shown.standing
        sets = tuple(one["name"] for one in shown.asking.pod_sets) if shown.asking is not None else ()
        admission = standing.admission(sets)
        known = there.status.get("conditions") or []
        listed = updated(there, standing.statements(there.status), now_s)
        status: dict[str, Any] = {"conditions": listed, "admission": admission}
        meaning = truths(listed), admission
        if (truths(known), there.status.get("admission")) == meaning:
            if _messages(known) == _messages(listed):
                return True
            if now_s < shown.written_s + REWORD_S:
                self._later[job] = shown.written_s + REWORD_S
                return True
        shown.written_s = now_s
        self._cache.patch_status(there, status, (*meaning, _messages(listed)), now_s)
        return False

    def _forget(self, job: JobId, shown: _PublishedWorkload) -> None:
        if shown.end is not None:
            del self._jobs[job]
            self._later.pop(job, None)
            if shown.asking is not None:
                self._job_of.pop(shown.asking.key, None)


def _messages(listed: list[dict[str, Any]]) -> list[Any]:
    return sorted((str(one.get("type")), str(one.get("message") or "")) for one in listed)
