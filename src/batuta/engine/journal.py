"""A journal in memory, for simulations and tests."""

from __future__ import annotations

from collections.abc import Iterator

from batuta.core.decide import Rules, decide
from batuta.core.event import Event, Planned
from batuta.core.world import World, apply


class NoJournal:
    """Forgets everything."""

    def append(self, event: Event) -> None:
        pass


class MemoryJournal:
    """Remembers every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)


class ReplayDiffersError(Exception):
    """A journal's plan is not what the same World decides now."""


def replay(events: Iterator[Event] | list[Event], rules: Rules) -> World:
    """Rebuilds the World from a journal, and proves that every plan in it is decided again bit for bit."""
    world = World()
    for number, event in enumerate(events):
        if isinstance(event, Planned):
            again = decide(world, event.time_s, rules)
            if again != event.plan:
                raise ReplayDiffersError(f"event {number} at {event.time_s} s: the plan differs")
        apply(world, event)
    return world
