"""What a node carries because of its health: a taint, annotations and a condition. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from batuta.backends.kube import names, objects
from batuta.backends.kube.health.condition_lines import OWN
from batuta.backends.kube.health.shown import read_shown
from batuta.core.cluster import NodeName
from batuta.core.health import HealthBook
from batuta.core.health_record import WHOLE_NODE, Record, State, Target
from batuta.core.health_rules import Action

EFFECT: Final = "NoSchedule"
_LONGEST_VALUE: Final = 63
_LONGEST_MESSAGE: Final = 1024
_WORDS: Final = {State.ILL: "Ill", State.BURN_IN: "BurnIn", State.PROBATION: "Probation"}


class Condition(NamedTuple):
    """What `kubectl describe node` says of it."""

    status: str
    reason: str
    message: str
    since_s: float


class Marks(NamedTuple):
    """How a node shall look."""

    taint: str = ""
    """The value of the taint; empty: none."""
    health: str = ""
    """How its parts are, for people and programs that look at nodes; empty: as they should be."""
    ill_gpus: str = ""
    seen: int = 0
    condition: Condition | None = None
    """None: it was never ill, and nothing needs to be said."""


def marks_of(book: HealthBook, node: NodeName, seen: int) -> Marks:
    """What follows from the book for one node."""
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
    return Marks(taint, _json(shown), _json(ill), seen, _condition(known, found))


def taint_value(reason: str) -> str:
    """`Xid 79: GPU has fallen off the bus` is `Xid-79` on a taint, which takes no more than a label."""
    short = re.sub(r"[^A-Za-z0-9_.]+", "-", reason.partition(":")[0])[:_LONGEST_VALUE].strip("-_.")
    return short or "ill"


def show(record: Record) -> dict[str, Any]:
    """A record for whoever lists nodes."""
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
        return (
            None if well_s is None else Condition("False", "Healthy", "passed burn-in and probation", well_s)
        )
    _, first = min(out.items(), key=lambda one: (one[1].held, one[0]))
    reason = "HeldByGuardRail" if first.held else _WORDS[first.state]
    sentences = [
        f"{'the node' if gpu == WHOLE_NODE else f'GPU {gpu}'}: {_sentence(record)}"
        for gpu, record in sorted(out.items())
    ]
    since_s = min(one.since_s for one in out.values())
    return Condition("True", reason, "; ".join(sentences)[:_LONGEST_MESSAGE], since_s)


def _sentence(record: Record) -> str:
    if record.held:
        return f"{record.reason}; it stays in service, or too much of its pool would be out"
    match record.state:
        case State.BURN_IN:
            return f"{record.reason}; mended, and being tested"
        case State.PROBATION:
            return f"{record.reason}; passed its burn-in, on probation until {stamp(record.ends_s)}"
        case _:
            return f"{record.reason}; it needs: {record.remedy}"


# ------------------------------------------------------------------------------------- what has to be written


def own_taint(annotations: Mapping[str, str]) -> str:
    """The value of the taint that the operator has put on a node; empty: none."""
    return read_shown(annotations).taint


def changes(live: Mapping[str, Any], marks: Marks, drop: Sequence[str] = ()) -> dict[str, Any]:
    """The merge patch that makes a node look so, for the very version that was read; empty: it does.

    A taint that somebody else has put there stays. One of ours that somebody has taken off is not put there
    again: what that means is for the book to say first. `drop`: annotations that are dealt with.
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
    when = stamp(condition.since_s)
    said = {
        "type": OWN,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": when,
        "lastHeartbeatTime": when,
    }
    return {"metadata": {"name": node}, "status": {"conditions": [said]}}


def has_condition(node: objects.Node, condition: Condition) -> bool:
    """Whether a node says this already."""
    return any(
        (one.type, one.status, one.reason, one.message) == (OWN, *condition[:3])
        for one in node.status.conditions
    )


def stamp(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if value else ""
