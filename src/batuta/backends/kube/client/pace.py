"""How fast requests may follow each other: a token bucket for all of them, a back-off after failures."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass


class RateLimit:
    """Lets `burst` requests through at once and `per_s` a second in the long run.

    It is generous: its only task is that no bug of ours becomes a flood for the API server.
    """

    def __init__(self, per_s: float = 1000.0, burst: float = 5000.0) -> None:
        if per_s <= 0 or burst < 1:
            raise ValueError("a rate limit needs a positive rate and a burst of at least one")
        self.per_s = per_s
        self.burst = burst
        self.waited_s = 0.0
        """How long requests have waited because of it, in all."""
        self._left = burst
        self._counted_at_s = time.monotonic()

    async def take(self, count: float = 1.0) -> None:
        """Returns when the next request may be sent; requests are served in the order in which they ask.

        `count`: how much is taken, where not requests are counted but bytes, say.
        """
        now_s = time.monotonic()
        self._left = min(self.burst, self._left + (now_s - self._counted_at_s) * self.per_s)
        self._counted_at_s = now_s
        self._left -= count
        if self._left < 0.0:
            wait_s = -self._left / self.per_s
            self.waited_s += wait_s
            await asyncio.sleep(wait_s)


def wait_after(failures: int, first_s: float, longest_s: float) -> float:
    """How long to wait after so many failures in a row: twice as long after each.

    It is drawn at random from the upper half of its range, so that many clients do not come back together.
    """
    top_s = min(longest_s, first_s * 2.0 ** min(failures - 1, 30))
    return top_s * random.uniform(0.5, 1.0)


@dataclass(slots=True)
class BackOff:
    """Counts failures in a row, and waits longer after each."""

    first_s: float = 0.2
    longest_s: float = 10.0
    failures: int = 0

    def next_s(self) -> float:
        """How long to wait now, after one more failure."""
        self.failures += 1
        return wait_after(self.failures, self.first_s, self.longest_s)

    def reset(self) -> None:
        self.failures = 0
