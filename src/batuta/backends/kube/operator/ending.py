"""The end of a UnifiedJob: told once, and what the job leaves behind goes in time."""

from __future__ import annotations

import math

from batuta.backends.kube.jobtypes.job_type import JobType
from batuta.backends.kube.operator.children import Children
from batuta.backends.kube.operator.ensemble import Ensemble
from batuta.backends.kube.operator.job_news import Herald
from batuta.backends.kube.operator.pod_job import seconds
from batuta.backends.kube.operator.run import Site
from batuta.backends.kube.operator.unified_status import Outlook, ending_of
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core import event as ev
from batuta.core.job import JobState
from batuta.core.wish import Wish


class Ending:
    """One job's."""

    def __init__(
        self, site: Site, outlook: Outlook, herald: Herald, children: Children, ensemble: Ensemble
    ) -> None:
        self._site = site
        self._outlook = outlook
        self._herald = herald
        self._children = children
        self._ensemble = ensemble
        self.is_told = False
        """Nothing more is to be said to the World."""
        self.has_vanished = False
        """The object is gone: there is nothing to write to."""
        self.is_silent = False
        """It was finished when it was first seen: there is nothing to be said to people."""
        self._is_announced = False

    def announce(self, uj: UnifiedJob, now_s: float) -> None:
        """It is going, and its pods may take long: meanwhile nothing is planned for it."""
        if not self._is_announced:
            self._is_announced = True
            self._site.say(ev.JobWished(now_s, uj.id, Wish.CANCEL, cause="kubernetes"))

    def tell(
        self,
        uj: UnifiedJob,
        state: JobState,
        detail: str,
        exit_code: int | None,
        result: str | None,
        now_s: float,
    ) -> None:
        """Says to the World and to people how it ended."""
        self._outlook.ended(state, detail, now_s)
        if result is not None:
            self._site.keep_result(uj.id, result)
        self._site.say(ev.JobEnded(now_s, uj.id, state, "kubernetes", exit_code, detail))
        self._site.past.add(uj.id)
        self.is_told = True
        if not self.is_silent and not self.has_vanished:
            self._herald.ended(uj, state, detail, now_s)

    def find(self, uj: UnifiedJob, now_s: float) -> None:
        """It was finished before this operator saw it: what there is to be said of it was said."""
        self.is_silent = self.is_told = True
        self._outlook.ended(ending_of(uj), uj.status.message, now_s)

    def tidy(self, uj: UnifiedJob, kind: JobType | None, now_s: float) -> None:
        """Nobody holds a GPU for a job that is over; pods that are over too stay for those who read logs."""
        if self._outlook.end is not None and self._outlook.end[0] is JobState.SUCCEEDED:
            self._children.delete_pods(uj, self._ensemble.seen(uj).pods, now_s)
        else:
            self._ensemble.clear(uj, None if self.has_vanished else kind, now_s, keep_over=True)

    def rest(self, uj: UnifiedJob, kind: JobType | None, now_s: float) -> float:
        """What it left behind ends, and the object is deleted in time; when to look again for that."""
        self.tidy(uj, kind, now_s)
        ttl_s = uj.spec.ttl_seconds_after_finished
        ended_s = seconds(uj.status.completion_time or "")
        if ttl_s is None or not ended_s:
            return math.inf
        if now_s < ended_s + ttl_s:
            return ended_s + ttl_s
        self._children.delete_job(uj, now_s)
        return math.inf


def deadline_s(uj: UnifiedJob) -> float:
    """When a job has run too long, by its user's own word."""
    limit_s, began_s = uj.spec.active_deadline_seconds, seconds(uj.status.start_time or "")
    return began_s + limit_s if limit_s is not None and began_s else math.inf
