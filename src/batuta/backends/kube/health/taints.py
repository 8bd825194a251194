"""The taint, annotations and condition that a node carries because of its health, and those that others set.

`marks_of` and `node_patch` are pure. `NodeMarker` has the patches written until the node shows them.
External taints and cordons, and the annotation by which an administrator reports a repair, are read here too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.bounded_text import read_time
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Conflict, NotFound
from batuta.backends.kube.client.kinds import NODE
from batuta.backends.kube.crd import time_text
from batuta.backends.kube.health.annotations import OWN, read_node_health
from batuta.backends.kube.health.state import HealthState
from batuta.backends.kube.operator.workqueue import AskFn
from batuta.core.cluster import NodeName
from batuta.core.health import HealthStateMachine
from batuta.core.health_record import WHOLE_NODE, Record, State, Target
from batuta.core.health_rules import Action

EFFECT: Final = "NoSchedule"
_LONGEST_VALUE: Final = 63
_LONGEST_MESSAGE: Final = 1024
_WORDS: Final = {State.ILL: "Ill", State.BURN_IN: "BurnIn", State.PROBATION: "Probation"}
CORDON: Final = "kubectl cordon"
TAINT: Final = "a taint that is not Batuta's"
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_GPU: Final = re.compile(r"(?:gpu-?)?([0-9]{1,4})", re.IGNORECASE)
MANAGER: Final = "batuta-health"
PREFIX: Final = "health//"  # of the keys of writes that health asks for
_TRIES: Final = 4
AGAIN_S: Final = 2.0  # after this, what was written and is not seen is written again


class Condition(NamedTuple):
    """What `kubectl describe node` says of it."""

    status: str
    reason: str
    message: str
    since_s: float


class NodeMarks(NamedTuple):
    """How a node shall look."""

    taint: str = ""  # the value of the taint; empty: none
    health: str = ""  # how its parts are, for people and programs that look at nodes; empty: as they should be
    ill_gpus: str = ""
    seen: int = 0
    condition: Condition | None = None  # None: it was never ill, and nothing needs to be said


def marks_of(book: HealthStateMachine, node: NodeName, seen: int) -> NodeMarks:
    member = book.members.get(node)
    places = range(WHOLE_NODE, 0 if member is None else member.gpus)
    found = {gpu: book.records[Target(node, gpu)] for gpu in places if Target(node, gpu) in book.records}
    known = {gpu: record for gpu, record in found.items() if record.state is not State.HEALTHY}
    whole = known.get(WHOLE_NODE)
    taint = taint_value(whole.reason) if whole is not None and whole.is_out else ""
    ill = {str(gpu): record.reason for gpu, record in known.items() if gpu != WHOLE_NODE and record.is_out}
    shown: dict[str, Any] = {"taint": taint} if taint else {}
    if whole is not None:
        shown["node"] = show(whole)
    if parts := {str(gpu): show(record) for gpu, record in known.items() if gpu != WHOLE_NODE}:
        shown["gpus"] = parts
    return NodeMarks(taint, _json(shown), _json(ill), seen, _condition(known, found))


def taint_value(reason: str) -> str:
    """`Xid 79: GPU has fallen off the bus` is `Xid-79` on a taint, which takes no more than a label."""
    short = re.sub(r"[^A-Za-z0-9_.]+", "-", reason.partition(":")[0])[:_LONGEST_VALUE].strip("-_.")
    return short or "ill"


def show(record: Record) -> dict[str, Any]:
    return {
        "state": record.state.value,
        "reason": record.reason,
        "since_s": round(record.since_s, 1),
        "who": record.who,
        "remedy": "" if record.remedy is Action.IGNORE else record.remedy.value,
        "held": record.held,
        "until_s": round(record.ends_s, 1) if record.state is State.PROBATION else None,
        "flaps": record.flaps,
        "incidents": len(record.incidents),
    }


def _condition(known: Mapping[int, Record], found: Mapping[int, Record]) -> Condition | None:
    out = {gpu: one for gpu, one in known.items() if not one.state.is_in_service}
    if not out:
        well_s = max((one.since_s for one in found.values() if one.returned_s is not None), default=None)
        return None if well_s is None else Condition("False", "Healthy", "passed burn-in and probation", well_s)
    _, first = min(out.items(), key=lambda one: (one[1].held, one[0]))
    reason = "HeldByGuardRail" if first.held else _WORDS[first.state]
    named = {"the node" if gpu == WHOLE_NODE else f"GPU {gpu}": record for gpu, record in sorted(out.items())}
    sentences = [f"{name}: {_sentence(record)}" for name, record in named.items()]
    since_s = min(one.since_s for one in out.values())
    return Condition("True", reason, "; ".join(sentences)[:_LONGEST_MESSAGE], since_s)


def _sentence(record: Record) -> str:
    if record.held:
        return f"{record.reason}; it stays in service, or too much of its pool would be out"
    if record.state is State.BURN_IN:
        return f"{record.reason}; mended, and being tested"
    if record.state is State.PROBATION:
        return f"{record.reason}; passed its burn-in, on probation until {time_text(record.ends_s)}"
    return f"{record.reason}; it needs: {record.remedy}"


def own_taint(annotations: Mapping[str, str]) -> str:
    """The value of the taint that the operator has put on a node; empty: none."""
    return read_node_health(annotations).taint


def node_patch(live: Mapping[str, Any], marks: NodeMarks, drop: Sequence[str] = ()) -> dict[str, Any]:
    """The merge patch that makes a node look so, for the very version that was read; empty: it does.

    An external taint stays. A taint of the operator that an administrator has removed is not set again: the
    state machine decides first what the removal means. `drop`: annotations that are dealt with.
    """
    metadata = live["metadata"]
    now: Mapping[str, str] = metadata.get("annotations") or {}
    taints = live.get("spec", {}).get("taints") or []
    ours, there = own_taint(now), [one for one in taints if _is_unhealthy(one)]
    if ours and not there and marks.taint:
        return {}
    is_foreign = any(one.get("value", "") != ours for one in there)
    wanted: dict[str, str] = {
        names.HEALTH: _disown(marks.health) if is_foreign else marks.health,
        names.ILL_GPUS: marks.ill_gpus,
        names.HEALTH_SEEN: str(marks.seen) if marks.seen else now.get(names.HEALTH_SEEN, ""),
        **dict.fromkeys(drop, ""),
    }
    patch: dict[str, Any] = {key: text or None for key, text in wanted.items() if now.get(key, "") != text}
    body: dict[str, Any] = {"metadata": {"annotations": patch}} if patch else {}
    if not is_foreign and ours != marks.taint:
        fresh = [{"key": names.UNHEALTHY, "value": marks.taint, "effect": EFFECT}] if marks.taint else []
        body["spec"] = {"taints": [*(one for one in taints if not _is_unhealthy(one)), *fresh]}
    if body:
        body.setdefault("metadata", {})["resourceVersion"] = metadata["resourceVersion"]
    return body


def _is_unhealthy(taint: Mapping[str, Any]) -> bool:
    return taint.get("key") == names.UNHEALTHY and taint.get("effect") == EFFECT


def _disown(health: str) -> str:
    shown = json.loads(health or "{}")
    shown.pop("taint", None)
    return _json(shown)


def condition_body(node: NodeName, condition: Condition) -> dict[str, Any]:
    """For server-side apply, which leaves the conditions of others alone."""
    when = time_text(condition.since_s)
    said = {"type": OWN, "status": condition.status, "reason": condition.reason, "message": condition.message}
    said |= {"lastTransitionTime": when, "lastHeartbeatTime": when}
    return {"metadata": {"name": node}, "status": {"conditions": [said]}}


def has_condition(node: objects.Node, condition: Condition) -> bool:
    return any(
        (one.type, one.status, one.reason, one.message) == (OWN, *condition[:3]) for one in node.status.conditions
    )


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if value else ""


class Repaired(NamedTuple):
    """What an administrator reports as repaired."""

    gpus: frozenset[int] = frozenset()  # `WHOLE_NODE` for the node itself
    everything: bool = False
    unclear: str = ""  # a word that says nothing


def cordoned_by(node: objects.Node) -> str:
    """How an administrator or another program has taken a node out of service; empty: not at all."""
    if node.spec.unschedulable:
        return CORDON
    ours = own_taint(node.metadata.annotations)
    foreign = any(taint.value != ours for taint in _unhealthy(node))
    return TAINT if foreign else ""


def cordoned_s(node: objects.Node) -> float:
    """Since when; 0 if unknown. The node controller makes a taint of a cordon, with its time."""
    keys = (_UNSCHEDULABLE, names.UNHEALTHY)
    times = (read_time(taint.time_added) for key in keys for taint in node.spec.taints if taint.key == key)
    return next(filter(None, times), 0.0)


def has_removed_taint(node: objects.Node) -> bool:
    """Whether an administrator has removed the operator's taint, which declares the node healthy."""
    return bool(own_taint(node.metadata.annotations)) and not _unhealthy(node)


