"""gang: who comes first, and which groups may try at all: those whose members are all there."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.group import Group
from batuta.backends.kube.binder.plugin import No

NAME: Final = "gang"


class Reason(StrEnum):
    """Why a group may not try."""

    MISSING = "waits for members:"
    GATED = "waits for scheduling gates:"
    TAKEN = "has a node already:"
    DELETED = "is being deleted:"
    UNKNOWN_NODE = "there is no such node"


def queue_order(group: Group) -> tuple[int, float, str]:
    """High priority first, then who has waited longest."""
    return (-group.priority, group.queued_s, group.key)


def may_try(group: Group, cluster: Cluster) -> No | None:
    """Why a group has to wait whatever is free. It holds nothing meanwhile, so it can block nobody."""
    here = len(group.members)
    if here < group.size or not here:
        return No(NAME, Reason.MISSING, f"{here} of {max(group.size, 1)} are there")
    for member in group.members:
        gates = ", ".join(gate.name for gate in member.pod.spec.scheduling_gates)
        if gates:
            return No(NAME, Reason.GATED, f"{member.key} ({gates})")
        if member.pod.metadata.deletion_timestamp:
            return No(NAME, Reason.DELETED, member.key)
        node = cluster.node_of(member.key) or member.pod.spec.node_name
        if node:
            return No(NAME, Reason.TAKEN, f"{member.key} ({node})")
    return None


def unknown_node() -> No:
    """For a member whose decided node has gone."""
    return No(NAME, Reason.UNKNOWN_NODE)
