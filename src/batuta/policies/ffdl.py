"""FfDL's optimizer: the allocation with the highest total speed-up.

Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", MASCOTS 2020: the dynamic programme
of its optimizer, with the queue cut to what is feasible as in Voda.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.policy import PLAIN, PolicyTraits
from batuta.core.view import PoolView
from batuta.policies.growth import (
    Options,
    curves_flatten_out,
    flatten_out,
    grow_by_gain,
    highest,
    keep_corners,
    list_options,
    speed_gain,
)
from batuta.policies.order import admit_in_order


def choose_exactly(options: Options, free: int) -> IntArray:
    """Extra GPUs of each job in the best choice; on equal totals the later job gets the smaller one.

    Dynamic programme over jobs: `best[j, k]` is the highest total of the first j jobs with k GPUs above
    their minimum. Only the totals are kept; the choices are found again on the way back.
    """
    starts = [*options.starts().tolist(), len(options.extra)]
    jobs = len(starts) - 1
    own = [(options.extra[a:b], options.speed[a:b]) for a, b in pairwise(starts)]
    best: FloatArray = np.zeros((jobs + 1, free + 1))
    # Row `free - e` of `shifted` is the last table moved right by e; -inf comes in from the left.
    padded = np.full(2 * free + 1, -np.inf)
    shifted = as_strided(padded, (free + 1, free + 1), (padded.strides[0], padded.strides[0]))
    for j, (extra, speed) in enumerate(own):
        padded[free:] = best[j]
        totals = shifted[free - extra]
        totals += speed[:, None]
        totals.max(axis=0, out=best[j + 1])
    chosen = np.zeros(jobs, dtype=np.int64)
    left = free
    for j in range(jobs - 1, -1, -1):
        extra, speed = own[j]
        affordable = int(extra.searchsorted(left, side="right"))
        pick = (best[j, left - extra[:affordable]] + speed[:affordable]).argmax()
        chosen[j] = extra[pick]
        left -= int(extra[pick])
    return chosen


def choose_by_price(options: Options, free: int) -> tuple[IntArray, bool]:
    """Extra GPUs of each job near the best total, and whether it is the best and the only one.

    Lagrange: at a price per GPU each job takes the corner of its curve where a further step is not worth it.
    So take the steps between corners by falling gain, as long as they fit. When they end exactly at the last
    free GPU, no other choice is as good; else less than one step's gain is missing, much of it is filled.
    """
    corners = keep_corners(options)
    slope = corners.slopes()
    steps = np.flatnonzero(corners.extra > 0)
    steps = steps[np.argsort(-slope[steps], kind="stable")]
    width = np.diff(corners.extra, prepend=0)[steps]
    reach = width.cumsum()
    fitting = int(reach.searchsorted(free, side="right"))
    extra = np.zeros(len(corners.starts()), dtype=np.int64)
    np.add.at(extra, corners.job[steps[:fitting]], width[:fitting])
    if fitting == len(steps):
        return extra, True
    left = free - int(extra.sum())
    if left == 0 and fitting and slope[steps[fitting]] < slope[steps[fitting - 1]]:
        return extra, True
    return _fill(options, extra, left), False


def _fill(options: Options, extra: IntArray, left: int) -> IntArray:
    """Spends what is left: again and again the step of each job that gains most per GPU and still fits."""
    extra = extra.copy()
    while left > 0:
        width = options.extra - extra[options.job]
        now = np.flatnonzero(width == 0)
        can = np.flatnonzero((width > 0) & (width <= left))
        job = options.job[can]
        gain = (options.speed[can] - options.speed[now][job]) / width[can]
        order = np.argsort(-gain, kind="stable")
        _, first = np.unique(job[order], return_index=True)
        steps = can[order[np.sort(first)]]
        given = admit_in_order(width[steps], left)
        if not given.any():
            break
        extra[options.job[steps]] += given
        left -= int(given.sum())
    return extra


@dataclass(frozen=True, slots=True)
class Ffdl:
    """Jobs in submit order while their `min` still fits; then the sizes with the highest total speed.

    Every job taken gets at least its `min`. The total is the best there is, by whichever way is fastest:
    the highest gains where all curves flatten and all steps are alike, a price per GPU where it comes out
    even, else the dynamic programme. Only beyond both limits below is it up to 0.5 % under the best.
    """

    name: str = "ffdl"
    exact_gpus: int = 2000  # up to this capacity the result is exact for all curves
    exact_cells: int = 20_000_000  # above it, it is still exact when the dynamic programme has at most this many cells
    traits: ClassVar[PolicyTraits] = PLAIN

    def allocate(self, view: PoolView) -> IntArray:
        reach = view.min.cumsum()
        taken = int(reach.searchsorted(view.capacity, side="right"))
        gpus = view.min.copy()
        gpus[taken:] = 0
        free = view.capacity - int(reach[taken - 1]) if taken else 0
        rows = np.flatnonzero(view.max[:taken] > view.min[:taken])
        if free <= 0 or not rows.size:
            return gpus
        if view.sizes.regular and curves_flatten_out(view, rows):
            gpus = grow_by_gain(view, gpus, free, rows, speed_gain)
        else:
            gpus[rows] += self._choose(list_options(view, rows, free), free, view.capacity)
        return gpus

    def _choose(self, options: Options, free: int, capacity: int) -> IntArray:
        width = np.diff(options.extra)
        width = width[width > 0]
        if not width.size:
            return np.zeros(len(options.extra), dtype=np.int64)
        slope = options.slopes()
        if (width == width[0]).all() and flatten_out(options, slope):
            # All steps are alike and gains only fall, so the best total takes the highest gains.
            steps = np.flatnonzero(options.extra > 0)
            steps = steps[highest(slope[steps], free // int(width[0]))]
            return int(width[0]) * np.bincount(options.job[steps], minlength=len(options.starts()))
        extra, best = choose_by_price(options, free)
        if best or (capacity > self.exact_gpus and len(width) * (free + 1) > self.exact_cells):
            return extra
        return choose_exactly(options, free)
