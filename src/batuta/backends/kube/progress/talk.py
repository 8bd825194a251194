"""What is said between Batuta and the script of one job: it is listened to, asked, and let finish."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from batuta.backends.kube import objects
from batuta.backends.kube.jobtypes.job_type import JobType
from batuta.backends.kube.operator.run import Site
from batuta.backends.kube.progress.asking import Asking
from batuta.backends.kube.progress.heard import Heard, LogOf
from batuta.backends.kube.progress.reports import Reports
from batuta.backends.kube.progress.said import ResultGiven
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import Span
from batuta.core.job import Job, JobId
from batuta.core.progress import Progress
from batuta.engine.stragglers.rank_watch import RankWatch
from batuta.spec.problem import InputError
from batuta.spec.task_ranks import RankWishes, rank_wishes

LAST_WORDS_S: Final = 2.0
"""A job that has succeeded is over so much later at most, if the end of its log is slow to come."""
YOUNG_S: Final = 5.0
"""In so long a script may have said nothing yet; after that it is known whether it is one that reports."""


class Talk:
    """One job, through all its starts. For the engine's thread."""

    def __init__(self, site: Site, job: JobId) -> None:
        self._site = site
        self._job = job
        self._ranks = RankWatch(job, site.listening.ranks)
        self._wishes = RankWishes()
        self._reports = Reports(self._ranks)
        self._asking = Asking(site, self._reports)
        self._begun_s = -math.inf
        self._until_s = math.inf
        """Until when its last words are waited for."""
        self.progress: Progress | None = None
        """The last that the World was told."""
        self.due_s = math.inf
        """When to look again at what is waited for."""

    @property
    def result(self) -> str | None:
        return self._reports.result

    @property
    def is_asking(self) -> bool:
        """Whether its pods are about to go, and save before that."""
        return self._asking.is_open

    def began(self, job: Job, start: int, places: Iterable[Span], begun_s: float) -> None:
        """All members of a start run, or run at another size: since then."""
        self._begun_s = begun_s
        self._reports.began(job, start, places, begun_s)
        self._asking.drop()
        self.due_s = self._until_s = math.inf

    def ended(self, now_s: float) -> None:
        """The run is over, and nothing that it says counts any more."""
        self._reports.ended(now_s)
        self._asking.drop()
        self.due_s = math.inf

    def stays(self) -> None:
        """The members that run now go on: nothing is asked of them."""
        self._asking.drop()
        self.due_s = math.inf

    def changed(self, job: Job) -> None:
        self._reports.changed(job)

    def failed(self, write: str) -> None:
        self._asking.failed(write)

    def listen(self, kind: JobType | None, pods: Iterable[objects.Pod]) -> None:
        """Says which log is to be heard now."""
        log = None if kind is None else self._log(kind, pods)
        self._site.listening.to(self._job, log)

    def hear(self, heard: Heard, now_s: float, *, is_alive: bool) -> bool:
        """Takes in what was said, and tells the World; whether the job shall be looked at for it."""
        self._site.listening.count(heard)
        event = self._reports.hear(heard, now_s)
        if event is not None and is_alive:
            self.progress = event.progress
            self._site.say(event)
        if is_alive:
            self._tell_of_ranks(now_s)
        has_result = any(isinstance(one, ResultGiven) for one in heard.said)
        return heard.is_all or has_result or self._asking.is_open

    def watch(self, labels: Mapping[str, str], now_s: float) -> float:
        """Looks whether its ranks hold it up; when to look again, even if nothing is heard until then.

        `labels` may say what the job wants to be done about it; what means nothing there is passed over.
        """
        with suppress(InputError):
            if (wishes := rank_wishes(labels)) != self._wishes:
                self._wishes = wishes
                self._ranks.judge_by(self._site.listening.ranks.for_job(wishes))
        if not self._reports.is_running or self._asking.is_open:
            return math.inf
        self._tell_of_ranks(now_s)
        return self._ranks.next_look_s(now_s)

    def _tell_of_ranks(self, now_s: float) -> None:
        for found in self._ranks.look(now_s):
            self._site.listening.on_held_up(found)

    def may_go(self, uj: UnifiedJob, pods: Collection[objects.Pod], now_s: float) -> bool:
        """Whether these pods may be ended: they have saved when asked, cannot, or have had their time."""
        if not self._site.listening.is_on:
            return True
        settled = self._asking.is_settled(uj, pods, now_s)
        self.due_s = self._asking.due_s
        return settled

    def has_more_to_say(self, kind: JobType, pods: Iterable[objects.Pod], now_s: float) -> bool:
        """Whether the end of the log of a run that has succeeded is still to be heard, and worth the wait."""
        is_young = now_s - self._begun_s < YOUNG_S
        if self._log(kind, pods) is None or not (self._reports.has_spoken or is_young):
            return False
        self.due_s = self._until_s = min(self._until_s, now_s + LAST_WORDS_S)
        return now_s < self._until_s

    def _log(self, kind: JobType, pods: Iterable[objects.Pod]) -> LogOf | None:
        """The log of which more can be heard."""
        log = self._reports.log_of(self._job, kind, pods) if self._site.listening.is_on else None
        return None if log is None or self._reports.is_spent(log) else log
