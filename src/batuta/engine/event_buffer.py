"""What a live backend has to tell the engine, in the order of time; a clock that never goes backwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from batuta.core.event import Event, TimePassed


class EventBuffer:
    """Collects events until the engine asks for them. Their times never go backwards."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._last_s = -math.inf

    def append(self, event: Event) -> None:
        self._events.append(event)

    def __bool__(self) -> bool:
        return bool(self._events)

    def take(self, until_s: float | None) -> list[Event]:
        """What was said, in time: neither before what was said last, nor after what was asked for."""
        taken: list[Event] = []
        for event in self._events:
            time_s = event.time_s if until_s is None else min(event.time_s, until_s)
            self._last_s = max(self._last_s, time_s)
            taken.append(event if event.time_s == self._last_s else replace(event, time_s=self._last_s))
        self._events.clear()
        return taken

    def nothing_until(self, until_s: float) -> list[Event]:
        """The time that was asked for has come, and nothing else has happened."""
        self._last_s = max(self._last_s, until_s)
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
