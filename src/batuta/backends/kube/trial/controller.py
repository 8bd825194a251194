"""The controller of all TrialRuns, and the admission gate for jobs that wait for one.

For the engine's thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.bounded_text import read_whole, read_wholes
from batuta.backends.kube.client.informer import ChangeType
from batuta.backends.kube.client.kinds import NODE, POD
from batuta.backends.kube.jobtypes.status import termination_message
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import AdmissionGate, GateResult, PendingReason, ReconcileContext
from batuta.backends.kube.operator.reconciler import Reconciler
from batuta.backends.kube.operator.workqueue import Changed, Written, create_unless_there, delete_object
from batuta.backends.kube.trial.model import TRIAL_RUN, TrialRun
from batuta.backends.kube.trial.plan import owner_reference
from batuta.backends.kube.trial.reconciler import KEY, TrialContext, TrialReconciler
from batuta.backends.kube.unified_job.model import MOST_REPLICAS, UNIFIED_JOB, UnifiedJob
from batuta.backends.kube.unified_job.to_job import JobRequest, queue_of
from batuta.core.job import DesiredState, Job, JobId, SizeChoice
from batuta.core.reason import Reason
from batuta.core.trial import never_fits
from batuta.core.world import World
from batuta.engine.trials.measurement import where_it_fits

_log = logging.getLogger(__name__)
_NUMBERS: Final = ((names.TRIAL_BUDGET, "budgetSeconds"), (names.TRIAL_EACH, "eachSeconds"))
_WORDS: Final = {"true": True, "false": False}
_SUSPENDED: Final = PendingReason("Suspended", "it is suspended; it is tried out when it is resumed")


class TrialController:
    """Has trials carried out, and makes those that jobs wait for."""

    def __init__(self, trial_context: TrialContext, touch: Callable[[JobId], None]) -> None:
        """`touch`: has the reconciler look at a job again."""
        self.is_served = False  # whether the cluster knows TrialRuns
        self._context = trial_context
        self._touch = touch
        self._trials: dict[str, TrialReconciler] = {}
        self._dirty: dict[str, None] = {}
        self._wanted: dict[JobId, UnifiedJob] = {}  # jobs that wait for a trial that is not there yet, …
        self._unwanted: dict[str, TrialRun] = {}  # … and trials for which no job waits any more

    def trial_of(self, uj: UnifiedJob) -> TrialReconciler | None:
        """The trial of a job: created by the operator, or by a user under the job's name."""
        found = self._trials.get(uj.id)
        if found is None or found.run.metadata.deletion_timestamp:
            return None
        owners = {one.uid for one in found.run.metadata.owner_references}
        is_its_own = uj.metadata.uid in owners or (not owners and found.run.spec.job_name == uj.metadata.name)
        return found if is_its_own else None

    def is_in_the_way(self, uj: UnifiedJob) -> bool:
        """Whether there can be no trial of a job, for another one has its name and stays."""
        return uj.id in self._trials and self.trial_of(uj) is None and not self._is_left_over(uj)

    def _is_left_over(self, uj: UnifiedJob) -> bool:
        """Whether the trial of this name is that of a job before this one, which is gone, and goes too."""
        found = self._trials.get(uj.id)
        owners = () if found is None else found.run.metadata.owner_references
        return any(
            (one.kind, one.name) == (names.KIND, uj.metadata.name) and one.uid != uj.metadata.uid for one in owners
        )

    def want(self, uj: UnifiedJob) -> None:
        self._wanted[uj.id] = uj
        if self._is_left_over(uj):
            self._unwanted[uj.id] = self._trials[uj.id].run

    def drop(self, uj: UnifiedJob) -> None:
        """A job does not wait for its trial any more: one that goes on has no use."""
        self._wanted.pop(uj.id, None)
        found = self.trial_of(uj)
        if found is not None and found.conclusion is None and found.run.metadata.owner_references:
            self._unwanted[uj.id] = found.run

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind is TRIAL_RUN:
            self.is_served = True
            for change in changed.changes:
                self._note(change.object, is_gone=change.did is ChangeType.DELETED)
        elif changed.kind is UNIFIED_JOB:
            for change in changed.changes:
                self._job(change.object)
        elif changed.kind is POD:
            for change in changed.changes:
                self._pod(change.object)
        elif changed.kind is NODE and self._trials:
            # Agents write on nodes how busy GPUs are.
            self._dirty.update(dict.fromkeys(key for key, one in self._trials.items() if one.conclusion is None))

    def _note(self, run: TrialRun, *, is_gone: bool) -> None:
        known = self._trials.get(run.id)
        if is_gone:
            self._trials.pop(run.id, None)
            self._dirty.pop(run.id, None)
        else:
            if known is None or known.run.metadata.uid != run.metadata.uid:
                self._trials[run.id] = TrialReconciler(self._context, run)
            else:
                known.run = run
            self._dirty[run.id] = None
        self._touch(run.id)

    def _job(self, uj: UnifiedJob) -> None:
        namespace, of = uj.metadata.namespace, uj.metadata.labels.get(names.TRIAL_RUN)
        for key in (uj.id, f"{namespace}/{of}" if of else ""):
            if key in self._trials:
                self._dirty[key] = None

    def _pod(self, pod: objects.Pod) -> None:
        if pod.status.phase != "Failed":
            return
        run = f"{pod.metadata.namespace}/{pod.metadata.labels.get(names.JOB_NAME, '')}"
        uj = self._context.observed.unified_jobs.get(run)
        of = None if uj is None else uj.metadata.labels.get(names.TRIAL_RUN)
        trial = self._trials.get(f"{pod.metadata.namespace}/{of}")
        said = termination_message(pod)
        if trial is not None and uj is not None and said:
            before = trial.last_words.get(uj.metadata.name, "")
            trial.last_words[uj.metadata.name] = said if said in before else f"{before}\n{said}"

    def needs(self, job: JobId) -> bool:
        """Whether a job that is over is tried out, or is a run of a trial: the trial reads it."""
        uj = self._context.observed.unified_jobs.get(job)
        of = None if uj is None else uj.metadata.labels.get(names.TRIAL_RUN)
        return job in self._trials or job in self._wanted or (uj is not None and of is not None)

    def heard(self, written: Written, now_s: float) -> None:
        if written.key.startswith(KEY):
            self._dirty[written.key.removeprefix(KEY).partition("//")[0]] = None

    def drive(self, now_s: float) -> None:
        self._context.watched_s = min(self._context.watched_s, now_s)
        due = (key for key, one in self._trials.items() if one.due_s <= now_s)
        turn, self._dirty = self._dirty | dict.fromkeys(due), {}
        for key in turn:
            trial = self._trials.get(key)
            if trial is not None:
                before = trial.conclusion, len(trial.measured)
                if self._drive(trial, now_s):
                    self._dirty[key] = None
                if (trial.conclusion, len(trial.measured)) != before:
                    self._touch(key)
        for job, uj in tuple(self._wanted.items()):
            self._bring(job, uj, now_s)
        for key, run in tuple(self._unwanted.items()):
            self._take_away(key, run, now_s)

    def _drive(self, trial: TrialReconciler, now_s: float) -> bool:
        """Whether it has to wait for a write. An unexpected error ends one trial, and not all."""
        try:
            return trial.drive(now_s)
        except Exception as error:
            _log.exception("trial %s is given up", trial.run.id)
            trial.give_up(error, now_s)
            return False

    def next_s(self) -> float:
        return min((one.due_s for one in self._trials.values()), default=math.inf)

    def _bring(self, job: JobId, uj: UnifiedJob, now_s: float) -> None:
        now = self._context.observed.unified_jobs.get(job)
        if job in self._trials or now is None or now.metadata.uid != uj.metadata.uid:
            del self._wanted[job]
        else:
            do = partial(create_unless_there, TRIAL_RUN, trial_manifest(now))
            self._context.writes.ask(f"{KEY}{job}//make", do, now_s)

    def _take_away(self, key: str, run: TrialRun, now_s: float) -> None:
        known = self._trials.get(key)
        meta = None if known is None else known.run.metadata
        if meta is None or meta.uid != run.metadata.uid or meta.deletion_timestamp:
            del self._unwanted[key]
        else:
            self._context.writes.ask(f"{KEY}{key}//unmake", partial(delete_object, TRIAL_RUN, run.metadata), now_s)


