"""What the engine needs from outside: who carries out commands, and who keeps the journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from batuta.core.event import Event
from batuta.core.plan import Command
from batuta.core.world import World


class Backend(Protocol):
    """Carries commands out and says what really happened. Nothing is assumed done."""

    def next_events(self, until_s: float | None) -> Sequence[Event]:
        """Return what happens next, in order of time; `TimePassed` at the given time if nothing has until then.

        No events when nothing can happen any more.
        """

    def quiet(self) -> bool:
        """Whether nothing will ever happen unless a command is given; a real machine is never quiet."""

    def execute(self, commands: Sequence[Command], now_s: float) -> Sequence[Event]:
        """Begin to carry out commands, in this order; return what is already done."""


class Journal(Protocol):
    """Keeps every event, in order. A `Planned` event carries its plan."""

    def append(self, event: Event) -> None: ...

    def commit(self) -> int:
        """Make durable what was appended, before it is acknowledged and before commands are carried out.

        Return the number of the last event. JournalUnavailable when it cannot be written now: nothing is lost.
        """


@dataclass(frozen=True, slots=True)
class RecoveredWorld:
    """The World that a store found in its journal."""

    world: World
    seq: int
    snapshot_seq: int
    """The snapshot that it began with; 0 when everything was replayed."""
    unusable: tuple[str, ...] = ()
    """Snapshots that could not be read, and why."""


class LiveBackend(Backend, Protocol):
    """A backend of real things: other threads may wake the engine that waits for its events."""

    def wake(self) -> None:
        """Make `next_events` return soon, with nothing if nothing happened. For any thread."""


class JournalUnavailable(Exception):
    """The journal cannot be written now, because the disk is full for example."""
