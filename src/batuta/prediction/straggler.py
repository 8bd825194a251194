"""Which ranks of a job are slower than the others, from the time that each needs for its own part of a step.

Per step, each rank is compared with the median of all, as a ratio in logarithms: what slows all down together
cancels out. Over steps, what a rank is slower than is tolerated adds up, and what it is faster takes away
(CUSUM). One step counts for two and a half times as slow at most, so that a stall of a minute is one slow
step and nothing more. How much must add up grows with the noise, which is measured from step to step: a rank
that is always slow does not look noisy, and does not hide itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import FloatArray, IntArray

SHORTEST_S = 1e-3  # below that a step is all noise: it counts as so long
_TWICE = math.log(2.0)
_MOST = math.log(2.5)
_NOISE_MEMORY = 0.05  # the weight of a step in the running mean of the noise: as if over the last twenty
_SPEED_MEMORY = 0.2
_NORMAL = 1.4826 / math.sqrt(2.0)  # from the median difference between steps to a standard deviation of normal noise
_FALSE_ALARM = 24.0  # -ln of how likely noise alone adds up so far, from one step on: once in 10^10
MOST_RANKS = 16_384
MOST_AHEAD = 64  # when a rank has reported so often while another was silent, that one is not waited for any more


@dataclass(frozen=True, slots=True)
class StragglerRules:
    """When a rank counts as slow."""

    tolerated: float = 1.22  # so many times as long as the others is nothing: ranks have unequal work, and nodes differ
    patience: int = 12  # so many steps in a row at twice the time, or the like of it, make a straggler

    def __post_init__(self) -> None:
        if not 1.0 < self.tolerated < 2.0:
            raise ValueError(f"tolerated must be between 1 and 2, found {self.tolerated}")
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, found {self.patience}")


@dataclass(frozen=True, slots=True)
class StragglerReport:
    """Some ranks are slower than the others."""

    ranks: tuple[int, ...]  # the slow ones; the slowest first
    of: int  # how many ranks were compared
    own_s: float  # what the slowest needs for its part of a step, …
    usual_s: float  # … and the median of all
    steps: int  # for so long it has been adding up

    @property
    def slowdown(self) -> float:
        return self.own_s / self.usual_s

    @property
    def is_clear(self) -> bool:
        """Whether the slow ranks are a minority: of two ranks one is always slower, and the other may be odd."""
        return 2 * len(self.ranks) < self.of


class StragglerDetector:
    """Sees each step once and reports when ranks have been slow for long enough; then it starts over."""

    __slots__ = ("_last", "_noise", "_rules", "_scores", "_slow_for", "_speeds")

    def __init__(self, rules: StragglerRules = StragglerRules()) -> None:  # noqa: B008  (frozen)
        self._rules = rules
        self._noise = 0.0
        self._forget(0)

    def see(self, own_s: FloatArray) -> StragglerReport | None:
        """One step: by rank, the seconds of its own part; NaN for ranks of which nothing is known."""
        if own_s.size != self._scores.size:
            self._forget(own_s.size)
        known = np.flatnonzero(np.isfinite(own_s))
        if known.size < 2:
            return None
        logs = np.log(np.maximum(own_s[known], SHORTEST_S))
        # The lower of two: when half are slow, the others are still what is usual.
        usual = float(np.partition(logs, (known.size - 1) // 2)[(known.size - 1) // 2])
        behind = logs - usual
        self._note_noise(behind, known)
        self._speeds[known] += _SPEED_MEMORY * (behind - self._speeds[known])
        slack = math.log(self._rules.tolerated)
        self._scores[known] = np.maximum(0.0, self._scores[known] + np.minimum(behind, _MOST) - slack)
        self._slow_for[:] = np.where(self._scores > 0.0, self._slow_for + 1, 0)
        # What patience asks for, or more where noise alone would get there.
        enough = max(self._rules.patience * (_TWICE - slack), _FALSE_ALARM * self._noise**2 / (2 * slack))
        if float(self._scores[known].max()) < enough:
            return None
        return self._report(known, math.exp(usual), enough)

    def _note_noise(self, behind: FloatArray, known: IntArray) -> None:
        jumps = np.abs(behind - self._last[known])
        self._last[known] = behind
        jumps = jumps[np.isfinite(jumps)]
        if jumps.size:
            middle = float(np.partition(jumps, jumps.size // 2)[jumps.size // 2])
            self._noise += _NOISE_MEMORY * (_NORMAL * middle - self._noise)

    def _report(self, known: IntArray, usual_s: float, enough: float) -> StragglerReport:
        """Report the ranks at the threshold and those halfway: all ranks of a slow node are slow."""
        slow = known[self._scores[known] >= enough / 2]
        slow = slow[np.argsort(-self._speeds[slow], kind="stable")]
        first = int(slow[0])
        found = StragglerReport(
            tuple(slow.tolist()),
            int(known.size),
            usual_s * math.exp(float(self._speeds[first])),
            usual_s,
            int(self._slow_for[slow].max()),
        )
        self._scores[:] = 0.0
        self._slow_for[:] = 0
        return found

    def _forget(self, ranks: int) -> None:
        """Reset the scores: the ranks have changed."""
        self._scores = np.zeros(ranks)
        self._speeds = np.zeros(ranks)
        self._last = np.full(ranks, np.nan)
        self._slow_for = np.zeros(ranks, dtype=np.int64)


class RankRounds:
    """Three numbers per rank, however much they report."""

    __slots__ = ("_said", "_silent")

    def __init__(self) -> None:
        self._said: dict[int, tuple[float, int, int]] = {}  # by rank, since the last round: own seconds, steps, reports
        self._silent: set[int] = set()  # ranks that have spoken before, but not in this round

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
