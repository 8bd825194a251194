"""A belief about a length of time, as quantiles; what is left of it after a while; what a sample tells.

All durations of jobs are **seconds on one GPU of the reference type**, as `Job.work_s` is: the scheduler
chooses the size, so a time at one size would be of no use at the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
MEDIAN = LEVELS.index(0.5)
LEAST_S = 1.0
"""No job is believed to take, or to have left, less than this."""
LONGEST_S = 1e9
LEAST_SLOPE = 0.05
"""Least growth of log time per unit of hazard beyond the quantiles: a job that has outlasted all earlier ones
is believed to go on for some percent of its age, not for nothing."""
_HAZARDS = np.array([-math.log1p(-level) for level in LEVELS])


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds that are not exceeded with the probability of each of LEVELS; never falling.

    Between them, log time is linear in the hazard -log(1 - level), and so beyond them: a tail as long as the
    last two quantiles say. This is why a belief can be asked again about a job that has outlasted it.
    """

    seconds: tuple[float, ...]

    @staticmethod
    def of(seconds: Iterable[float]) -> Quantiles:
        """From any numbers, one per level: sorted, positive and finite."""
        values = np.nan_to_num(np.array(list(seconds), np.float64), nan=LEAST_S, posinf=LONGEST_S)
        if len(values) != len(LEVELS):
            raise ValueError(f"{len(LEVELS)} quantiles are needed, found {len(values)}")
        return Quantiles(tuple(np.sort(np.clip(values, LEAST_S, LONGEST_S)).tolist()))

    @staticmethod
    def around(median_s: float, log_sd: float) -> Quantiles:
        """A log-normal belief."""
        return Quantiles.of(median_s * math.exp(log_sd * z) for z in _NORMAL)

    @property
    def p10_s(self) -> float:
        return self.seconds[0]

    @property
    def p50_s(self) -> float:
        return self.seconds[MEDIAN]

    @property
    def p90_s(self) -> float:
        return self.seconds[-1]

    @property
    def log_sd(self) -> float:
        """The spread, as that of a log-normal belief with the same P10 and P90."""
        return math.log(self.p90_s / self.p10_s) / (_NORMAL[-1] - _NORMAL[0])

    def at(self, level: float) -> float:
        """The quantile of any level in [0, 1)."""
        if not 0 <= level < 1:
            raise ValueError(f"a level lies in [0, 1), found {level}")
        return self._at_hazard(-math.log1p(-level))

    def left_after(self, spent_s: float) -> Quantiles:
        """What is left of a job that has lasted so long and is not over."""
        if spent_s <= LEAST_S:
            return self
        passed = self._hazard_at(spent_s)
        return Quantiles.of(self._at_hazard(passed + hazard) - spent_s for hazard in _HAZARDS)

    def _logs(self) -> FloatArray:
        """Strictly ascending, so that it can be inverted."""
        logs: FloatArray = np.log(self.seconds) + 1e-9 * np.arange(len(LEVELS))
        return logs

    def _at_hazard(self, hazard: float) -> float:
        logs, (below, above) = self._logs(), self._slopes()
        if hazard < _HAZARDS[0]:
            log_s = logs[0] - below * (_HAZARDS[0] - hazard)
        elif hazard > _HAZARDS[-1]:
            log_s = logs[-1] + above * (hazard - _HAZARDS[-1])
        else:
            log_s = float(np.interp(hazard, _HAZARDS, logs))
        return math.exp(min(float(log_s), math.log(LONGEST_S)))

    def _hazard_at(self, seconds: float) -> float:
        logs, (below, above) = self._logs(), self._slopes()
        log_s = math.log(seconds)
        if log_s < logs[0]:
            return max(0.0, float(_HAZARDS[0] - (logs[0] - log_s) / below))
        if log_s > logs[-1]:
            return float(_HAZARDS[-1] + (log_s - logs[-1]) / above)
        return float(np.interp(log_s, logs, _HAZARDS))

    def _slopes(self) -> tuple[float, float]:
        logs = self._logs()
        below = (logs[1] - logs[0]) / (_HAZARDS[1] - _HAZARDS[0])
        above = (logs[-1] - logs[-2]) / (_HAZARDS[-1] - _HAZARDS[-2])
        return max(float(below), LEAST_SLOPE), max(float(above), LEAST_SLOPE)


def survival_quantiles(values: FloatArray, ended: BoolArray, levels: Sequence[float] = LEVELS) -> FloatArray:
    """Quantiles of a sample in which some values are only known to be larger (Kaplan and Meier's estimate).

    Levels are those of the next value, not of the sample: of nine values, the largest is the P90. A level
    that the sample does not reach gets its largest value.
    """
    n = len(values)
    # At equal values an end counts before one that is still open.
    order = np.lexsort((~ended, values))
    ordered, is_end = values[order], ended[order].astype(np.float64)
    reached = 1.0 - np.cumprod(1.0 - is_end / np.arange(n, 0, -1))
    wanted = np.array(levels) * (1.0 + 1.0 / n) - 1e-9
    found: FloatArray = ordered[np.minimum(np.searchsorted(reached, wanted), n - 1)]
    return found


_NORMAL = (-1.2815515655446004, -0.6744897501960817, 0.0, 0.6744897501960817, 1.2815515655446004)
"""Of a standard normal variable, at LEVELS."""
