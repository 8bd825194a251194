"""The run of a UnifiedJob and its places: what it lives through, and when another one has to begin."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.tenant import has_begun
from batuta.backends.kube.jobtypes.job_type import Change, JobType, Run
from batuta.backends.kube.operator.adoption import Adopted
from batuta.backends.kube.operator.crew import Crew
from batuta.backends.kube.operator.places import placement_from
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import Placement, Span

Places: TypeAlias = tuple[Span, ...]
"""By replica."""


class Stand:
    """Where one job is, was, and shall be. Without a run nothing of it is there."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.run: Run | None = None
        self.places: Places = ()
        """Where its members are, or shall be."""
        self.stood: Places = ()
        """The places of this run when all its members had one last: it can go back there."""
        self.ran: Places = ()
        """Its places when all its members had begun last. Who came since can go without being missed."""
        self.has_started = False
        """All that the World wants of it runs, and the World knows."""
        self.is_spent = False
        """Members of the run have been told to end: the next one is another start."""

    def take_up(self, found: Adopted, kind: JobType) -> None:
        """Goes on with a run that another operator had begun."""
        self.run, self.places, self.stood = found.run, found.places, found.stood
        self.has_started = self.stood == self.places and all(map(has_begun, self.members(kind).values()))
        self.ran = self.places if self.has_started else ()

    def members(self, kind: JobType) -> dict[int, objects.Pod]:
        """The pods of the run by replica."""
        assert self.run is not None
        return self._crew.members(kind, self.run.start)

    # -------------------------------------------------------------------------------- towards other places

    def keeps_members(self, uj: UnifiedJob, kind: JobType, workers: Places) -> bool:
        """Whether those that run now go on when the job has these places."""
        if self.run is None or self.is_spent or not workers:
            return False
        if self.places == workers or self._can_go_back_to(kind, workers):
            return True
        return self._changes_in_place(uj, kind, workers)

    def aim(self, uj: UnifiedJob, kind: JobType, workers: Places) -> bool:
        """Makes the run the one that is wanted: changed if its type can be, else another; whether another."""
        run, target, is_another = self.run, len(workers), False
        if self.is_spent:
            run, self.is_spent = None, False
        if run is not None and self.places == workers:
            return False
        if run is not None and self._changes_in_place(uj, kind, workers):
            self.run, self.stood = replace(run, target=target), self.stood[:target]
        elif run is not None and self._can_go_back_to(kind, workers):
            self.run, self.stood = replace(run, target=target), workers
        elif run is not None and run.target == target and not self._crew.has_places(kind):
            pass  # its pods have no place yet, so another one costs nothing
        else:
            own = -1 if self.run is None else self.run.start
            start = max(self._crew.last_start(), own, _known_start(uj)) + 1
            self.run = Run(target, start, target, uj.spec.replica_spec.largest)
            self.stood = self.ran = ()
            is_another = True
        self.places, self.has_started = workers, False
        return is_another

    def _changes_in_place(self, uj: UnifiedJob, kind: JobType, workers: Places) -> bool:
        """Whether members come or go, and all others stay where they are and go on."""
        assert self.run is not None
        common = min(len(self.places), len(workers))
        if not self.stood or self.places[:common] != workers[:common]:
            return False
        return kind.change(uj, self.run, len(workers)) is Change.IN_PLACE

    def _can_go_back_to(self, kind: JobType, workers: Places) -> bool:
        """Whether it has these places and was about to grow, and nobody who came for that has begun."""
        if workers != self.ran:
            return False
        newcomers = (pod for index, pod in self.members(kind).items() if index >= len(workers))
        return not any(map(has_begun, newcomers))

    # ------------------------------------------------------------------------------------- as it goes on

    def can_go_back(self, kind: JobType | None) -> bool:
        """Whether all that stood are where they were. One that was made again since is not."""
        if kind is None or self.run is None or not self.stood:
            return False
        members = self.members(kind)
        return all(
            index in members and members[index].spec.node_name == place.node
            for index, place in enumerate(self.stood)
        )

    def go_back(self) -> Placement:
        """New members could not be seated: it stays as it stood."""
        assert self.run is not None
        self.run, self.places = replace(self.run, target=len(self.stood)), self.stood
        self.has_started = True
        return placement_from(self.stood)

    def leaves(self, pod: objects.Pod, kind: JobType | None) -> bool:
        """Whether a pod is none of those that there shall be."""
        if self.run is None or pod.metadata.labels.get(names.START) != str(self.run.start):
            return True
        index = None if kind is None else kind.replica_of(pod)
        return index is not None and index >= self.run.target

    def leave(self) -> None:
        """Its places are given back, and there is no return to them."""
        self.has_started = False
        self.stood = self.ran = ()

    def end(self) -> None:
        """Nobody of the run is left."""
        self.run, self.places = None, ()

    def nobody(self, uj: UnifiedJob) -> Run:
        """The run without a member."""
        last = max(self._crew.last_start(), _known_start(uj), 0)
        return Run(0, last if self.run is None else self.run.start)


def _known_start(uj: UnifiedJob) -> int:
    """The start that was written down last; -1 for none."""
    return -1 if uj.status.run is None else uj.status.run.start
