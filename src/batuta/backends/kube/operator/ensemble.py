"""The members of a UnifiedJob: brought to their places together, listened to, and let go in good order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.job_type import JobStatus, JobType, Observed, Outcome, Run
from batuta.backends.kube.operator.adoption import Adopted, go_on
from batuta.backends.kube.operator.children import Children
from batuta.backends.kube.operator.crew import Crew
from batuta.backends.kube.operator.muster import Muster, muster
from batuta.backends.kube.operator.pod_job import seconds
from batuta.backends.kube.operator.run import Party, Site
from batuta.backends.kube.operator.stand import Places, Stand
from batuta.backends.kube.progress.talk import Talk
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import NodeName, Placement
from batuta.core.job import Job


@dataclass(frozen=True, slots=True)
class Started:
    """All members run, and nobody is too many: the run has started, or has its new size."""

    run: Run
    places: Places


@dataclass(frozen=True, slots=True)
class Astray:
    """Somebody else has bound a replica to this node, which is not its own."""

    replica: int
    node: NodeName


Became: TypeAlias = JobStatus | Started | Astray
"""What has become of a run: it goes on or is over, or something is to be told of it."""
_GOES_ON = JobStatus()


class Ensemble:
    """One job, through all its starts. It decides nothing: what has become of a run is handed back."""

    def __init__(self, site: Site, crew: Crew, stand: Stand, children: Children, talk: Talk) -> None:
        self._site = site
        self._crew = crew
        self._stand = stand
        self._children = children
        self._talk = talk
        self.trouble = ""
        """Why its children could not all be written when they were brought on last."""
        self.due_s = math.inf
        """When to look again, since it was last asked whether the members stay."""

    def seen(self, uj: UnifiedJob) -> Observed:
        return self._children.seen(uj, self._crew.pods.values())

    # -------------------------------------------------------------------------------------------- they come

    def take_up(
        self, uj: UnifiedJob, kind: JobType, job: Job, planned: Placement | None, now_s: float
    ) -> Adopted | None:
        """Goes on with the run that an operator before this one had begun, if there is one that can."""
        found = go_on(uj, kind, self._crew, planned)
        if found is not None:
            self._stand.take_up(found, kind)
            if self._stand.has_started:
                self._begin(kind, job, now_s)
        return found

    def bring(
        self, uj: UnifiedJob, kind: JobType, job: Job, workers: Places, dressed: UnifiedJob, now_s: float
    ) -> Became:
        """Does the next step to the places that are wanted, or raises Unmakeable.

        `dressed`: the object with a template that tolerates all that its pods may.
        """
        if self._stand.aim(uj, kind, workers):
            self._talk.ended(now_s)
        run, seen = self._stand.run, self.seen(uj)
        assert run is not None
        status = kind.status(uj, run, seen)
        if status.outcome is not Outcome.RUNNING:
            return status
        self._children.bring(kind, dressed, run, seen, now_s)
        self.trouble = self._children.trouble
        self.due_s = min(self.due_s, self._children.due_s)
        return self._take_seats(uj, kind, job, now_s)

    def _take_seats(self, uj: UnifiedJob, kind: JobType, job: Job, now_s: float) -> Became:
        """All members are there: those without a place get theirs together."""
        found = muster(self._stand, self._crew, kind)
        if found.lost:
            gone = f"replica {', '.join(map(str, found.lost))} is gone"
            return JobStatus(outcome=Outcome.DISRUPTED, message=gone)
        if found.astray is not None:
            return Astray(*found.astray)
        if found.is_full and found.waiting:
            self._ask_for_seats(uj, job, found)
        if found.is_full and found.are_seated:
            return self._settle(kind, job, found, now_s)
        return _GOES_ON

    def _ask_for_seats(self, uj: UnifiedJob, job: Job, found: Muster) -> None:
        assert self._stand.run is not None
        key, since_s = f"{uj.id}#{self._stand.run.start}", seconds(uj.metadata.creation_timestamp)
        self._site.seat(Party(key, uj.id, found.waiting, job.priority, since_s))

    def _settle(self, kind: JobType, job: Job, found: Muster, now_s: float) -> Became:
        """All have a place."""
        stand = self._stand
        assert stand.run is not None
        stand.stood = stand.places
        if stand.has_started or not found.is_exact or not found.have_begun:
            return _GOES_ON
        stand.has_started, stand.ran = True, stand.places
        self._begin(kind, job, now_s)
        return Started(stand.run, stand.places)

    def _begin(self, kind: JobType, job: Job, now_s: float) -> None:
        """From now on it is listened to what the run reports, which began when its last pod was started."""
        assert self._stand.run is not None
        members = self._stand.members(kind).values()
        begun_s = max((seconds(pod.status.start_time) for pod in members), default=0.0) or now_s
        self._talk.began(job, self._stand.run.start, self._stand.places, min(begun_s, now_s))

    # ---------------------------------------------------------------------------------------------- they go

    def detain(
        self, uj: UnifiedJob, kind: JobType, workers: Places, is_ending: bool, now_s: float
    ) -> JobStatus | None:
        """Why nothing may be changed yet for these places; None when members stay, or may be ended.

        Those that save when asked are asked first, and waited for. Meanwhile the run may come to its end.
        """
        self.due_s = math.inf
        stand, talk = self._stand, self._talk
        if stand.keeps_members(uj, kind, workers):
            talk.stays()
            return None
        if stand.run is None or not stand.ran or stand.is_spent or is_ending:
            return None
        status = kind.status(uj, stand.run, self.seen(uj))
        if status.outcome is Outcome.SUCCEEDED and talk.is_asking:
            return status
        if status.outcome is not Outcome.RUNNING:
            return None
        start = str(stand.run.start)
        pods = [pod for pod in self._crew.pods.values() if pod.metadata.labels.get(names.START) == start]
        may_go = talk.may_go(uj, pods, now_s)
        self.due_s = talk.due_s
        return None if may_go else status

    def has_last_words(self, kind: JobType, job: Job, now_s: float) -> bool:
        """Whether the end of what a run that is over has said is still to be heard: its result, say."""
        if self._stand.run is None:
            return False
        if not self._stand.ran:
            self._stand.ran = self._stand.places
            self._begin(kind, job, now_s)  # it was done before anybody saw it run
        has_more = self._talk.has_more_to_say(kind, self._crew.pods.values(), now_s)
        self.due_s = min(self.due_s, self._talk.due_s)
        return has_more

    def stop(self, uj: UnifiedJob, kind: JobType, keep_waiting: bool, now_s: float) -> bool:
        """Gives all places back; whether nobody has one any more.

        `keep_waiting`: pods that have no place stay, and serve for the next try.
        """
        self._stand.leave()
        self._talk.ended(now_s)
        if keep_waiting and self._stand.run is not None and not self._crew.has_places(kind):
            return False
        self._stand.is_spent = True
        is_clear = self.clear(uj, kind, now_s)
        if is_clear:
            self._stand.end()
        return is_clear

    def clear(self, uj: UnifiedJob, kind: JobType | None, now_s: float, *, keep_over: bool = False) -> bool:
        """Asks for the end of everything that holds a place; whether nothing does."""
        nobody = self._stand.nobody(uj)
        return self._children.clear(kind, uj, nobody, self.seen(uj), now_s, keep_over)
