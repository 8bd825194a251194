"""AFS-L: Apathetic Future Share, one GPU at a time to the job that should have it.

Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI '21: algorithm AFS-L, which
needs the remaining time of jobs. The scan for the job that wins the comparison is kept up to date instead
of repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.policy import PLAIN, PolicyTraits
from batuta.core.view import PoolView
from batuta.policies.growth import Steps
from batuta.policies.order import admit_in_order, shortest_first

FAR = 1e290  # length of a job that makes no progress; jobs without GPUs stand beyond it, by rank

_FEW = 32  # so many jobs are looked at one by one in less time than all of them at once


class Contest:
    """Finds the winner of a scan in row order in which each job challenges the best one so far.

    Of each job it knows three numbers. `first` and `last` are the gain of its next GPU relative to its speed
    without and with that GPU; `length` is the time left with the GPUs that it has. A job without GPUs has
    first ∞, last 1 and a length beyond all others, by remaining time. As last ≤ first, the paper's rule says
    that a later job i takes the lead from b when

        last_i > first_b   or   (length_i < length_b   and   first_i ≥ last_b).

    In terms of x = 1 / first, for steps of one GPU: i wins when x_i < x_b − 1, loses when x_i > x_b + 1, and
    in between the shorter job wins. So a ≻ b ≻ c ≻ a happens, no sort key exists, and the scan order is
    part of the rule. But only the winner ever changes. So the chain of leaders of the last scan is kept: what
    came before the winner still stands, and the scan goes on from there. One leader leaves the chain per GPU
    given, so in the long run one joins: about two searches for the next leader per GPU.

    Both ways to win need first_i ≥ last_b. Most jobs behind a leader have grown so much already that they
    fall short of that, so one array operation leaves only a few to be looked at.
    """

    __slots__ = ("_chain", "_first", "_last", "_length", "_seen", "_standings")

    def __init__(self, last: FloatArray, first: FloatArray, length: FloatArray) -> None:
        self._last, self._first, self._length = last, first, length
        # The same numbers once more, for one job at a time: a list answers faster than an array.
        self._standings = list(zip(last.tolist(), first.tolist(), length.tolist(), strict=True))
        self._chain: list[int] = []
        self._seen = 0

    def winner(self) -> int:
        """The job that leads at the end of the scan, or -1 when all have left."""
        chain, seen = self._chain, self._seen
        if not chain:
            present = self._length[seen:] < inf
            if not present.any():
                return -1
            seen += int(present.argmax()) + 1
            chain.append(seen - 1)
        while (challenger := self._next_leader(chain[-1], seen)) >= 0:
            seen = challenger + 1
            chain.append(challenger)
        self._seen = len(self._standings)
        return chain[-1]

    def _next_leader(self, leader: int, seen: int) -> int:
        """The first job from `seen` on that takes the lead, or -1."""
        standings = self._standings
        last, first, length = standings[leader]
        able = (self._first[seen:] >= last).nonzero()[0]
        for place in able[:_FEW].tolist():
            own_last, _, own_length = standings[seen + place]
            if own_length < length or own_last > first:
                return seen + int(place)
        if len(able) <= _FEW:
            return -1
        able = able[_FEW:] + seen
        leads = (self._length[able] < length) | (self._last[able] > first)
        nearest = int(leads.argmax())
        return int(able[nearest]) if leads[nearest] else -1

    def change(self, winner: int, standing: tuple[float, float, float]) -> None:
        """The winner was served and has another standing now: last, first, length."""
        self._standings[winner] = standing
        last, first, length = standing
        self._last[winner], self._first[winner], self._length[winner] = last, first, length
        self._seen = winner + 1
        chain = self._chain
        chain.pop()
        if chain:
            leader_last, leader_first, leader_length = self._standings[chain[-1]]
            if last <= leader_first and (length >= leader_length or first < leader_last):
                return
        chain.append(winner)

    def leave(self, winner: int) -> None:
        self._chain.pop()
        self._standings[winner] = (-inf, -inf, inf)
        self._last[winner] = self._first[winner] = -inf
        self._length[winner] = inf
        self._seen = winner + 1


@dataclass(frozen=True, slots=True)
class AfsL:
    """Again and again, the winner of the pairwise scan in submit order gets one GPU, or its `min` at first.

    A winner whose step no longer fits leaves, as does one at its maximum. Where sizes are not all integers, a
    step goes to the next legal size, and its gain is the speed gained per GPU of the step.
    """

    name: str = "afs-l"
    traits: ClassVar[PolicyTraits] = PLAIN

    def allocate(self, view: PoolView) -> IntArray:
        by_length = shortest_first(view)
        gpus = admit_in_order(view.min, view.capacity, by_length)
        waiting = _who_waits_for_others(view, gpus, by_length)
        gpus[waiting] = 0
        free = view.capacity - int(gpus.sum())
        if free <= 0:
            return gpus
        rows = np.flatnonzero((gpus > 0) & (gpus < view.max))
        if waiting.size:
            rows = np.union1d(rows, waiting)
        return _hold_contest(view, gpus, free, rows, by_length) if rows.size else gpus


def _who_waits_for_others(view: PoolView, gpus: IntArray, by_length: IntArray) -> IntArray:
    """Jobs whose turn for `min` is not simply the order of remaining time.

    A job without GPUs beats one with, unless the next GPU at least doubles its speed: until then it is `srjf`.
    """
    growing = (gpus > 0) & (gpus < view.max)
    doubles = np.zeros(len(gpus), dtype=bool)
    rows = np.flatnonzero(growing)
    doubles[rows] = _standings(view, rows, gpus[rows])[1] >= 1
    turns = np.flatnonzero(doubles[by_length])
    return by_length[turns[0] :] if turns.size else by_length[:0]


def _hold_contest(view: PoolView, gpus: IntArray, free: int, rows: IntArray, by_length: IntArray) -> IntArray:
    rank = np.empty(len(gpus))
    rank[by_length] = np.arange(2.0, len(gpus) + 2.0)
    last, first, length = _standings(view, rows, gpus[rows])
    contest = Contest(last, first, np.where(gpus[rows] > 0, length, FAR * rank[rows]))
    have: list[int] = gpus.tolist()
    row_of: list[int] = rows.tolist()
    remaining_s: list[float] = view.remaining_s.tolist()
    steps = Steps(view)
    while free > 0 and (winner := contest.winner()) >= 0:
        row = row_of[winner]
        up = steps.after(row, have[row])
        if up - have[row] > free:
            contest.leave(winner)
            continue
        free -= up - have[row]
        have[row] = up
        above = steps.after(row, up)
        if above:
            now, then = steps.speed(row, up), steps.speed(row, above)
            contest.change(winner, _standing(now, then, above - up, remaining_s[row]))
        else:
            contest.leave(winner)
    return np.array(have, dtype=np.int64)


def _standing(now: float, then: float, width: int, remaining_s: float) -> tuple[float, float, float]:
    """A job that runs at speed `now` and would run at speed `then` with `width` more GPUs."""
    gain = (then - now) / width
    if now > 0 and then > 0:
        return (gain / then, gain / now, min(remaining_s / now, FAR))
    if now > 0:
        return (-np.inf, gain / now, min(remaining_s / now, FAR))
    return (gain / then, np.inf, FAR) if then > 0 else (0.0, 0.0, FAR)


def _standings(view: PoolView, rows: IntArray, gpus: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The same for many jobs; those without GPUs get their own `last` and `first`, and no useful length."""
    up = gpus + 1 if view.sizes.regular else view.sizes.subset(rows).next(gpus)
    now, then = view.speed.of(rows, gpus), view.speed.of(rows, up)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = (then - now) / (up - gpus)
        last = np.where(then > 0, gain / then, np.where(gain < 0, -np.inf, 0.0))
        first = np.where(now > 0, gain / now, np.where(gain > 0, np.inf, 0.0))
        length = np.where(now > 0, np.minimum(view.remaining_s[rows] / now, FAR), FAR)
    bare = gpus == 0
    last[bare], first[bare] = 1.0, np.inf
    return last, first, length
