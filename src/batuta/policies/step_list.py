"""Every step that jobs can still take, one after the other in flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.sizes import NO_SET
from batuta.core.view import PoolView
from batuta.policies.options import add_listed, count_up


@dataclass(frozen=True, slots=True)
class StepList:
    """Steps of the first job in their order, then of the second, …: each from one legal size to the next."""

    row: IntArray
    """The row of the view that takes the step."""
    before: IntArray
    after: IntArray
    number: IntArray
    """Steps that the job takes before this one."""
    slow: FloatArray
    """Its speed before the step."""
    fast: FloatArray
    """Its speed after the step."""

    @property
    def width(self) -> IntArray:
        """GPUs that the step takes."""
        return self.after - self.before

    def keep(self, wanted: BoolArray | IntArray) -> StepList:
        return StepList(
            self.row[wanted],
            self.before[wanted],
            self.after[wanted],
            self.number[wanted],
            self.slow[wanted],
            self.fast[wanted],
        )


def list_steps(view: PoolView, rows: IntArray, gpus: IntArray, free: int) -> StepList:
    """The steps of the jobs in `rows`, which have `gpus`, within so many free ones; jobs in the given order.

    A job without GPUs begins with the step to its `min`. Past the end of a job's curve there is one step at
    most, since from there on more GPUs bring nothing.
    """
    low, high = view.min[rows], np.minimum(view.max[rows], gpus + free)
    end = np.maximum(view.speed.last[rows], low)
    if view.sizes.regular:
        base = np.where(gpus > 0, gpus, low - 1)
        job, number = count_up(np.maximum(np.minimum(high, np.maximum(end, base + 1)) - base, 0))
        after = (base + 1)[job] + number
    else:
        job, after = _legal_sizes(view, rows, high, end)
        above = after > gpus[job]
        job, after = job[above], after[above]
        number = _places(job)
    before = after - 1
    first = number == 0
    if not view.sizes.regular:
        before[1:] = after[:-1]
    before[first] = gpus[job[first]]
    start, last = view.speed.start[rows], view.speed.last[rows]
    flat, end_of = view.speed.flat, (start + last)[job]
    base_of = start[job]
    return StepList(
        rows[job],
        before,
        after,
        number,
        flat[np.minimum(base_of + before, end_of)],
        flat[np.minimum(base_of + after, end_of)],
    )


def _legal_sizes(view: PoolView, rows: IntArray, high: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """All legal sizes from `min` to `high` of each job, and the job, as its place in `rows`."""
    low, step = view.min[rows], view.sizes.step[rows]
    reach = high - low
    count = np.where(reach < 0, 0, 1 + np.minimum(reach // step, -(-(end - low) // step) + 1))
    listed = view.sizes.set_of[rows] != NO_SET
    count[listed] = reach[listed] >= 0
    job, place = count_up(count)
    job, extra = add_listed(view, rows, reach, job, place * step[job])
    return job, low[job] + extra


def _places(job: IntArray) -> IntArray:
    """How many entries of the same job stand before each; those of one job stand together."""
    starts = np.flatnonzero(np.diff(job, prepend=-1))
    places: IntArray = np.arange(len(job)) - np.repeat(starts, np.diff(starts, append=len(job)))
    return places
