"""A journal in memory, and the proof that a journal's plans are decided again bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from batuta.core.apply import apply
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.event import Event, Planned, PolicySet
from batuta.core.world import World


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
    events: Iterable[Event],
    rules: SchedulerProfile,
    rules_of: Callable[[str], SchedulerProfile] | None = None,
) -> World:
    """Rebuild the World from a journal, and prove that every plan in it is decided again bit for bit.

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