def trial_manifest(uj: UnifiedJob) -> dict[str, Any]:
    """The TrialRun that a job waits for, which goes when the job does."""
    meta = uj.metadata
    spec: dict[str, Any] = {"jobName": meta.name}
    if sizes := read_wholes(meta.annotations.get(names.TRIAL_SIZES), least=1, most=MOST_REPLICAS):
        spec["sizes"] = sorted(sizes)
    for key, field in _NUMBERS:
        number = read_whole(meta.annotations.get(key), most=999_999)
        if number is not None:
            spec[field] = number
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.TRIAL_KIND,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "ownerReferences": [owner_reference(names.KIND, meta.name, meta.uid)],
        },
        "spec": spec,
    }


@dataclass(slots=True, eq=False)
class TrialGate:
    """The gate before another one: a job that needs no trial, or has had it, goes on to that."""

    controller: TrialController
    inner: AdmissionGate
    choose_untried: Callable[[Job], SizeChoice | None]  # the size for a job of whose trial nothing is known
    observed: ObjectCache
    world: World

    def __call__(self, uj: UnifiedJob, asked: JobRequest, is_inside: bool) -> GateResult:
        job = asked.job
        if job is None or asked.wish is DesiredState.CANCEL:
            return self.inner(uj, asked, is_inside)
        if not self._is_wanted(uj, job):
            self.controller.drop(uj)
            return self.inner(uj, asked, is_inside)
        trial = self.controller.trial_of(uj)
        if trial is not None and trial.conclusion is not None:
            asked = replace(asked, job=where_it_fits(job, trial.measured))
        waiting = None if is_inside else self._why_not(uj, asked.wish, trial)
        return self.inner(uj, asked, is_inside) if waiting is None else GateResult(JobRequest(None), waiting)

    def choose(self, job: Job) -> SizeChoice | None:
        """The size for a job whose user left it open, by its trial if it has one; None while that goes on."""
        uj = self.observed.unified_jobs.get(job.id)
        if uj is None or not self._is_wanted(uj, job):
            return self.choose_untried(job)
        trial = self.controller.trial_of(uj)
        if trial is not None and trial.conclusion is not None:
            lesson = trial.conclusion.lesson
            return self.choose_untried(job) if lesson is None or lesson.choice is None else lesson.choice
        return None if job.id not in self.world.jobs else self.choose_untried(job)

    def _why_not(self, uj: UnifiedJob, wish: DesiredState, trial: TrialReconciler | None) -> PendingReason | None:
        """Why a job has to wait; None when it need not."""
        if trial is None and wish is DesiredState.PARK:
            return _SUSPENDED
        if trial is None:
            self.controller.want(uj)
            return _said(Reason.IN_TRIAL, measured=0, sizes=0)
        done, sizes = len(trial.measured), trial.sizes
        if trial.conclusion is None:
            return _said(Reason.IN_TRIAL, measured=done, sizes=len(sizes))
        if sizes and never_fits(trial.measured, sizes):
            return _said(Reason.OUT_OF_MEMORY, most=max(sizes))
        return None

    def _is_wanted(self, uj: UnifiedJob, job: Job) -> bool:
        """Whether a job is to be tried out first: as it says itself, else as its queue does."""
        if not self.controller.is_served or self.controller.is_in_the_way(uj):
            return False
        if job.share is not None or job.cpu_only or names.TRIAL_RUN in uj.metadata.labels:
            return False
        own = _WORDS.get(uj.metadata.annotations.get(names.TRIAL, ""))
        return self.world.quota.wants_trial(uj.metadata.namespace, queue_of(uj)) if own is None else own


def _said(reason: Reason, **numbers: int) -> PendingReason:
    return PendingReason(reason.name.title().replace("_", ""), reason.value.format(**numbers))


def set_up_trials(
    reconciler: Reconciler,
    context: ReconcileContext,
    observed: ObjectCache,
    world: World,
    most_that_fit: Callable[[Job], int],
    is_known: Callable[[Job], bool] = lambda job: True,
) -> TrialController:
    """After all others that have a say in whether a job may run: they are asked once it was tried out."""
    trial_context = TrialContext(observed, world, context.writes, context.say, most_that_fit, is_known)
    controller = TrialController(trial_context, reconciler.touch)
    gate = TrialGate(controller, context.gate, context.choose, observed, world)
    context.gate, context.choose = gate, gate.choose
    reconciler.controllers.append(controller)
    reconciler.needs.append(controller.needs)
    return controller