def mended(node: objects.Node) -> Repaired | None:
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
            return Repaired(unclear=word[:60])
    return Repaired(frozenset(gpus), everything)


def _unhealthy(node: objects.Node) -> list[objects.Taint]:
    return [one for one in node.spec.taints if one.key == names.UNHEALTHY and one.effect == EFFECT]


async def mark_node(api: Api, *, node: NodeName, marks: NodeMarks, drop: tuple[str, ...]) -> None:
    """Applies the marks. All programs share the list of taints, so it is read and replaced in one version."""
    for tries_left in reversed(range(_TRIES)):
        try:
            # Not as a struct: of taints of others nothing may get lost.
            live: dict[str, Any] = msgspec.json.decode(await api.raw("GET", NODE.path("", node)))
            body = node_patch(live, marks, drop)
            if body:
                await api.patch(NODE, node, body)
        except NotFound:
            return
        except Conflict:
            if not tries_left:
                raise
        else:
            break
    if marks.condition is not None:
        body = condition_body(node, marks.condition)
        await api.apply(NODE, body, manager=MANAGER, force=True, subresource="status")


def plain(node: objects.Node) -> dict[str, Any]:
    """As much of a node that is known as it takes to see whether it looks as it shall."""
    meta = {"annotations": node.metadata.annotations, "resourceVersion": ""}
    return {"metadata": meta, "spec": {"taints": msgspec.to_builtins(node.spec.taints)}}


