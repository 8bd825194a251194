"""What the watch over health has asked of the engine, and which restarts the engine knows of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from batuta.core import event as ev
from batuta.engine.requests import Make
from batuta.gpu.health.memory import HealthMemory, Ordered


class _Asked(NamedTuple):
    answer: Future[Sequence[ev.Event]]
    ordered: Sequence[Ordered]


class Asks:
    """With the lock of whoever owns the memory, but for `ask`."""

    def __init__(self, ask: Callable[[Make], Future[Sequence[ev.Event]]]) -> None:
        self._ask = ask
        self._asked: list[_Asked] = []

    def ask(self, make: Make, ordered: Sequence[Ordered]) -> None:
        """`ordered`: the restarts that are among it."""
        self._asked.append(_Asked(self._ask(make), ordered))

    def settle(self, memory: HealthMemory) -> bool:
        """Forgets restarts that the engine knows of; whether it could not do something it was asked for."""
        over = [one for one in self._asked if one.answer.done()]
        self._asked = [one for one in self._asked if one not in over]
        good = [one for one in over if not one.answer.cancelled() and one.answer.exception() is None]
        known = [order for one in good for order in one.ordered]
        memory.ordered = [order for order in memory.ordered if order not in known]
        return len(good) < len(over)

    def unasked(self, memory: HealthMemory) -> Sequence[Ordered]:
        """Restarts that are not on their way to the engine."""
        asked = [order for one in self._asked for order in one.ordered]
        return [order for order in memory.ordered if order not in asked]
