"""Reading a kernel log from where one left off: the port that the device and files have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

Cursor: TypeAlias = Mapping[str, str | int]
"""How far a log was read. Plain values, which mean something only to the kind of log that made them."""


class Batch(NamedTuple):
    """The lines since a cursor, and the cursor behind them."""

    lines: tuple[str, ...]
    cursor: Cursor
    missed: str = ""
    """What could not be read, where the log does not go back far enough: a sentence, or nothing."""


class KernelLog(Protocol):
    """A log that can be read again and again. Reading changes nothing: whoever keeps the cursor decides."""

    def read(self, cursor: Cursor | None) -> Batch:
        """What is there now behind a cursor; without one, from where this log begins for newcomers."""
        ...
