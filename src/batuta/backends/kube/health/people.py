"""What people and other programs did to a node: their cordons and taints, and what they say is mended."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from batuta.backends.kube import names, objects
from batuta.backends.kube.health.marks import EFFECT, own_taint
from batuta.backends.kube.operator.pod_job import seconds
from batuta.core.health_record import WHOLE_NODE

CORDON: Final = "kubectl cordon"
TAINT: Final = "a taint that is not Batuta's"
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_GPU: Final = re.compile(r"(?:gpu-?)?([0-9]{1,4})", re.IGNORECASE)


class Mended(NamedTuple):
    """What somebody says was mended."""

    gpus: frozenset[int] = frozenset()
    """`WHOLE_NODE` for the node itself."""
    everything: bool = False
    unclear: str = ""
    """A word that says nothing."""


def cordoned_by(node: objects.Node) -> str:
    """How somebody else has taken a node out of service; empty: nobody has."""
    if node.spec.unschedulable:
        return CORDON
    ours = own_taint(node.metadata.annotations)
    foreign = any(taint.value != ours for taint in _unhealthy(node))
    return TAINT if foreign else ""


def cordoned_s(node: objects.Node) -> float:
    """Since when; 0 where nobody knows. The node controller makes a taint of a cordon, with its time."""
    keys = (_UNSCHEDULABLE, names.UNHEALTHY)
    times = (seconds(taint.time_added) for key in keys for taint in node.spec.taints if taint.key == key)
    return next(filter(None, times), 0.0)


def has_taken_taint_off(node: objects.Node) -> bool:
    """Whether somebody has removed the taint that the operator put there: the node is well by their word."""
    return bool(own_taint(node.metadata.annotations)) and not _unhealthy(node)


def mended(node: objects.Node) -> Mended | None:
    """What the annotation says that people write; None without one."""
    text = node.metadata.annotations.get(names.MENDED)
    if text is None:
        return None
    gpus: set[int] = set()
    everything = False
    for word in re.split(r"[\s,]+", text.strip()):
        found = _GPU.fullmatch(word)
        if word in {"all", "true"}:
            everything = True
        elif word == "node":
            gpus.add(WHOLE_NODE)
        elif found is not None:
            gpus.add(int(found[1]))
        else:
            return Mended(unclear=word[:60])
    return Mended(frozenset(gpus), everything)


def _unhealthy(node: objects.Node) -> list[objects.Taint]:
    return [one for one in node.spec.taints if one.key == names.UNHEALTHY and one.effect == EFFECT]