@dataclass(slots=True)
class NodeMarker:
    """Level-triggered. For the engine's thread."""

    _nodes: Mapping[str, objects.Node]
    _ask: AskFn
    _doubtful: set[NodeName] = field(default_factory=set)  # nodes that may look otherwise than they shall
    _asked: dict[NodeName, tuple[NodeMarks, float]] = field(default_factory=dict)
    """What was last to be written on such nodes, and when."""

    @property
    def is_done(self) -> bool:
        """Whether all nodes are known to carry their marks."""
        return not self._doubtful

    def doubt(self, nodes: Iterable[NodeName]) -> None:
        self._doubtful.update(nodes)

    def drive(self, memory: HealthState, now_s: float) -> tuple[bool, float]:
        """Whether a node has come to look as it shall, so that others may go on; and when to look again."""
        has_settled, again_s = False, math.inf
        for name in list(self._doubtful):
            if self._is_settled(memory, name, now_s):
                self._doubtful.discard(name)
                has_settled |= self._asked.pop(name, None) is not None
            else:
                again_s = now_s + AGAIN_S
        return has_settled, again_s

    def _is_settled(self, memory: HealthState, name: NodeName, now_s: float) -> bool:
        """Whether a node looks as it shall; else the write that makes it so is asked for."""
        node = self._nodes.get(name)
        if node is None:
            return True
        said = mended(node)
        drop = (names.MENDED,) if said is not None and not said.unclear else ()
        marks = marks_of(memory.book, name, memory.seen.get(name, 0))
        has_it = marks.condition is None or has_condition(node, marks.condition)
        if has_it and not node_patch(plain(node), marks, drop):
            return True
        before, asked_s = self._asked.get(name, (None, -math.inf))
        if before == marks and now_s < asked_s + AGAIN_S:
            return False  # it was written, and is not seen yet
        do = partial(mark_node, node=name, marks=marks, drop=drop)
        if self._ask(f"{PREFIX}mark/{name}", do, now_s):
            self._asked[name] = marks, now_s
        return False
