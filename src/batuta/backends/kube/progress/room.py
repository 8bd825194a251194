"""Room for so many logs at once: whoever has to wait makes the one leave that has been there longest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """Turns of a bounded number of tasks, in the order in which they come. For one event loop."""

    def __init__(self, most: int, turn_s: float) -> None:
        """`turn_s`: nobody has to leave sooner than so long after coming in."""
        self._free = asyncio.Semaphore(most)
        self._turn_s = turn_s
        self._turns: dict[asyncio.Timeout, float] = {}
        """Who is in, since when; the first came first."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Lets its body run as long as nobody waits; what is under way when the turn ends is cancelled."""
        loop = asyncio.get_running_loop()
        if self._free.locked():
            self._ask_one_to_leave(loop.time())
        async with self._free:
            turn = asyncio.timeout(None)
            try:
                async with turn:
                    self._turns[turn] = loop.time()
                    try:
                        yield
                    finally:
                        del self._turns[turn]
            except TimeoutError:
                if not turn.expired():
                    raise

    def _ask_one_to_leave(self, now_s: float) -> None:
        """For each that waits one leaves: the first that was not asked yet."""
        for turn, since_s in self._turns.items():
            if turn.when() is None:
                turn.reschedule(max(now_s, since_s + self._turn_s))
                return
