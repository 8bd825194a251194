"""Map each pod, and each object that jobs refer to, to the jobs that depend on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import Cluster, is_over, pod_key
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import JobReconciler, KnownJob, ReconcileContext
from batuta.backends.kube.operator.gang_reconciler import GangReconciler
from batuta.backends.kube.operator.gangs import GangId, gang_of
from batuta.backends.kube.operator.informers import WORKLOAD_GROUP
from batuta.backends.kube.operator.unified_job_reconciler import UnifiedJobReconciler
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.job import JobId


class OwnerIndex:
    """A run begins with its UnifiedJob, or with the first pod of a gang, and stays until it is dropped."""

    def __init__(
        self,
        context: ReconcileContext,
        observed: ObjectCache,
        known: Mapping[JobId, KnownJob],
        namespaces: Collection[str],
    ) -> None:
        self.runs: dict[JobId, JobReconciler] = {}
        self._context = context
        self._observed = observed
        self._known = dict(known)  # jobs that the World has from before, and of which nothing was found yet
        self._namespaces = frozenset(namespaces)
        self._job_of: dict[str, JobId] = {}  # by key of a pod: the run that it is shown to
        self._shown_to: dict[JobId, dict[str, None]] = {}
        """The same the other way round. A run forgets those that turn out not to be its own; we do not."""
        self._orphans: dict[JobId, dict[str, objects.Pod]] = {}
        """Pods of UnifiedJobs that the informer has not delivered yet."""
        self._spent: dict[JobId, dict[str, objects.Pod]] | None = {}
        """At the first look, pods that are over: their gang may go on. None when all have been looked at."""

    def run_of(self, key: str) -> JobReconciler | None:
        """The run that a pod belongs to; None for a pod that is no business of ours."""
        return self.runs.get(self._job_of.get(key, ""))

    def see(self, pod: objects.Pod) -> JobReconciler | None:
        """A pod has come or changed: it is shown to its run, which is made if need be."""
        key = pod_key(pod)
        run = self.run_of(key) or self._owner_of(pod)
        if run is not None:
            self._show(run, key, pod)
        elif (job := _unified_job_of(pod)) is not None and not self._observed.settled.has_pod(pod):
            self._orphans.setdefault(job, {})[key] = pod  # in case that its job comes
        return run

    def lose(self, pod: objects.Pod) -> JobReconciler | None:
        """A pod is gone, as its run is told."""
        key = pod_key(pod)
        run = self.run_of(key) or self._owner_of(pod)
        if run is not None:
            self._job_of.pop(key, None)
            self._shown_to.get(run.id, {}).pop(key, None)
            run.lose(key)
        else:
            job = _unified_job_of(pod) or ""
            orphans = self._orphans.get(job, {})
            if orphans.pop(key, None) is not None and not orphans:
                del self._orphans[job]
        return run

    def _show(self, run: JobReconciler, key: str, pod: objects.Pod) -> None:
        self._job_of[key] = run.id
        self._shown_to.setdefault(run.id, {})[key] = None
        run.see(pod)

    def _owner_of(self, pod: objects.Pod) -> JobReconciler | None:
        meta = pod.metadata
        unified_job = _unified_job_of(pod)
        if unified_job is not None:
            return self.runs.get(unified_job)  # None: its job is gone, or was not listed yet
        if pod.spec.scheduler_name != names.SCHEDULER:
            return None
        if self._namespaces and meta.namespace not in self._namespaces:
            return None
        gang = gang_of(pod)
        job = str(gang)
        if job in self.runs:
            return self.runs[job]
        if (is_over(pod) or meta.deletion_timestamp) and job not in self._known:
            if self._spent is not None and is_over(pod):
                self._spent.setdefault(job, {})[pod_key(pod)] = pod
            return None  # nothing begins with it
        run = self.runs[job] = GangReconciler(self._context, gang, self._known.pop(job, None))
        for key, spent in (self._spent or {}).pop(job, {}).items():
            self._show(run, key, spent)
        return run

    def meet(self, job: UnifiedJob) -> None:
        """A UnifiedJob has come or changed."""
        run = self.runs.get(job.id)
        if isinstance(run, UnifiedJobReconciler):
            run.look(job)
            return
        run = self.runs[job.id] = UnifiedJobReconciler(
            self._context, self._observed, job, self._known.pop(job.id, None)
        )
        for key, pod in self._orphans.pop(job.id, {}).items():
            self._show(run, key, pod)

    def drop(self, run: JobReconciler) -> bool:
        """A run is over; whether another one of the same name came while it went."""
        del self.runs[run.id]
        for key in self._shown_to.pop(run.id, {}):
            del self._job_of[key]
        again = self._observed.unified_jobs.get(run.id)
        if again is not None:
            self.meet(again)
        return again is not None

    def finish_first_look(self) -> None:
        """Everything has been listed once: who has no other pod than those that are over is over."""
        self._spent = None

    def missing(self) -> list[JobId]:
        """Jobs that the World has from before and of which nothing was found; each is named once."""
        known, self._known = self._known, {}
        return [job for job in known if job not in self.runs]


def _unified_job_of(pod: objects.Pod) -> JobId | None:
    """The UnifiedJob that a pod says that it belongs to."""
    name = pod.metadata.labels.get(names.JOB_NAME)
    return None if name is None else f"{pod.metadata.namespace}/{name}"


ChangeHandler: TypeAlias = Callable[[Change[Any]], Iterable[JobId]]


class ReferenceIndex:
    """Takes in owners of pods, groups, priorities and namespaces, and says whom they concern."""

    def __init__(self, observed: ObjectCache, cluster: Cluster, jobs: Collection[JobId]) -> None:
        """`jobs`: all that there are at any time."""
        self._observed = observed
        self._cluster = cluster
        self._jobs = jobs
        self.takers: dict[Kind[Any], ChangeHandler] = {
            kinds.JOB: partial(self._owner, observed.jobs, "job"),
            kinds.JOB_SET: partial(self._owner, observed.job_sets, "jobset"),
            kinds.MPI_JOB: partial(self._owner, observed.mpi_jobs, "mpijob"),
            kinds.POD_GROUP: partial(self._group, observed.pod_groups, "podgroup"),
            WORKLOAD_GROUP: partial(self._group, observed.workload_groups, "workload"),
            kinds.PRIORITY_CLASS: self._priority,
            kinds.NAMESPACE: self._namespace,
        }

    def _owner(self, table: dict[str, objects.Batch], kind: str, change: Change[objects.Batch]) -> list[JobId]:
        """Its pods are a gang, or it belongs to a UnifiedJob itself."""
        meta = change.object.metadata
        concerned = [str(GangId(meta.namespace, kind, self._observed.note_child(table, change).rpartition("/")[2]))]
        name = meta.labels.get(names.JOB_NAME)
        return concerned if name is None else [f"{meta.namespace}/{name}", *concerned]

    def _group(self, table: dict[str, Any], kind: str, change: Change[Any]) -> list[JobId]:
        namespace, _, name = self._observed.note(table, change).partition("/")
        return [str(GangId(namespace, kind, name))]

    def _priority(self, change: Change[objects.PriorityClass]) -> list[JobId]:
        name = self._observed.note(self._observed.priorities, change)
        jobs = self._observed.unified_jobs.items()
        return [key for key, uj in jobs if uj.spec.priority_class_name == name]

    def _namespace(self, change: Change[objects.Batch]) -> list[JobId]:
        """Everything in a namespace goes with it."""
        name = self._observed.note(self._observed.namespaces, change)
        if change.did is ChangeType.DELETED:
            self._cluster.namespace_gone(name)
        else:
            self._cluster.namespace_set(name, change.object.metadata.labels)
        if not change.object.metadata.deletion_timestamp:
            return []
        return [job for job in self._jobs if job.startswith(f"{name}/")]
