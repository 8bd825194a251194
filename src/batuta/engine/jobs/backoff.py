"""Exponential back-off with a longest pause, for restarts and for bindings that were refused."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next try: `first_s`, doubled with each failure, at most `longest_s`."""

    first_s: float
    longest_s: float

    def pause_s(self, streak: int) -> float:
        """Return the pause after so many failed tries in a row; none after none."""
        if streak <= 0:
            return 0.0
        longest_s = max(self.longest_s, self.first_s)
        return min(longest_s, self.first_s * 2.0 ** min(streak - 1, _MOST_DOUBLINGS))
