"""Events for readers outside: as in the journal, but plans in sentences and nothing of what tasks hold.

A stored text begins `{"v":1,"type":"JobStarted",…`: the type is found without reading the rest, and most
texts are passed on as they are.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from fastapi.sse import format_sse_event

from batuta.api.held_up_text import told_held_up
from batuta.core.reason import Reason
from batuta.store.journal_reader import Text
from batuta.store.values import dumps

_HEAD = '{"v":1,"type":"'
_MOVES = frozenset(("Start", "Resize", "Migrate"))


class Told(NamedTuple):
    """An event as it is told."""

    seq: int
    type: str
    jobs: frozenset[str]
    """The jobs that it is about, or does something to."""
    data: str
    frame: bytes
    """As a server-sent event."""


def type_of(text: str) -> str:
    if text.startswith(_HEAD):
        return text[len(_HEAD) : text.index('"', len(_HEAD))]
    return str(json.loads(text).get("type", ""))


def tell(entry: Text) -> Told:
    """What everybody may know of an event."""
    kind = type_of(entry.json)
    if kind == "Planned":
        event = shown_plan(json.loads(entry.json))
        commanded = (command["job"] for command in event["commands"])
        data, jobs = dumps(event), frozenset((*commanded, *event["found_idle"]))
    elif kind == "JobSubmitted":
        event = json.loads(entry.json)
        # A task has secrets in it.
        event.pop("task", None)
        data, jobs = dumps(event), frozenset((event["job"]["id"],))
    elif kind == "JobHeldUp":
        event = json.loads(entry.json)
        data, jobs = dumps({**event, "sentence": told_held_up(event)}), frozenset((event["job"],))
    else:
        data, jobs = entry.json, _jobs_in(entry.json)
    return Told(entry.seq, kind, jobs, data, _frame(entry.seq, kind, data))


def shown_plan(event: dict[str, Any]) -> dict[str, Any]:
    """A plan with its commands in sentences."""
    plan = event["plan"]
    return {
        "v": event["v"],
        "type": event["type"],
        "time_s": event["time_s"],
        "cause": event["cause"],
        "policy": plan["policy"],
        "commands": [_shown_command(command) for command in plan["commands"]],
        "found_idle": plan.get("found_idle", []),
    }


def _shown_command(command: dict[str, Any]) -> dict[str, Any]:
    evidence = dict(command["evidence"])
    spans = command["placement"][0] if command["type"] in _MOVES else []
    return {
        "type": command["type"],
        "job": command["job"],
        "reason": command["reason"],
        "sentence": _sentence(command["reason"], evidence),
        "gpus": sum(len(gpus) for _, gpus in spans),
        "evidence": evidence,
        "placement": [{"node": node, "gpus": gpus} for node, gpus in spans],
    }


def _sentence(reason: str, evidence: dict[str, float]) -> str:
    """Numbers that JSON has no word for are strings in the journal, and a reason may have gone since."""
    try:
        return Reason[reason].sentence(tuple((name, float(value)) for name, value in evidence.items()))
    except (KeyError, ValueError):
        return reason.lower().replace("_", " ")


def _jobs_in(text: str) -> frozenset[str]:
    if '"job":' not in text:
        return frozenset()
    job = json.loads(text).get("job")
    name = job.get("id") if isinstance(job, dict) else job
    return frozenset((name,)) if isinstance(name, str) else frozenset()


def _frame(seq: int, kind: str, data: str) -> bytes:
    return format_sse_event(data_str=data, event=kind, id=str(seq))


def with_seq(told: Told) -> dict[str, Any]:
    """The event as an object, with its number."""
    return {"seq": told.seq, **json.loads(told.data)}
