"""What a request says beside its object: the query of its URL, how a patch is meant, how a deletion."""

from __future__ import annotations

from enum import StrEnum
from typing import Any
from urllib.parse import quote


class Patch(StrEnum):
    """How a patch is meant."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Propagation(StrEnum):
    """What becomes of the objects that belong to a deleted one."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


def query(**parameters: str | int) -> str:
    """The query of a URL, without the parameters that are empty; nothing when all are."""
    pairs = [f"{name}={quote(str(value), safe='')}" for name, value in parameters.items() if value != ""]
    return f"?{'&'.join(pairs)}" if pairs else ""


def delete_options(
    uid: str, resource_version: str, grace_s: int | None, propagation: Propagation | None
) -> dict[str, Any]:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    conditions = {"uid": uid, "resourceVersion": resource_version}
    if preconditions := {name: value for name, value in conditions.items() if value}:
        options["preconditions"] = preconditions
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    if propagation is not None:
        options["propagationPolicy"] = str(propagation)
    return options
