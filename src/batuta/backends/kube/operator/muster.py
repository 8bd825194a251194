"""Who of a run is there, and who of them has no place yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batuta.backends.kube import objects
from batuta.backends.kube.binder.tenant import has_begun
from batuta.backends.kube.jobtypes.job_type import JobType
from batuta.backends.kube.operator.crew import Crew
from batuta.backends.kube.operator.run import Seat
from batuta.backends.kube.operator.stand import Stand
from batuta.core.cluster import NodeName


@dataclass(frozen=True, slots=True)
class Muster:
    """The members that there shall be, as they are now."""

    members: Mapping[int, objects.Pod]
    """Those that are there, by replica."""
    is_full: bool
    """All are there …"""
    is_exact: bool
    """… and nobody else."""
    lost: tuple[int, ...]
    """Replicas that had a place and are gone."""
    astray: tuple[int, NodeName] | None
    """A replica that somebody else has bound to another node than its own, and that node."""
    waiting: tuple[Seat, ...]
    """Who has no node yet, launchers included."""

    @property
    def are_seated(self) -> bool:
        return all(pod.spec.node_name for pod in self.members.values())

    @property
    def have_begun(self) -> bool:
        return all(map(has_begun, self.members.values()))


def muster(stand: Stand, crew: Crew, kind: JobType) -> Muster:
    """Looks at a run that has been aimed at its places."""
    assert stand.run is not None
    target, places, there = stand.run.target, stand.places, stand.members(kind)
    members = {index: pod for index, pod in there.items() if index < target}
    is_full = len(members) == target
    astray = (
        (index, pod.spec.node_name)
        for index, pod in members.items()
        if pod.spec.node_name not in ("", places[index].node)
    )
    waiting = [Seat(pod, places[index]) for index, pod in members.items() if not pod.spec.node_name]
    waiting += [Seat(pod, None) for pod in crew.helpers(kind) if not pod.spec.node_name]
    return Muster(
        members,
        is_full,
        is_full and len(there) == target,
        tuple(index for index in range(len(stand.stood)) if index not in members),
        next(astray, None),
        tuple(waiting),
    )
