"""How far jobs of one kind go, as far as it was seen."""

from __future__ import annotations

import numpy as np

FIRST_GUESS_S = 3600.0
"""Run time on one GPU of a job whose total nobody knows yet."""


class Totals:
    """Progress of the jobs that came to their end, and the most that any of them has made."""

    __slots__ = ("_ended", "_furthest")

    def __init__(self) -> None:
        self._ended: list[float] = []
        self._furthest = 0.0

    def advance(self, progress: float) -> None:
        self._furthest = max(self._furthest, progress)

    def end(self, progress: float) -> None:
        self.advance(progress)
        self._ended.append(progress)

    def guess(self, at: float, per_s: float) -> float:
        """Where a job ends that is at `at`; `per_s` is its progress on one GPU.

        The mean of those that ended and got further; before there are any, twice the furthest that one of
        them got, so that the one in front counts as the shortest.
        """
        longer = [end for end in self._ended if end > at]
        return float(np.mean(longer)) if longer else max(2 * self._furthest, FIRST_GUESS_S * per_s)
