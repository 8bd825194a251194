"""Quantiles that keep their word: moved, job by job, until as many jobs stay within them as they say.

Whenever a job ends that exceeded its quantile, the quantile moves up a little, and down by less whenever one
did not: in balance, a P90 is exceeded by one job in ten, whatever the model, the trace or the season (online
conformal prediction by quantile tracking; Angelopoulos, Candès and Tibshirani, NeurIPS 2023, section 2.1).
The moves have a limit: thousands of jobs that were submitted at once are all told the same before the first
of them ends, and then all push the same way.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.prediction.duration import LEVELS
from batuta.prediction.duration_history import Outcome

STEP = 0.03
"""In log seconds. Larger follows faster, and makes every forecast wider."""
LIMIT = 3.0
"""In log seconds: up to twenty times as long, or as short."""
WIDE_LIMIT = 4.0
"""The same for a model that is surer of itself than it should be."""
_EXCEEDED = 1.0 - np.array(LEVELS)


class QuantileTracker:
    """How far the quantiles of a model have to be moved, in log seconds, by all that has ended so far."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.offsets: FloatArray = np.zeros(len(LEVELS))
        """Another array after each job, never the same one changed: others may be reading it."""
        self._limit = limit

    def ended(self, log_work: float, told: FloatArray) -> None:
        """A job took so long, of which this was told when it was submitted; both in log seconds."""
        moved = self.offsets + STEP * ((log_work > told) - _EXCEEDED)
        self.offsets = np.clip(moved, -self._limit, self._limit)

    def move(self, logs: FloatArray) -> FloatArray:
        """What is to be told instead of what the model says."""
        moved: FloatArray = np.sort(logs + self.offsets)
        return moved


class Followed(NamedTuple):
    """What came of following a model through a history."""

    tracker: QuantileTracker
    loss: float
    """Mean pinball loss of what was told, in log seconds."""


def follow(outcomes: Sequence[Outcome], predicted: FloatArray, limit: float = LIMIT) -> Followed:
    """Lives through a history again: told at each submit, corrected at each end.

    Outcomes ascend by submit time; `predicted` has a row for each, made from what was known before it.
    """
    tracker = QuantileTracker(limit)
    running: list[tuple[float, int]] = []
    told = np.empty_like(predicted)
    logs = np.log([one.work_s for one in outcomes])

    def end(until_s: float) -> None:
        while running and running[0][0] <= until_s:
            _, row = heapq.heappop(running)
            tracker.ended(logs[row], told[row])

    for row, one in enumerate(outcomes):
        end(one.submit_s)
        told[row] = tracker.move(predicted[row])
        if one.ended:
            heapq.heappush(running, (one.end_s, row))
    end(np.inf)
    over = np.array([one.ended for one in outcomes], bool)
    return Followed(tracker, pinball_loss(logs[over], told[over]))


def pinball_loss(logs: FloatArray, told: FloatArray) -> float:
    """The mean loss over jobs and levels; lower is better, and honest quantiles are best."""
    if not len(logs):
        return 0.0
    off, levels = logs[:, None] - told, np.array(LEVELS)
    return float(np.mean(np.maximum(levels * off, (levels - 1.0) * off)))
