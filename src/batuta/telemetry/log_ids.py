"""Which cycle a log line belongs to: whoever writes one within a cycle need not know of it."""

from __future__ import annotations

import logging
from contextvars import ContextVar

_cycle: ContextVar[int | None] = ContextVar("cycle", default=None)


def begin_cycle(cycle: int) -> None:
    """From now on this thread writes of that cycle."""
    _cycle.set(cycle)


def end_cycle() -> None:
    _cycle.set(None)


def note_cycle(record: logging.LogRecord) -> None:
    """Writes the cycle of this thread on a record, unless it names one itself."""
    cycle = _cycle.get()
    if cycle is not None and not hasattr(record, "cycle"):
        record.cycle = cycle
