"""One option for each job so that the total speed is as high as the free GPUs allow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import as_strided

from batuta.core.arrays import FloatArray, IntArray
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.options import Options, keep_corners


def choose_even(options: Options, slope: FloatArray, width: int, free: int) -> IntArray:
    """Extra GPUs of each job; exact where all steps have this width and every job's gain only falls.

    Then the best total takes the steps with the highest gains. Of equal ones the earlier job's come first.
    """
    steps = np.flatnonzero(options.extra > 0)
    gain = slope[steps]
    affordable = free // width
    if affordable < len(gain):
        least = np.partition(gain, len(gain) - affordable)[len(gain) - affordable] if affordable else np.inf
        chosen = gain > least
        chosen[np.flatnonzero(gain == least)[: affordable - np.count_nonzero(chosen)]] = True
        steps = steps[chosen]
    return width * np.bincount(options.job[steps], minlength=len(options.starts()))


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
