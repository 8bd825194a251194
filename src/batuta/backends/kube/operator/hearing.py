"""What the user of a UnifiedJob wants: heard at every look, and the World is told what is new of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batuta.backends.kube.operator.job_news import Herald, News
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.open_size import OpenSize
from batuta.backends.kube.operator.request import Asked, read_request
from batuta.backends.kube.operator.run import Known, Site
from batuta.backends.kube.operator.unified_status import Outlook
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.tolerating import tolerating
from batuta.core import event as ev
from batuta.core.expected import SizeChoice
from batuta.core.job import Job, JobId
from batuta.core.wish import Wish


class Hearing:
    """Between the object of one job and the World. What is not understood changes nothing."""

    def __init__(
        self, site: Site, observed: Observed, outlook: Outlook, herald: Herald, known: Known | None
    ) -> None:
        self._site = site
        self._observed = observed
        self._outlook = outlook
        self._herald = herald
        self._open_size = OpenSize(site, None if known is None else known.job)
        self._asked: Asked | None = None
        """What the World knows of it."""
        if known is not None:
            self._asked = Asked(known.job, Wish.PARK if known.is_parked else Wish.RUN)
        self._tolerations: tuple[dict[str, Any], ...] = ()
        """What its pods tolerate beyond what their template says, by whoever let it in."""

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
        more = (*self._tolerations, *self._site.tolerations(uj.id))
        return tolerating(uj, more) if more else uj

    def hear(self, uj: UnifiedJob, has_pods: bool, now_s: float) -> bool:
        """Tells the World what is wanted now. False when that is not understood, or somebody forbids it."""
        asked = self._pass_gate(uj, has_pods)
        self._outlook.faults = asked.faults
        if asked.job is None:
            if asked.faults:
                self._herald.tell(uj, News.INVALID, "; ".join(asked.faults), now_s)
            return False
        if self._asked is None:
            self._come(uj, asked.job, asked.wish, now_s)
        elif asked != self._asked:
            self._tell_changes(uj.id, self._asked, asked, now_s)
        self._asked = asked
        return True

    def _pass_gate(self, uj: UnifiedJob, has_pods: bool) -> Asked:
        """What the World shall know of it, if somebody else has a say in that."""
        asked = read_request(uj, self._observed.priorities, self._observed.workload_priorities)
        if asked.job is not None:
            asked = replace(asked, job=self._open_size.settle(uj, asked.job))
        passed = self._site.gate(uj, asked, self._asked is not None or has_pods)
        self._outlook.waiting, self._tolerations = passed.waiting, passed.tolerations
        if passed.waiting is not None and self._asked is not None:
            return replace(passed.asked, job=self._asked.job)  # it is parked as the World knows it
        return passed.asked

    def _come(self, uj: UnifiedJob, job: Job, wish: Wish, now_s: float) -> None:
        if job.id in self._site.past:
            self._site.past.discard(job.id)
            self._site.keep_result(job.id, "null")  # what another job of this name gave is not its own
            self._site.say(ev.JobForgotten(now_s, job.id))
        self._site.say(ev.JobSubmitted(now_s, job, cause="kubernetes"))
        if self.size_choice is not None:
            self._herald.tell(uj, News.SIZE_CHOSEN, self.size_choice.sentence, now_s)
        if wish is not Wish.RUN:
            self._site.say(ev.JobWished(now_s, job.id, wish, cause="kubernetes"))

    def _tell_changes(self, job: JobId, before: Asked, asked: Asked, now_s: float) -> None:
        if asked.job is not None and asked.job != before.job:
            self._site.say(ev.JobChanged(now_s, asked.job, cause="kubernetes"))
        if asked.wish is not before.wish:
            self._site.say(ev.JobWished(now_s, job, asked.wish, cause="kubernetes"))
