"""Whether forecasts keep their word: how many jobs stayed within the quantiles that were told at submit."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from batuta.core.world import PastJob
from batuta.prediction.duration import LEVELS
from batuta.prediction.duration_history import outcome_of

LAST = 500
"""Jobs over which it is measured, the last to end."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The share of the last jobs that took no longer than each quantile said."""

    jobs: int = 0
    """How many are counted."""
    total: int = 0
    """How many with a forecast have ended since the start."""
    coverage: tuple[tuple[float, float], ...] = ()
    """By level; empty without jobs."""


class CalibrationRecord:
    """Counts the jobs that end, each by what was told when it was submitted. Bounded."""

    def __init__(self, last: int = LAST) -> None:
        self._met: deque[tuple[bool, ...]] = deque(maxlen=last)
        self._total = 0

    def add(self, past: PastJob) -> None:
        """Takes in a job that is over; one without a forecast, or that never ran, does not count."""
        told, outcome = past.job.expected, outcome_of(past)
        if told is not None and outcome is not None:
            self._met.append(tuple(outcome.work_s <= told_s for told_s in told.seconds))
            self._total += 1

    def now(self) -> Calibration:
        met = list(self._met)
        if not met:
            return Calibration(0, self._total)
        shares = (sum(own) / len(met) for own in zip(*met, strict=True))
        return Calibration(len(met), self._total, tuple(zip(LEVELS, shares, strict=True)))
