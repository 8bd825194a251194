"""Observers of an engine: metrics, logs, traces, the shadow policy, what is shown of jobs and queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from batuta.core.event import Event
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.fence import Fence

_Calls: TypeAlias = list[tuple[str, Callable[..., None]]]


class Observer:
    """Is told of everything that an engine does, and changes nothing. A subclass overrides what it needs."""

    __slots__ = ()

    def saw(self, world: World, event: Event) -> None:
        """After an event was applied."""

    def deciding(self) -> None:
        """Before a decision."""

    def step_done(self, step: str) -> None:
        """After a step of a decision."""

    def decided(self, world: World, plan: Plan) -> None:
        """After a plan was made, and applied when it was not empty."""

    def postponed(self, world: World) -> None:
        """After events on which a decision is not due yet."""


class Observers(Observer):
    """A list of observers. One that fails keeps neither the others nor the engine from going on.

    `deciding` goes through the list backwards: the first one, which measures, is told last that a decision
    begins and first that it is made, so the time of the others does not count.
    """

    def __init__(self, fence: Fence, observers: Iterable[tuple[str, Observer]]) -> None:
        """Each observer with the name of its part, under which failures are counted."""
        listed = tuple(observers)
        self._fence = fence
        self._saw, self._step_done = _calls(listed, "saw"), _calls(listed, "step_done")
        self._deciding = _calls(listed[::-1], "deciding")
        self._decided = [(part, one.decided) for part, one in listed]
        self._postponed = _calls(listed, "postponed")

    def saw(self, world: World, event: Event) -> None:
        self._tell(self._saw, world, event)

    def deciding(self) -> None:
        self._tell(self._deciding)

    def step_done(self, step: str) -> None:
        self._tell(self._step_done, step)

    def decided(self, world: World, plan: Plan) -> None:
        for part, call in self._decided:
            # A part works again after a whole decision without a failure.
            self._fence.run(part, call, world, plan)

    def postponed(self, world: World) -> None:
        for part, call in self._postponed:
            self._fence.run(part, call, world)

    def _tell(self, calls: _Calls, *arguments: object) -> None:
        for part, call in calls:
            try:
                call(*arguments)
            except Exception as error:
                self._fence.failed(part, error)


def _calls(observers: Iterable[tuple[str, Observer]], method: str) -> _Calls:
    """The method of each observer that overrides it: some of these are called for every event."""
    own = getattr(Observer, method)
    return [(part, getattr(one, method)) for part, one in observers if getattr(type(one), method) is not own]
