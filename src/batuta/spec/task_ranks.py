"""What a task says in its labels about ranks that hold it up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from batuta.spec.duration import parse_duration_s
from batuta.spec.problem import InputError
from batuta.spec.quantity import shown

HANG_AFTER_LABEL: Final = "batuta.dev/hang-after"
STRAGGLERS_LABEL: Final = "batuta.dev/stragglers"
OFF: Final = "off"
STRAGGLER_WORDS: Final = ("move", "report", OFF)


@dataclass(frozen=True, slots=True)
class RankWishes:
    """What a job wants for itself. None or empty: as the server has it."""

    hang_after_s: float | None = None
    """Infinite: it is never called hung."""
    stragglers: str = ""
    """One of STRAGGLER_WORDS."""


def parse_hang_after_s(text: str) -> float:
    """A time span of more than 0, or infinite for `off`. InputError for anything else."""
    if text.strip().lower() == OFF:
        return math.inf
    found_s = parse_duration_s(text, "the time")
    if found_s <= 0:
        raise InputError.of(f"it must be more than 0, found {shown(text)}", fix="as in 30m, or off")
    return found_s


def parse_stragglers(text: str) -> str:
    """One of STRAGGLER_WORDS. InputError for anything else."""
    if text not in STRAGGLER_WORDS:
        raise InputError.of(f"it cannot be {shown(text)}", fix=f"one of {', '.join(STRAGGLER_WORDS)}")
    return text


CHECKS: Final[Mapping[str, Callable[[str], object]]] = {
    HANG_AFTER_LABEL: parse_hang_after_s,
    STRAGGLERS_LABEL: parse_stragglers,
}
"""By label: what refuses a value that means nothing."""


def rank_wishes(labels: Mapping[str, str]) -> RankWishes:
    """What labels say. InputError for a value that means nothing."""
    hang, stragglers = labels.get(HANG_AFTER_LABEL), labels.get(STRAGGLERS_LABEL)
    return RankWishes(
        None if hang is None else parse_hang_after_s(hang),
        "" if stragglers is None else parse_stragglers(stragglers),
    )
