"""Observers of an engine: metrics, logs, traces, the shadow policy, what is shown of jobs and queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from batuta.core.event import Event
from batuta.core.plan import Plan
from batuta.core.world import World

if TYPE_CHECKING:
    from batuta.engine.fence import Fence


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
        # An observer is not called for what it does not override: these are called for every event.
        self._saw = [(part, one.saw) for part, one in listed if _overrides(one, "saw")]
        backwards = reversed(listed)
        self._deciding = [(part, one.deciding) for part, one in backwards if _overrides(one, "deciding")]
        self._step_done = [(part, one.step_done) for part, one in listed if _overrides(one, "step_done")]
        self._decided = [(part, one.decided) for part, one in listed]
        self._postponed = [(part, one.postponed) for part, one in listed if _overrides(one, "postponed")]

    def saw(self, world: World, event: Event) -> None:
        self._tell(self._saw, world, event)

    def deciding(self) -> None:
        self._tell(self._deciding)

    def step_done(self, step: str) -> None:
        self._tell(self._step_done, step)

    def decided(self, world: World, plan: Plan) -> None:
        for part, call in self._decided:
            # A part works again after a whole decision without a failure.
            with self._fence.around(part):
                call(world, plan)

    def postponed(self, world: World) -> None:
        for part, call in self._postponed:
            with self._fence.around(part):
                call(world)

    def _tell(self, calls: list[tuple[str, Callable[..., None]]], *arguments: object) -> None:
        for part, call in calls:
            try:
                call(*arguments)
            except Exception as error:
                self._fence.failed(part, error)


def _overrides(observer: Observer, method: str) -> bool:
    return getattr(type(observer), method) is not getattr(Observer, method)
