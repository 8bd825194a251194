"""AFS-L: Apathetic Future Share, one GPU at a time to the job that should have it.

Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI '21: algorithm AFS-L, which needs
the remaining time of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.contest import FAR, Contest
from batuta.policies.ladder import Steps
from batuta.policies.order import shortest_first


@dataclass(frozen=True, slots=True)
class AfsL:
    """Again and again, the winner of the pairwise scan in submit order gets one GPU, or its `min` at first.

    A winner whose step no longer fits leaves, as does one at its maximum. Where sizes are not all integers, a
    step goes to the next legal size, and its gain is the speed gained per GPU of the step.
    """

    name: str = "afs-l"

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

    A job without GPUs beats one with GPUs unless the next GPU at least doubles the speed of that one. So
    until the first job that doubles has its `min`, the contest is `srjf`, and no scan is needed.
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
