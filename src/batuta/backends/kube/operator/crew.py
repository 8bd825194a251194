"""The pods of one UnifiedJob: who is there, of which start, and who has a place."""

from __future__ import annotations

from collections.abc import Iterator

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.tenant import is_over, pod_key
from batuta.backends.kube.jobtypes.job_type import JobType
from batuta.backends.kube.operator.places import gpus_of
from batuta.core.cluster import Span


class Crew:
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
            owner.uid == self._uid
            for owner in meta.owner_references
            if owner.controller and owner.kind == names.KIND
        )

    # --------------------------------------------------------------------------------------------- members

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
        """Pods without GPUs that belong to the job: launchers."""
        return [
            pod
            for pod in self.pods.values()
            if kind.replica_of(pod) is None and not is_over(pod) and not pod.metadata.deletion_timestamp
        ]

    def has_places(self, kind: JobType | None) -> bool:
        """Whether a worker has a place."""
        return any(pod.spec.node_name for pod in self.workers(kind).values())

    def last_start(self) -> int:
        """The last start of which there are pods; -1 without any."""
        labels = (pod.metadata.labels.get(names.START, "") for pod in self.pods.values())
        return max((int(text) for text in labels if text.isdecimal()), default=-1)

    def _staying(self, kind: JobType | None) -> Iterator[tuple[int, objects.Pod]]:
        for pod in self.pods.values() if kind is not None else ():
            index = kind.replica_of(pod) if kind is not None else None
            if index is not None and not pod.metadata.deletion_timestamp:
                yield index, pod


def _age(pod: objects.Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


def place_of(pod: objects.Pod) -> Span | None:
    """The node and the GPUs that a pod was bound to; None while it waits, or when nobody wrote them down."""
    gpus = gpus_of(pod)
    return Span(pod.spec.node_name, gpus) if pod.spec.node_name and gpus else None


def seated(members: dict[int, objects.Pod]) -> tuple[Span, ...]:
    """The places of those that have one, from the first on without a gap."""
    places: list[Span] = []
    for index, pod in members.items():
        place = place_of(pod)
        if index != len(places) or place is None:
            break
        places.append(place)
    return tuple(places)
