"""The state of one run of a UnifiedJob: its pods, their places, and when another run has to begin.

`resume_run` finds how much of a run that an earlier operator began can go on, from its pods alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import has_begun, is_over, pod_key
from batuta.backends.kube.bounded_text import read_gpus, read_whole
from batuta.backends.kube.jobtypes.job_type import Change, JobType, Run
from batuta.backends.kube.operator.context import PodPlacement, placement_from
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import NodeName, Placement, Span

MOST_STARTS: Final = 2**31 - 2  # a job's status counts them in 32 bits
Places: TypeAlias = tuple[Span, ...]  # by replica


class PodSet:
    """Told of pods as they come, change and go. Pods of an earlier job of the same name are not its own."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self.pods: dict[str, objects.Pod] = {}

    def see(self, pod: objects.Pod) -> None:
        if self._is_own(pod.metadata):
            self.pods[pod_key(pod)] = pod
        else:
            self.lose(pod_key(pod))

    def lose(self, key: str) -> None:
        self.pods.pop(key, None)

    def _is_own(self, meta: objects.Meta) -> bool:
        return all(
            owner.uid == self._uid for owner in meta.owner_references if owner.controller and owner.kind == names.KIND
        )

    def workers(self, kind: JobType | None) -> dict[int, objects.Pod]:
        """Worker pods that are not over and stay, of whatever start, by replica; of two the newer one."""
        found = ((index, pod) for index, pod in self._staying(kind) if not is_over(pod))
        return dict(sorted(found, key=lambda one: (one[0], _age(one[1]))))

    def members(self, kind: JobType | None, start: int) -> dict[int, objects.Pod]:
        """Worker pods of one start by replica, those that are over included: they have done their part."""
        label = str(start)
        own = (one for one in self._staying(kind) if one[1].metadata.labels.get(names.START) == label)
        return dict(sorted(own, key=lambda one: one[0]))

    def helpers(self, kind: JobType) -> list[objects.Pod]:
        """Pods that belong to the job and are no replica: launchers."""
        return [
            pod
            for pod in self.pods.values()
            if kind.replica_of(pod) is None and not is_over(pod) and not pod.metadata.deletion_timestamp
        ]

    def has_places(self, kind: JobType | None) -> bool:
        return any(pod.spec.node_name for pod in self.workers(kind).values())

    def last_start(self) -> int:
        """The last start of which there are pods; -1 without any."""
        labels = (pod.metadata.labels.get(names.START, "") for pod in self.pods.values())
        return max((start for text in labels if (start := read_whole(text, most=MOST_STARTS)) is not None), default=-1)

    def _staying(self, kind: JobType | None) -> Iterator[tuple[int, objects.Pod]]:
        for pod in self.pods.values() if kind is not None else ():
            index = kind.replica_of(pod) if kind is not None else None
            if index is not None and not pod.metadata.deletion_timestamp:
                yield index, pod


