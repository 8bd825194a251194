"""Kueue decides: create a Workload per UnifiedJob, and run the job when and as far as Kueue admits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.client.informer import ChangeType
from batuta.backends.kube.kueue.kinds import (
    RESOURCE_FLAVOR,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    ConditionUpdate,
    KueueObject,
    find,
    is_true,
    updated,
)
from batuta.backends.kube.kueue.workload import (
    ADMITTED,
    EVICTED,
    FINISHED,
    MAIN,
    REQUEUED,
    RESERVED,
    AdmittedResources,
    WorkloadRequest,
    owner_reference,
    pending_reason,
    read_admission,
    request_of_unified_job,
    same_pods,
    within,
    workload_name,
)
from batuta.backends.kube.kueue.workload_cache import WorkloadCache
from batuta.backends.kube.operator.context import GateResult, JobReconciler, PendingReason
from batuta.backends.kube.operator.unified_job_reconciler import UnifiedJobReconciler
from batuta.backends.kube.operator.workqueue import Changed, Written
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.backends.kube.unified_job.to_job import JobRequest
from batuta.core.job import DesiredState, Job, JobId

_NO_KUEUE: Final = ("WaitingForKueue", "the cluster does not know Workloads of Kueue, which shall decide")
_SUSPENDED: Final = ("Suspended", "it is suspended, and asks for no quota")
_COMES_BACK: Final = ("Preempted", "NodeFailures")
"""Reasons of an eviction after which Kueue queues a Workload again at once; otherwise it says when."""
SUSPENDED_BY_US: Final = "batuta.dev/suspended"  # on a Workload: it is not active because its UnifiedJob is suspended


@dataclass(slots=True, eq=False)
class KueueAdmissionGate:
    """The gate of UnifiedJobs, and their Workloads. For the engine's thread."""

    _cache: WorkloadCache
    _runs: Mapping[JobId, JobReconciler]
    _touch: Callable[[JobId], None]
    _priorities: dict[str, int]  # the numbers of WorkloadPriorityClasses by name, which the gate keeps up to date
    _flavors: dict[str, KueueObject] = field(default_factory=dict)
    _asking: dict[JobId, WorkloadRequest] = field(default_factory=dict)
    _made_of: dict[JobId, object] = field(default_factory=dict)
    _pending: dict[JobId, None] = field(default_factory=dict)  # jobs whose Workload is not as it shall be yet
    _gone: dict[str, UnifiedJob] = field(default_factory=dict)
    """By uid: jobs that were deleted, whose pods or Workload may still be there."""
    _due_s: float = math.inf

    def __call__(self, uj: UnifiedJob, asked: JobRequest, is_inside: bool) -> GateResult:
        self._pending[uj.id] = None
        if asked.job is None or asked.wish is DesiredState.CANCEL:
            return GateResult(asked)  # a job needs no admission to end
        asking = self._ask_for(uj, asked.job, asked.wish is DesiredState.RUN)
        workload = self._cache.shown.get(asking.key)
        given = None if workload is None else read_admission(workload)
        if workload is not None and given is not None and _still_fits(workload, asking, given):
            flavors = [self._flavors[name].spec for name in given.flavors if name in self._flavors]
            job = within(asked.job, given, flavors)
            if job is not None and len(flavors) == len(given.flavors):
                tolerations = tuple(one for flavor in flavors for one in flavor.get("tolerations") or ())
                return GateResult(replace(asked, job=job), tolerations=tolerations)
        waiting = PendingReason(*self._why_not(workload, asking))
        if not is_inside:
            return GateResult(JobRequest(None), waiting)
        parked = DesiredState.PARK if asked.wish is DesiredState.RUN else asked.wish
        return GateResult(replace(asked, wish=parked), waiting)

    def _why_not(self, workload: KueueObject | None, asking: WorkloadRequest) -> tuple[str, str]:
        if not self._cache.is_served:
            return _NO_KUEUE
        return pending_reason(workload) if asking.is_wanted or workload is not None else _SUSPENDED

    def _ask_for(self, uj: UnifiedJob, job: Job, is_wanted: bool) -> WorkloadRequest:
        """Made anew only when it is another: a job is looked at much more often than it changes."""
        made_of = uj.metadata.uid, uj.metadata.generation, job, is_wanted
        if self._made_of.get(uj.id) != made_of:
            self._asking[uj.id] = request_of_unified_job(uj, job, is_wanted)
            self._made_of[uj.id] = made_of
        return self._asking[uj.id]

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind is WORKLOAD:
            if not changed.changes:
                self._pending.update(dict.fromkeys(self._runs))
            for change in changed.changes:
                self._look_at(change.object.metadata)
            self._cache.take(changed)
        elif changed.kind in (RESOURCE_FLAVOR, WORKLOAD_PRIORITY_CLASS):
            for change in changed.changes:
                found: KueueObject = change.object
                if changed.kind is RESOURCE_FLAVOR:
                    self._flavors[found.metadata.name] = found
                else:
                    self._priorities[found.metadata.name] = found.value
            for job in self._asking:
                self._touch(job)
        elif changed.kind is UNIFIED_JOB:
            for change in changed.changes:
                self._pending[change.object.id] = None
                if change.did is ChangeType.DELETED:
                    self._gone[change.object.metadata.uid] = change.object

    def _look_at(self, meta: objects.Meta) -> None:
        for owner in meta.owner_references:
            if owner.kind == names.KIND:
                job = f"{meta.namespace}/{owner.name}"
                self._pending[job] = None
                self._touch(job)

    def needs(self, job: JobId) -> bool:
        """Whether the Workload of a job that is over is not closed yet."""
        return job in self._pending

    def heard(self, written: Written, now_s: float) -> None:
        self._cache.heard(written)

    def next_s(self) -> float:
        return self._due_s

    def drive(self, now_s: float) -> None:
        self._pending = {job: None for job in self._pending if not self._tend(job, now_s)}
        for uj in tuple(self._gone.values()):
            self._see_off(uj, now_s)
        self._due_s = self._cache.later_s(now_s)

    def _tend(self, job: JobId, now_s: float) -> bool:
        """Does the next thing for the Workload of a job; whether nothing is left to do for now."""
        run = self._runs.get(job)
        if not isinstance(run, UnifiedJobReconciler) or run.uj.metadata.uid in self._gone:
            self._asking.pop(job, None)
            self._made_of.pop(job, None)
            return True
        there = self._cache.shown.get(f"{run.uj.metadata.namespace}/{name_of(run.uj)}")
        if run.outlook.end is not None:
            state, detail, _ = run.outlook.end
            return there is None or self._cache.finish(there, state, detail, now_s)
        asking = self._asking.get(job)
        if asking is None:
            return True
        if there is None:
            if asking.is_wanted:
                self._cache.bring(asking, now_s)
            return not asking.is_wanted
        return self._keep(run, there, asking, now_s)

    def _see_off(self, uj: UnifiedJob, now_s: float) -> None:
        """Deletes the Workload of a job that is gone, once its pods are: then others may have its quota."""
        run, meta = self._runs.get(uj.id), uj.metadata
        if isinstance(run, UnifiedJobReconciler) and run.uj.metadata.uid == meta.uid:
            return
        there = self._cache.shown.get(f"{meta.namespace}/{name_of(uj)}")
        if there is None:
            del self._gone[meta.uid]
        else:
            self._cache.delete(there, now_s)

    def _keep(self, run: UnifiedJobReconciler, there: KueueObject, asking: WorkloadRequest, now_s: float) -> bool:
        is_reserved = is_true(there.status, RESERVED)
        given = read_admission(there) if is_reserved else None  # without a reservation it can still be changed
        is_usable = given is None or _still_fits(there, asking, given)
        if is_true(there.status, FINISHED) or not is_usable:
            # Nothing is asked with it any more: another one is made when this one is gone, and its pods too.
            if is_idle(run):
                self._cache.delete(there, now_s)
            return False
        is_done = self._follow_wish(there, asking, now_s)
        if not is_reserved:
            return self._cache.bring(asking, now_s) is not None and is_done
        if is_true(there.status, EVICTED):
            if is_idle(run):
                self._release(there, now_s)
            return False
        return is_done

    def _follow_wish(self, there: KueueObject, asking: WorkloadRequest, now_s: float) -> bool:
        """A job that its user has suspended is not active; who else made it so is left alone."""
        is_active = there.spec.get("active") is not False
        is_ours = there.metadata.annotations.get(SUSPENDED_BY_US) == "true"
        if not asking.is_wanted and is_active:
            self._cache.patch(there, _activity(False), now_s)
        elif asking.is_wanted and not is_active and is_ours:
            self._cache.patch(there, _activity(True), now_s)
        else:
            return True
        return False

    def _release(self, there: KueueObject, now_s: float) -> None:
        """Nothing of it runs any more: Kueue may give its quota to others, and queue it again."""
        said = find(there.status, EVICTED)
        reason, message = str(said.get("reason") or "Preempted"), str(said.get("message") or "")
        statements = (
            ConditionUpdate(RESERVED, False, "Pending", message),
            ConditionUpdate(ADMITTED, False, "NoReservation", "The workload has no reservation"),
            ConditionUpdate(REQUEUED, reason in _COMES_BACK, reason, message),
        )
        status = {"conditions": updated(there, statements, now_s), "admission": None}
        self._cache.patch_status(there, status, ("released", reason), now_s)


def name_of(uj: UnifiedJob) -> str:
    return workload_name(owner_reference(names.API_VERSION, names.KIND, uj.metadata))


def is_idle(run: UnifiedJobReconciler) -> bool:
    """Whether nothing of a job holds a place."""
    return run.wanted is None and not any(pod.spec.node_name and not is_over(pod) for pod in run.pods().values())


def _activity(is_active: bool) -> dict[str, Any]:
    mark = None if is_active else "true"
    return {"metadata": {"annotations": {SUSPENDED_BY_US: mark}}, "spec": {"active": is_active}}


def _still_fits(there: KueueObject, asking: WorkloadRequest, given: AdmittedResources) -> bool:
    """Whether what was admitted serves the job as it is now: the same pods, and enough of them."""
    if there.spec.get("queueName") != asking.queue:
        return False
    least = next(one.get("minCount", one["count"]) for one in asking.pod_sets if one["name"] == MAIN)
    alike = [{key: one[key] for key in ("name", "template")} for one in asking.pod_sets]
    return given.replicas >= least and same_pods(there.spec, alike)
