"""Reports of single ranks put together to rounds, in which each rank has said something.

Ranks report every few steps, and not the same steps: a round is what all have said since the last one. For
ranks that report each step in step with each other, rounds are steps.
"""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import FloatArray

MOST_RANKS = 16_384
MOST_AHEAD = 64
"""When a rank has reported so often while another was silent, that one is not waited for any more."""


class RankRounds:
    """Three numbers per rank, however much they report."""

    __slots__ = ("_said", "_silent")

    def __init__(self) -> None:
        self._said: dict[int, tuple[float, int, int]] = {}
        """By rank: seconds of its own, steps, and reports, since the last round."""
        self._silent: set[int] = set()
        """Ranks that have spoken before, but not in this round."""

    def add(self, rank: int, own_s: float, steps: int) -> FloatArray | None:
        """A rank has needed so long for so many steps. When all have spoken: by rank, seconds per step."""
        if not 0 <= rank < MOST_RANKS or not 0 <= own_s < float("inf") or steps < 1:
            return None
        seconds, count, reports = self._said.get(rank, (0.0, 0, 0))
        self._said[rank] = seconds + own_s, count + steps, reports + 1
        self._silent.discard(rank)
        if self._silent and reports < MOST_AHEAD:
            return None
        row = np.full(max(self._said) + 1, np.nan)
        for one, (seconds, count, _) in self._said.items():
            row[one] = seconds / count
        self._silent = set(self._said)
        self._said = {}
        return row