def _age(pod: objects.Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


def place_of(pod: objects.Pod, cpu_only: bool) -> Span | None:
    """The node and the GPUs that a pod was bound to; None while it waits, or when its GPUs are not known.

    A pod of a CPU-only job has no GPUs: its node is its place.
    """
    gpus = () if cpu_only else read_gpus(pod.metadata.annotations)
    return Span(pod.spec.node_name, gpus) if pod.spec.node_name and (gpus or cpu_only) else None


def places_of(members: dict[int, objects.Pod], cpu_only: bool) -> tuple[Span, ...]:
    """The places of those that have one, from the first on without a gap."""
    places: list[Span] = []
    for index, pod in members.items():
        place = place_of(pod, cpu_only)
        if index != len(places) or place is None:
            break
        places.append(place)
    return tuple(places)


@dataclass(frozen=True, slots=True)
class AdoptedRun:
    """A run that goes on, and where its members are or shall be."""

    run: Run
    places: tuple[Span, ...]
    stood: tuple[Span, ...]  # the places that were taken; not all when the binding was under way


def resume_run(uj: UnifiedJob, kind: JobType, pod_set: PodSet, planned: Placement | None) -> AdoptedRun | None:
    """What was planned, when the pods are on the way to it; else the part that runs; else None."""
    start = pod_set.last_start()
    members = pod_set.members(kind, start)
    if not members:
        return None
    known = uj.status.run
    if known is None or known.start != start:
        # It was killed before it wrote down what it had begun.
        first, ceiling = len(members), uj.spec.replica_spec.largest
    else:
        first, ceiling = known.first_replicas, known.max_replicas
    begun = Run(first, start, first, ceiling)
    replicas = uj.spec.replica_spec
    stood = places_of(members, replicas.cpu_only)
    workers = () if planned is None else planned.workers(replicas.gpus_per_replica)
    on_its_way = all(
        index < len(workers) and place_of(pod, replicas.cpu_only) in (None, workers[index])
        for index, pod in members.items()
    )
    if on_its_way and _can_be(uj, kind, begun, len(workers)):
        run = Run(len(workers), start, first, ceiling)
        return AdoptedRun(run, workers, stood if _can_be(uj, kind, begun, len(stood)) else ())
    size = max((n for n in range(1, len(stood) + 1) if replicas.allows(n)), default=0)
    if size == 0 or not _can_be(uj, kind, begun, size):
        return None
    return AdoptedRun(Run(size, start, first, ceiling), stood[:size], stood[:size])


def _can_be(uj: UnifiedJob, kind: JobType, begun: Run, size: int) -> bool:
    """Whether a run that was started with some size can have this one now."""
    if size == begun.target:
        return True
    return size > 0 < begun.target and kind.change(uj, begun, size) is Change.IN_PLACE


@dataclass(frozen=True, slots=True)
class GangStatus:
    """The members that there shall be, as they are now."""

    members: Mapping[int, objects.Pod]  # those that are there, by replica
    is_full: bool  # all are there …
    is_exact: bool  # … and no other pod
    lost: tuple[int, ...]  # replicas that had a place and are gone
    astray: tuple[int, NodeName] | None
    """A replica that another scheduler has bound to another node than its own, and that node."""
    waiting: tuple[PodPlacement, ...]  # who has no node yet, launchers included

    @property
    def are_seated(self) -> bool:
        return all(pod.spec.node_name for pod in self.members.values())

    @property
    def have_begun(self) -> bool:
        return all(map(has_begun, self.members.values()))


@dataclass(slots=True, eq=False)
class RunState:
    """Where one job is, was, and shall be. Without a run nothing of it is there."""

    pod_set: PodSet
    run: Run | None = None
    places: Places = ()  # where its members are, or shall be
    stood: Places = ()  # the places of this run when all its members had one last: it can go back there
    ran: Places = ()  # its places when all its members had begun last. Who came since can go without being missed.
    has_started: bool = False  # all that the World wants of it runs, and the World knows
    is_spent: bool = False  # members of the run have been told to end: the next one is another start

    def take_up(self, found: AdoptedRun, kind: JobType) -> None:
        """Goes on with a run that another operator had begun."""
        self.run, self.places, self.stood = found.run, found.places, found.stood
        self.has_started = self.stood == self.places and all(map(has_begun, self.members(kind).values()))
        self.ran = self.places if self.has_started else ()

    def members(self, kind: JobType) -> dict[int, objects.Pod]:
        assert self.run is not None
        return self.pod_set.members(kind, self.run.start)

    def pods(self) -> list[objects.Pod]:
        """All pods of the run, launchers included."""
        start = "" if self.run is None else str(self.run.start)
        return [pod for pod in self.pod_set.pods.values() if pod.metadata.labels.get(names.START) == start]

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
        elif run is not None and run.target == target and not self.pod_set.has_places(kind):
            pass  # its pods have no place yet, so another one costs nothing
        else:
            own = -1 if self.run is None else self.run.start
            start = max(self.pod_set.last_start(), own, _known_start(uj)) + 1
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
        """Whether it has these places and was about to grow, and no pod that came for that has begun."""
        if workers != self.ran:
            return False
        newcomers = (pod for index, pod in self.members(kind).items() if index >= len(workers))
        return not any(map(has_begun, newcomers))

    def can_go_back(self, kind: JobType | None) -> bool:
        """Whether all that stood are where they were. One that was made again since is not."""
        if kind is None or self.run is None or not self.stood:
            return False
        members = self.members(kind)
        return all(
            index in members and members[index].spec.node_name == place.node for index, place in enumerate(self.stood)
        )

    def go_back(self) -> Placement:
        assert self.run is not None
        self.run, self.places = replace(self.run, target=len(self.stood)), self.stood
        self.has_started = True
        return placement_from(self.stood)

    def gang_status(self, kind: JobType) -> GangStatus:
        """Looks at a run that has been aimed at its places."""
        assert self.run is not None
        target, places, there = self.run.target, self.places, self.members(kind)
        members = {index: pod for index, pod in there.items() if index < target}
        is_full = len(members) == target
        astray = (
            (index, pod.spec.node_name)
            for index, pod in members.items()
            if pod.spec.node_name not in ("", places[index].node)
        )
        waiting = [PodPlacement(pod, places[index]) for index, pod in members.items() if not pod.spec.node_name]
        waiting += [PodPlacement(pod, None) for pod in self.pod_set.helpers(kind) if not pod.spec.node_name]
        return GangStatus(
            members,
            is_full,
            is_full and len(there) == target,
            tuple(index for index in range(len(self.stood)) if index not in members),
            next(astray, None),
            tuple(waiting),
        )

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
        self.run, self.places = None, ()

    def without_replicas(self, uj: UnifiedJob) -> Run:
        last = max(self.pod_set.last_start(), _known_start(uj), 0)
        return Run(0, last if self.run is None else self.run.start)


def _known_start(uj: UnifiedJob) -> int:
    """The start that was written down last; -1 for none."""
    return -1 if uj.status.run is None else uj.status.run.start
