"""The World that an engine owns together with its journal; here alone events are applied to it."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core.apply import apply, check
from batuta.core.event import Event
from batuta.core.world import World
from batuta.engine.ports import Journal


class NoJournal:
    """Forgets everything."""

    def append(self, event: Event) -> None:
        pass

    def commit(self) -> int:
        return 0


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
        for event in events:
            self.record(event)
        self.journal.commit()
