"""All jobs that the operator looks after, and to which of them each pod belongs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.tenant import is_over, pod_key
from batuta.backends.kube.operator.gang_run import GangRun
from batuta.backends.kube.operator.gangs import gang_of
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.run import Known, Run, Site
from batuta.backends.kube.operator.unified_run import UnifiedRun
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.job import JobId


class Roster:
    """A run begins with its UnifiedJob, or with the first pod of a gang, and stays until it is dropped."""

    def __init__(
        self, site: Site, observed: Observed, known: Mapping[JobId, Known], namespaces: Collection[str]
    ) -> None:
        self.runs: dict[JobId, Run] = {}
        self._site = site
        self._observed = observed
        self._known = dict(known)
        """Jobs that the World has from before, and of which nothing was found yet."""
        self._namespaces = frozenset(namespaces)
        self._job_of: dict[str, JobId] = {}
        """By key of a pod: the run that it is shown to."""
        self._shown_to: dict[JobId, dict[str, None]] = {}
        """The same the other way round. A run forgets those that turn out not to be its own; we do not."""
        self._orphans: dict[JobId, dict[str, objects.Pod]] = {}
        """Pods of UnifiedJobs that nobody has shown us yet."""
        self._spent: dict[JobId, dict[str, objects.Pod]] | None = {}
        """At the first look, pods that are over: their gang may go on. None when all have been looked at."""

    def run_of(self, key: str) -> Run | None:
        """The run that a pod belongs to; None for a pod that is no business of ours."""
        return self.runs.get(self._job_of.get(key, ""))

    # ------------------------------------------------------------------------------------------------ pods

    def see(self, pod: objects.Pod) -> Run | None:
        """A pod has come or changed: it is shown to its run, which is made if need be."""
        key = pod_key(pod)
        run = self.run_of(key) or self._owner_of(pod)
        if run is not None:
            self._show(run, key, pod)
        elif (job := _unified_job_of(pod)) is not None:
            self._orphans.setdefault(job, {})[key] = pod  # in case that its job comes
        return run

    def lose(self, pod: objects.Pod) -> Run | None:
        """A pod is gone, as its run is told."""
        key = pod_key(pod)
        run = self.run_of(key) or self._owner_of(pod)
        if run is not None:
            self._job_of.pop(key, None)
            self._shown_to.get(run.id, {}).pop(key, None)
            run.lose(key)
        else:
            self._forget_orphan(key, pod)
        return run

    def _forget_orphan(self, key: str, pod: objects.Pod) -> None:
        job = _unified_job_of(pod) or ""
        orphans = self._orphans.get(job, {})
        if orphans.pop(key, None) is not None and not orphans:
            del self._orphans[job]

    def _show(self, run: Run, key: str, pod: objects.Pod) -> None:
        self._job_of[key] = run.id
        self._shown_to.setdefault(run.id, {})[key] = None
        run.see(pod)

    def _owner_of(self, pod: objects.Pod) -> Run | None:
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
        run = self.runs[job] = GangRun(self._site, gang, self._known.pop(job, None))
        for key, spent in (self._spent or {}).pop(job, {}).items():
            self._show(run, key, spent)
        return run

    # ------------------------------------------------------------------------------------------------ runs

    def meet(self, job: UnifiedJob) -> None:
        """A UnifiedJob has come or changed."""
        run = self.runs.get(job.id)
        if isinstance(run, UnifiedRun):
            run.look(job)
            return
        run = self.runs[job.id] = UnifiedRun(self._site, self._observed, job, self._known.pop(job.id, None))
        for key, pod in self._orphans.pop(job.id, {}).items():
            self._show(run, key, pod)

    def drop(self, run: Run) -> bool:
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
