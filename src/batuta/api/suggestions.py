"""What would start a job, worked out on a copy of the World."""

from __future__ import annotations

from typing import Any

from batuta.api.desk import Desk
from batuta.engine.suggest import Suggestion, suggest


def suggestions_for(desk: Desk, job: str) -> list[dict[str, Any]]:
    """The changes that would start a job now. It takes as long as some decisions: not for the event loop."""
    world, parts = desk.service.fork(), desk.parts
    policy = world.policy or parts.policy
    found = suggest(world, max(desk.now_s(), world.now_s), job, lambda: parts.rules_of(policy))
    return [_shown(one) for one in found]


def _shown(found: Suggestion) -> dict[str, Any]:
    return {
        "code": found.remedy.name,
        "sentence": str(found),
        "facts": dict(found.facts),
        "gpus": found.gpus,
        "stops": list(found.stops),
        "shrinks": list(found.shrinks),
        "within_s": found.within_s,
    }
