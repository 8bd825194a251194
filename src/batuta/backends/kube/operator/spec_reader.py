"""Read what the user of a UnifiedJob wants, and tell the World what is new of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batuta.backends.kube.operator.admission import JobRequest, read_request
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import KnownJob, ReconcileContext
from batuta.backends.kube.operator.events import EventReason, EventRecorder
from batuta.backends.kube.operator.unified_job_status import Outlook, SizeSelector
from batuta.backends.kube.unified_job.model import UnifiedJob, with_tolerations
from batuta.core import event as ev
from batuta.core.job import DesiredState, Job, JobId, SizeChoice


class SpecReader:
    """Between the object of one job and the World. What is not understood changes nothing."""

    def __init__(
        self,
        context: ReconcileContext,
        observed: ObjectCache,
        outlook: Outlook,
        recorder: EventRecorder,
        known: KnownJob | None,
    ) -> None:
        self._context = context
        self._observed = observed
        self._outlook = outlook
        self._recorder = recorder
        self._open_size = SizeSelector(context, None if known is None else known.job)
        self._asked: JobRequest | None = None
        """What the World knows of it."""
        if known is not None:
            self._asked = JobRequest(known.job, DesiredState.PARK if known.is_parked else DesiredState.RUN)
        self._tolerations: tuple[dict[str, Any], ...] = ()
        """What its pods tolerate beyond what their template says, from the admission gate."""

    @property
    def job(self) -> Job | None:
        """As the World knows it; None while it does not."""
        return None if self._asked is None else self._asked.job

    @property
    def size_choice(self) -> SizeChoice | None:
        """Why it asks for the size that it does, where its user left that open."""
        return self._open_size.choice

    def dressed(self, uj: UnifiedJob) -> UnifiedJob:
        """The object, with a template that tolerates what the quota it uses lets it tolerate."""
        more = (*self._tolerations, *self._context.tolerations(uj.id))
        return with_tolerations(uj, more) if more else uj

    def hear(self, uj: UnifiedJob, has_pods: bool, now_s: float) -> bool:
        """Tells the World what is wanted now. False when that is not understood, or the gate forbids it."""
        asked = self._pass_gate(uj, has_pods)
        self._outlook.faults = asked.faults
        if asked.job is None:
            if asked.faults:
                self._recorder.tell(uj, EventReason.INVALID, "; ".join(asked.faults), now_s)
            return False
        if self._asked is None:
            self._come(uj, asked.job, asked.wish, now_s)
        elif asked != self._asked:
            self._tell_changes(uj.id, self._asked, asked, now_s)
        self._asked = asked
        return True

    def _pass_gate(self, uj: UnifiedJob, has_pods: bool) -> JobRequest:
        """What the World shall know of it after the admission gate."""
        asked = read_request(uj, self._observed.priorities, self._observed.workload_priorities)
        if asked.job is not None:
            asked = replace(asked, job=self._open_size.settle(uj, asked.job))
        passed = self._context.gate(uj, asked, self._asked is not None or has_pods)
        self._outlook.waiting, self._tolerations = passed.waiting, passed.tolerations
        if passed.waiting is not None and self._asked is not None:
            return replace(passed.asked, job=self._asked.job)  # it is parked as the World knows it
        return passed.asked

    def _come(self, uj: UnifiedJob, job: Job, wish: DesiredState, now_s: float) -> None:
        if job.id in self._context.past:
            self._context.past.discard(job.id)
            self._context.keep_result(job.id, "null")  # what another job of this name gave is not its own
            self._context.say(ev.JobForgotten(now_s, job.id))
        self._context.say(ev.JobSubmitted(now_s, job, cause="kubernetes"))
        if self.size_choice is not None:
            self._recorder.tell(uj, EventReason.SIZE_CHOSEN, self.size_choice.sentence, now_s)
        if wish is not DesiredState.RUN:
            self._context.say(ev.JobWished(now_s, job.id, wish, cause="kubernetes"))

    def _tell_changes(self, job: JobId, before: JobRequest, asked: JobRequest, now_s: float) -> None:
        if asked.job is not None and asked.job != before.job:
            self._context.say(ev.JobChanged(now_s, asked.job, cause="kubernetes"))
        if asked.wish is not before.wish:
            self._context.say(ev.JobWished(now_s, job, asked.wish, cause="kubernetes"))
