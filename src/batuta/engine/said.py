"""What a live backend has to say to the engine, in the order of time."""

from __future__ import annotations

import math
from dataclasses import replace

from batuta.core.event import Event, TimePassed


class Said:
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
