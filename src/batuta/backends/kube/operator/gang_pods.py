"""The pods of a gang: who is there, who has a seat, who has ended, and what that means for the gang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from batuta.backends.kube import objects
from batuta.backends.kube.binder.tenant import is_over, pod_key
from batuta.backends.kube.operator.gangs import GangId, Owners
from batuta.backends.kube.operator.places import gpus_of
from batuta.core.cluster import NodeName, Span
from batuta.core.job import JobState

MADE_ANEW: Final = ("job", "jobset")
"""Kinds of gangs whose owner makes other pods when some are gone."""


class GangPods:
    """All pods of one gang that the API server has shown, by key."""

    __slots__ = ("_gang", "_has_node", "_owners", "by_key")

    def __init__(self, gang: GangId, owners: Owners, has_node: Callable[[NodeName], bool]) -> None:
        self.by_key: dict[str, objects.Pod] = {}
        self._gang = gang
        self._owners = owners
        self._has_node = has_node

    def alive(self) -> list[objects.Pod]:
        return [pod for pod in self.by_key.values() if not is_over(pod)]

    def staying(self) -> list[objects.Pod]:
        """Neither over nor on their way out; oldest first."""
        found = (pod for pod in self.by_key.values() if not is_over(pod))
        return sorted((pod for pod in found if not pod.metadata.deletion_timestamp), key=age)

    def seated(self) -> dict[str, Span]:
        """Those that stay and have a seat on a node that is there; oldest first."""
        return {
            pod_key(pod): Span(pod.spec.node_name, gpus_of(pod))
            for pod in self.staying()
            if pod.spec.node_name and self._has_node(pod.spec.node_name)
        }

    def size(self, pod: objects.Pod) -> int | None:
        """How many start together; None while nobody knows. If all have come, who is over needs no other."""
        size = self._owners.size(self._gang, pod)
        return self.lasting(size) if size is not None and size == len(self.by_key) else size

    def lasting(self, members: int) -> int:
        """How many of so many members are still to run: who has ended for good is not made again."""
        over = [pod for pod in self.by_key.values() if is_over(pod)]
        if not over:
            return members
        size = self._owners.size(self._gang, over[0])
        if self._gang.kind == "job":
            return members if size is None else min(members, size)  # its owner has counted who has ended
        ended = over
        if self._gang.kind in MADE_ANEW:
            ended = [pod for pod in over if pod.status.phase == "Succeeded"]
        came = len(self.by_key) - len(over) + len(ended)
        return min(members, max(members if size is None else size, came) - len(ended))

    def are_made_anew(self) -> bool:
        """Whether somebody makes other pods for those that are deleted."""
        return self._gang.kind in MADE_ANEW or any(
            owner.controller for pod in self.by_key.values() for owner in pod.metadata.owner_references
        )

    def end(self, is_ending: bool) -> tuple[JobState, str] | None:
        """How the gang has ended; None while it goes on."""
        alive = self.alive()
        owner = self._owners.jobs.get(self._gang.key) if self._gang.kind == "job" else None
        if alive:
            if self._gang.kind in MADE_ANEW or not all(pod.metadata.deletion_timestamp for pod in alive):
                return None
            # Nobody takes a deletion back. What the pods still hold counts as used by others.
            return JobState.CANCELLED, "its pods are deleted"
        if not self.by_key:
            if owner is not None and not is_ending:
                return None
            return JobState.CANCELLED, "its pods are gone"
        if owner is not None and not _is_finished(owner):
            return None
        failed = [pod for pod in self.by_key.values() if pod.status.phase == "Failed"]
        if not failed:
            return JobState.SUCCEEDED, ""
        said = failed[0].status.message or failed[0].status.reason
        return JobState.FAILED, f"pod {failed[0].metadata.name} failed" + (f": {said}" if said else "")


def age(pod: objects.Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp, pod.metadata.name


def _is_finished(job: objects.Batch) -> bool:
    conditions = job.status.get("conditions") or ()
    return any(
        one.get("type") in ("Complete", "Failed") and one.get("status") == "True" for one in conditions
    )
