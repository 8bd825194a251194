"""A stretch of time with a name, as OpenTelemetry has it."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import TypeAlias

Attribute: TypeAlias = str | int | float | bool
Attributes: TypeAlias = tuple[tuple[str, Attribute], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch. Ids are numbers here, and become text where they are sent."""

    trace_id: int
    span_id: int
    parent_id: int
    """0 for the first of a trace."""
    name: str
    start_ns: int
    end_ns: int
    """Both since 1970."""
    attributes: Attributes = ()
    error: str = ""
    """What went wrong within; empty when nothing did."""


class Ids:
    """Ids that nobody else has given out. Zero is none, by the standard."""

    def __init__(self) -> None:
        self._numbers = random.Random(os.urandom(32))

    def trace(self) -> int:
        return self._numbers.getrandbits(128) or 1

    def span(self) -> int:
        return self._numbers.getrandbits(64) or 1
