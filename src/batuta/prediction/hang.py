"""Whether a job hangs: it used to report, and has said nothing for much longer than it ever did.

A job that reports nothing, or only now and then, is never called hung: nobody could tell. Whether its GPUs
are busy says nothing either: a collective that waits for a rank that is gone keeps them busy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

_REMEMBERED = 64
_LATE_S = 30.0
"""Who comes so late to look has not seen silence: the machine slept, or was too busy to listen."""


@dataclass(frozen=True, slots=True)
class HangRules:
    """When silence is a hang. All of these must be exceeded."""

    after_s: float = 1800.0
    """Infinite: never."""
    times_usual: float = 20.0
    """So many times the usual time between two reports."""
    times_longest: float = 3.0
    """So many times the longest that the job was ever silent: it may evaluate or save meanwhile."""
    reports: int = 5
    """A run that has reported less often than this is not known well enough."""

    def __post_init__(self) -> None:
        if not (self.after_s > 0 and self.times_usual >= 1 and self.times_longest >= 1 and self.reports >= 2):
            raise ValueError(f"a hang needs a time > 0, factors ≥ 1 and two reports at least: {self}")


@dataclass(frozen=True, slots=True)
class Silence:
    """A job has said nothing for too long."""

    silent_s: float
    usual_s: float
    """The usual time between two reports."""
    ranks: tuple[int, ...] = ()
    """Who is to blame; empty when nobody can be."""
    of: int = 0
    """How many ranks had ever reported."""


class HangMeter:
    """Told when something was heard, and asked now and then. Time is that of the one who listens."""

    __slots__ = ("_gaps", "_heard_s", "_longest_s", "_look_by_s", "_reports", "_waits", "is_done", "rules")

    def __init__(self, rules: HangRules = HangRules()) -> None:  # noqa: B008  (frozen)
        self.rules = rules
        self._longest_s = 0.0
        """Through all runs."""
        self._gaps: deque[float] = deque(maxlen=_REMEMBERED)
        self.began()

    def began(self) -> None:
        """A run begins: what ranks said before does not count, how long they were silent does."""
        self._waits: dict[int, bool] = {}
        """By rank: whether it said last that it waits for the others."""
        self._reports = 0
        self._heard_s: float | None = None
        self._look_by_s = math.inf
        """When somebody has looked, or was to look next."""
        self.is_done = False
        """Whether all steps are done: what comes after is not counted in steps."""

    def heard(self, now_s: float, rank: int = 0, *, waits: bool = False) -> None:
        """A rank has said something: how far it is, that it lives, or that it waits for the others."""
        self._waits[rank] = waits
        if waits:
            return  # that is no progress
        if self._heard_s is not None and now_s > self._heard_s:
            gap_s = now_s - self._heard_s
            self._gaps.append(gap_s)
            self._longest_s = max(self._longest_s, gap_s)
        self._heard_s = now_s
        self._reports += 1

    def look(self, now_s: float) -> Silence | None:
        """What silence means now."""
        if self._heard_s is None:
            return None
        if now_s > self._look_by_s + _LATE_S:
            self._heard_s = now_s
        # Who was to come at a later time may still do so.
        self._look_by_s = now_s if math.isinf(self._look_by_s) else max(self._look_by_s, now_s)
        silent_s = now_s - self._heard_s
        if self.is_done or self._reports < self.rules.reports or silent_s < self._limit_s():
            return None
        return Silence(silent_s, self._usual_s(), culprits(self._waits), len(self._waits))

    def next_look_s(self, now_s: float) -> float:
        """When to look again, for who does not all the time; then it need not be done before."""
        since_s = now_s if self._heard_s is None else self._heard_s
        self._look_by_s = max(now_s, since_s + self._limit_s())
        return self._look_by_s

    def _usual_s(self) -> float:
        return median(self._gaps) if self._gaps else 0.0

    def _limit_s(self) -> float:
        rules = self.rules
        usual_s, longest_s = rules.times_usual * self._usual_s(), rules.times_longest * self._longest_s
        return max(rules.after_s, usual_s, longest_s)


def culprits(waits: Mapping[int, bool]) -> tuple[int, ...]:
    """Who holds the others up: those who do not say that they wait, if others do and are not fewer."""
    busy = sorted(rank for rank, is_waiting in waits.items() if not is_waiting)
    return tuple(busy) if 2 * len(busy) <= len(waits) else ()
