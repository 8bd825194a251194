"""The sizes that are worth choosing for each job, one after the other in flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.sizes import NO_SET
from batuta.core.view import PoolView

NOISE = 1e-12
"""A bend of a curve by less than this, relative to its speed, is rounding and not shape."""


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of job 0, then of job 1, … each ascending in cost and in speed; the first costs nothing.

    Flat, because one job with a thousand sizes would make a table of ten thousand jobs a thousand wide.
    """

    job: IntArray
    extra: IntArray
    """GPUs above the job's minimum."""
    speed: FloatArray

    def keep(self, wanted: BoolArray) -> Options:
        return Options(self.job[wanted], self.extra[wanted], self.speed[wanted])

    def starts(self) -> IntArray:
        """Where each job's first option is: the one that costs nothing."""
        return np.flatnonzero(self.extra == 0)

    def slopes(self) -> FloatArray:
        """Speed gained per GPU from the option before to this one; +inf for the first of a job."""
        width = np.diff(self.extra, prepend=0)
        slope = np.full(len(width), np.inf)
        np.divide(np.diff(self.speed, prepend=0.0), width, out=slope, where=self.extra > 0)
        return slope


def list_options(view: PoolView, rows: IntArray, free: int) -> Options:
    """The legal sizes of the jobs in `rows` within `free` GPUs above `min` that beat all cheaper ones."""
    low = view.min[rows]
    reach = np.minimum(view.max[rows] - low, free)
    step = view.sizes.step[rows]
    # From the end of a curve on more GPUs bring nothing, so of the sizes beyond it only the first can matter.
    to_end = -(-np.maximum(view.speed.last[rows] - low, 0) // step)
    count = 1 + np.minimum(reach // step, to_end)
    if view.sizes.regular:
        job, extra = count_up(count)
    else:
        count[view.sizes.set_of[rows] != NO_SET] = 1
        job, extra = count_up(count)
        job, extra = add_listed(view, rows, reach, job, extra * step[job])
    curves = view.speed.subset(rows)
    # Adding per job first and looking up per option once is three times as fast as `curves.of`.
    place = np.minimum((curves.start + low)[job] + extra, (curves.start + curves.last)[job])
    options = Options(job, extra, curves.flat[place])
    while True:
        better = np.diff(options.speed, prepend=-np.inf) > 0
        better |= options.extra == 0
        if better.all():
            return options
        options = options.keep(better)


def keep_corners(options: Options) -> Options:
    """The options on the upper hull of each job's points, where gain per GPU only falls.

    A point on or below the line between its neighbours is no corner; taking all such points away at once and
    looking again ends after a few passes.
    """
    while True:
        slope = options.slopes()
        corner = np.append(slope[1:] < slope[:-1], True)
        corner |= np.append(options.extra[1:] == 0, True)
        corner |= options.extra == 0
        if corner.all():
            return options
        options = options.keep(corner)


def flatten_out(options: Options, slope: FloatArray) -> bool:
    """True when no job gains more per GPU by a later step than by an earlier one."""
    bend = slope[1:] > slope[:-1] + NOISE * (1 + options.speed[1:])
    return not (bend & (options.extra[1:] > 0)).any()


def curves_flatten_out(view: PoolView, rows: IntArray) -> bool:
    """The same for steps of one GPU between `min` and `max`, seen from the curves: many jobs share one."""
    flat, start = view.speed.flat, view.speed.start[rows]
    gain = np.diff(flat)
    bends = np.zeros(len(flat), dtype=np.int64)
    (gain[1:] > gain[:-1] + NOISE * (1 + flat[2:])).cumsum(out=bends[2:])
    end = start + np.minimum(view.max[rows], view.speed.last[rows])
    # A bend is booked where its second step ends, so the first of a job lies two places behind its `min`.
    begin = np.minimum(start + view.min[rows] + 1, end)
    return bool((bends[end] == bends[begin]).all())


def count_up(count: IntArray) -> tuple[IntArray, IntArray]:
    """0, 1, …, count[j] − 1 for every j, and the j that each belongs to."""
    job = np.repeat(np.arange(len(count)), count)
    return job, np.arange(len(job)) - np.repeat(count.cumsum() - count, count)


def add_listed(
    view: PoolView, rows: IntArray, reach: IntArray, job: IntArray, extra: IntArray
) -> tuple[IntArray, IntArray]:
    """Adds the sizes of jobs that have an explicit list."""
    listed = np.flatnonzero(view.sizes.set_of[rows] != NO_SET)
    above = view.sizes.sets[view.sizes.set_of[rows[listed]]] - view.min[rows[listed], None]
    which, column = np.nonzero((above > 0) & (above <= reach[listed, None]))
    job = np.concatenate((job, listed[which]))
    extra = np.concatenate((extra, above[which, column]))
    order = np.lexsort((extra, job))
    return job[order], extra[order]
