"""What holds a job up, as a sentence: with whom that is blamed on, and what follows."""

from __future__ import annotations

from typing import Any

from batuta.core.reason import Reason

_MOST = 16


def told_held_up(event: dict[str, Any]) -> str:
    """The sentence of a `JobHeldUp` as the journal has it, without its subject."""
    try:
        evidence = tuple((str(name), float(value)) for name, value in event["evidence"])
        what = Reason[event["reason"]].sentence(evidence)
    except (KeyError, ValueError):
        what = "is held up"  # by what a later version knows
    ranks, nodes, avoid = (event.get(key, []) for key in ("ranks", "nodes", "avoid"))
    if len(ranks) > 1:
        what += f" (ranks {', '.join(map(str, sorted(ranks)[:_MOST]))}{', …' if len(ranks) > _MOST else ''})"
    blame = f"{', '.join(nodes)} {'is' if len(nodes) == 1 else 'are'} to blame" if nodes else ""
    return f"{what}; {blame or 'nobody can be blamed'}{_stays_away(event, avoid)}"


def _stays_away(event: dict[str, Any], avoid: list[str]) -> str:
    if not avoid:
        return ""
    minutes = max(1, round((event["until_s"] - event["time_s"]) / 60))
    return f"; it stays away from {', '.join(avoid)} for {minutes} min"
