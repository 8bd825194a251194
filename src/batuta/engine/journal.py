"""Journals in memory, and the World that an engine owns together with its journal.

`JournaledWorld` is the only place that applies events to the World of an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from batuta.core.apply import apply, check
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.event import Event, Planned, PolicySet
from batuta.core.world import World
from batuta.engine.ports import Journal


class NoJournal:
    """Forgets everything."""

    def append(self, event: Event) -> None:
        pass

    def commit(self) -> int:
        return 0


class MemoryJournal:
    """Remembers every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.events.append(event)

    def commit(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)


class ReplayDiffersError(Exception):
    """A journal's plan is not what the same World decides now."""


def replay(
    events: Iterator[Event] | list[Event],
    rules: SchedulerProfile,
    rules_of: Callable[[str], SchedulerProfile] | None = None,
) -> World:
    """Rebuilds the World from a journal, and proves that every plan in it is decided again bit for bit.

    `rules_of` is asked when the policy was changed on the way.
    """
    world = World()
    for number, event in enumerate(events):
        if isinstance(event, Planned):
            again = decide(world, event.time_s, rules)
            if again != event.plan:
                raise ReplayDiffersError(f"event {number} at {event.time_s} s: the plan differs")
        if isinstance(event, PolicySet) and rules_of is not None:
            rules = rules_of(event.policy)
        apply(world, event)
    return world


class JournaledWorld:
    """A World of which every change is in the journal first. Its owner is the only caller of `apply`."""

    __slots__ = ("journal", "world")

    def __init__(self, world: World, journal: Journal) -> None:
        self.world = world
        self.journal = journal

    def record(self, event: Event) -> None:
        """Write an event down, then apply it. ValueError for one that cannot be applied: nothing happened."""
        check(self.world, event)
        self.journal.append(event)
        apply(self.world, event)

    def record_all(self, events: Iterable[Event]) -> None:
        """Record events and make them durable."""
        for event in events:
            self.record(event)
        self.journal.commit()
