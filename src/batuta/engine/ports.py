"""What the engine needs from outside: a backend that carries out commands, a journal, and texts that last.

A live backend has an `EventBuffer` for what it has to tell, in the order of time, and a clock that never goes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from batuta.core.event import Event, TimePassed
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


class Settings(Protocol):
    """Texts by key that outlive the process; one is durable when `put` returns."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, value: str) -> None: ...


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
    snapshot_seq: int  # the snapshot that it began with; 0 when everything was replayed
    unusable: tuple[str, ...] = ()  # snapshots that could not be read, and why


class LiveBackend(Backend, Protocol):
    """A backend of real things: other threads may wake the engine that waits for its events."""

    def wake(self) -> None:
        """Make `next_events` return soon, with nothing if nothing happened. For any thread."""


class JournalUnavailable(Exception):
    """The journal cannot be written now, because the disk is full for example."""


JUMP_S = 60.0
"""A clock that is further ahead than this has jumped, or the machine was suspended: events have its time at once. In
steps of what is asked for, the engine would go through days or years cycle by cycle, and jobs would wait for that."""


class EventBuffer:
    """Collects events until the engine asks for them. Their times never go backwards."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._last_s = -math.inf

    def append(self, event: Event) -> None:
        self._events.append(event)

    def __bool__(self) -> bool:
        return bool(self._events)

    def take(self, until_s: float | None, now_s: float) -> list[Event]:
        """What was said, in time: neither before what was said last, nor after what was asked for."""
        taken: list[Event] = []
        if until_s is not None and now_s > until_s + JUMP_S:
            until_s = None
        for event in self._events:
            time_s = event.time_s if until_s is None else min(event.time_s, until_s)
            self._last_s = max(self._last_s, time_s)
            taken.append(event if event.time_s == self._last_s else replace(event, time_s=self._last_s))
        self._events.clear()
        return taken

    def nothing_until(self, until_s: float, now_s: float) -> list[Event]:
        """The time that was asked for has come, and nothing else has happened."""
        self._last_s = max(self._last_s, now_s if now_s > until_s + JUMP_S else until_s)
        return [TimePassed(self._last_s)]


class SteadyClock:
    """Follows a clock. When that is set back, time goes on from where it was, and stays ahead of it."""

    def __init__(self, clock: Callable[[], float], since_s: float = float("-inf")) -> None:
        """`since_s`: a time that has been already, by a clock that was ahead."""
        self._clock = clock
        self._ahead_s = 0.0
        self._last_s = since_s

    def __call__(self) -> float:
        now_s = self._clock() + self._ahead_s
        if now_s < self._last_s:
            self._ahead_s += self._last_s - now_s
            now_s = self._last_s
        self._last_s = now_s
        return now_s
