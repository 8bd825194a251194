"""Input and output of a binder cycle: groups, bindings, refusals; and the gang check.

A group is tried only when all of its members are there, in the order of priority and waiting time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from batuta.backends.kube import objects
from batuta.backends.kube.binder.cluster import Cluster, pod_key
from batuta.backends.kube.binder.plugin import No

GANG: Final = "gang"


@dataclass(frozen=True, slots=True)
class Member:
    """A pod to place. `node` and `gpus` say where, if that has been decided already."""

    pod: objects.Pod
    node: str = ""
    gpus: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        return pod_key(self.pod)


@dataclass(frozen=True, slots=True)
class Within:
    """That members of a group without a decided place shall lie together, within one domain of a level."""

    level: str
    mode: Literal["Preferred", "Required"] = "Preferred"


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that get a node together or not at all; a pod on its own is a group of one."""

    key: str
    members: tuple[Member, ...]
    priority: int = 0
    queued_s: float = 0.0
    size: int = 0  # how many members the group needs; 0: those that are there
    within: Within | None = None
    load: float | None = None  # the utilisation of its GPUs that history expects of the job, from 0 to 1
    single_numa: bool = False  # whether each pod shall get all it needs from one NUMA node


class Binding(NamedTuple):
    """A pod, the node it goes to, and what to write on it together with the binding."""

    pod: objects.Pod
    node: str
    gpus: tuple[int, ...]
    annotations: Mapping[str, str]
    group: str

    @property
    def key(self) -> str:
        return pod_key(self.pod)


class Why(NamedTuple):
    """A reason, and how many nodes gave it."""

    no: No
    nodes: int

    def __str__(self) -> str:
        return f"{self.nodes} {self.no}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a group has to wait."""

    group: str
    pod: str = ""  # the member that found no place; empty where the whole group is meant
    nodes: int = 0
    placed: int = 0
    members: int = 0
    reasons: tuple[Why, ...] = ()
    by_node: Mapping[str, No] = field(default_factory=dict)
    """For members whose place was decided on: why it will not do."""

    @property
    def message(self) -> str:
        if self.by_node:
            return "; ".join(f"node {node}: {no}" for node, no in self.by_node.items())
        if not self.pod:
            return "; ".join(str(one.no) for one in self.reasons)
        partly = f"{self.placed} of {self.members} members have a place; for the next, " if self.placed else ""
        found = ", ".join(map(str, self.reasons)) or "there are no nodes"
        return f"{partly}0/{self.nodes} nodes are available: {found}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cycle decided. Every group is in exactly one of the three."""

    bindings: tuple[Binding, ...]
    refusals: tuple[Refusal, ...]
    faults: tuple[tuple[str, Exception], ...] = ()  # by group: what the binder itself failed with


class GangReason(StrEnum):
    """Why a group may not try."""

    MISSING = "waits for members:"
    GATED = "waits for scheduling gates:"
    TAKEN = "has a node already:"
    DELETED = "is being deleted:"
    UNKNOWN_NODE = "there is no such node"


UNKNOWN_NODE: Final = No(GANG, GangReason.UNKNOWN_NODE)


def queue_order(group: Group) -> tuple[int, float, str]:
    """High priority first, then who has waited longest."""
    return (-group.priority, group.queued_s, group.key)


def may_try(group: Group, cluster: Cluster) -> No | None:
    """Why a group has to wait whatever is free. It holds nothing meanwhile, so it blocks no other group."""
    here = len(group.members)
    if here < group.size or not here:
        return No(GANG, GangReason.MISSING, f"{here} of {max(group.size, 1)} are there")
    for member in group.members:
        gates = ", ".join(gate.name for gate in member.pod.spec.scheduling_gates)
        if gates:
            return No(GANG, GangReason.GATED, f"{member.key} ({gates})")
        if member.pod.metadata.deletion_timestamp:
            return No(GANG, GangReason.DELETED, member.key)
        node = cluster.node_of(member.key) or member.pod.spec.node_name
        if node:
            return No(GANG, GangReason.TAKEN, f"{member.key} ({node})")
    return None
