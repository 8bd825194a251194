"""Conditions as Kueue's objects have them: a statement keeps its time until it is no longer true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

_LONGEST_MESSAGE: Final = 32_768


class Said(NamedTuple):
    """One statement."""

    type: str
    is_true: bool
    reason: str
    message: str = ""


def conditions(
    statements: Iterable[Said], before: Sequence[Mapping[str, Any]], generation: int, now_s: float
) -> list[dict[str, Any]]:
    """These statements, and those that others made of which nothing is said here."""
    known = {one.get("type"): one for one in before}
    found: dict[str, dict[str, Any]] = {str(kind): dict(one) for kind, one in known.items()}
    for said in statements:
        status, old = "True" if said.is_true else "False", known.get(said.type, {})
        found[said.type] = {
            "type": said.type,
            "status": status,
            "reason": said.reason,
            "message": said.message[:_LONGEST_MESSAGE],
            "lastTransitionTime": old.get("lastTransitionTime")
            if old.get("status") == status
            else time_of(now_s),
            "observedGeneration": generation,
        }
    return list(found.values())


def truths(listed: Any) -> list[tuple[Any, Any, Any]]:
    """What people and programs act on: type, status and reason of each, in a fixed order."""
    found = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    return sorted((str(one.get("type")), str(one.get("status")), str(one.get("reason"))) for one in found)


def find(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The statement of a type; empty when there is none."""
    listed = status.get("conditions")
    found = (one for one in listed if isinstance(one, Mapping)) if isinstance(listed, list) else iter(())
    return next((one for one in found if one.get("type") == kind), {})


def is_true(status: Mapping[str, Any], kind: str) -> bool:
    return find(status, kind).get("status") == "True"


def time_of(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
