"""Free GPUs go where they bring most: one step at a time to the job that gains most by its next one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.view import PoolView
from batuta.policies.step_list import StepList, list_steps

Gain = Callable[[StepList], FloatArray]
"""What each step of a list is worth; one that is not above zero is not taken."""
_MANY = 256
"""So many jobs are worth a look at their first steps before all steps are listed."""


def speed_gain(steps: StepList) -> FloatArray:
    """Speed gained per GPU."""
    gain: FloatArray = (steps.fast - steps.slow) / steps.width
    return gain


def grow_by_gain(
    view: PoolView, gpus: IntArray, free: int, rows: IntArray, gain: Gain, tier: IntArray | None = None
) -> IntArray:
    """The sizes after giving each next step to the job of `rows` that gains most by it.

    Ties go to the lower tier, then to row order. A job whose next step no longer fits drops out; the end
    is when nothing is free or nobody gains.

    No step is given by itself. A step has its turn when all others that are ready gain less, which is when
    the worst step of its job up to this one would have it. So that lowest gain is the key by which all steps
    are taken in one go, whatever the shape of the curves.
    """
    rows = rows[gpus[rows] < view.max[rows]]
    if free <= 0 or not rows.size:
        return gpus
    if tier is not None:
        rows = rows[tier[rows].argsort(kind="stable")]
    if _MANY < len(rows) > free and view.sizes.regular and gpus[rows].all():
        rows = _promising(view, rows, gpus, free, gain)
    steps = list_steps(view, rows, gpus[rows], free)
    key = _lowest_so_far(steps, _numbers(gain(steps)))
    useful = key > 0
    if not useful.all():
        steps, key = steps.keep(useful), key[useful]
    width = steps.width
    grown = gpus.copy()
    if (width == 1).all():
        taken = _highest(key, free)
        grown += np.bincount(steps.row[taken], minlength=len(gpus))
        return grown
    taken = _fitting(steps, width, key, free)
    np.maximum.at(grown, steps.row[taken], steps.after[taken])
    return grown


def _promising(view: PoolView, rows: IntArray, gpus: IntArray, free: int, gain: Gain) -> IntArray:
    """The jobs that may get something when as many as there are GPUs gain more by their first step."""
    first = _numbers(gain(list_steps(view, rows, gpus[rows], 1)))
    promising: IntArray = rows[first >= np.partition(first, len(first) - free)[len(first) - free]]
    return promising


def _numbers(gain: FloatArray) -> FloatArray:
    """A gain that is no number counts as less than any."""
    return np.where(np.isnan(gain), -np.inf, gain)


def _lowest_so_far(steps: StepList, gain: FloatArray) -> FloatArray:
    """The lowest gain among the steps of a job up to each one; overwrites the gains."""
    key = gain
    if not ((key[1:] > key[:-1]) & (steps.number[1:] > 0)).any():
        return key
    reach, longest = 1, int(steps.number.max(initial=0))
    while reach <= longest:
        inside = np.flatnonzero(steps.number >= reach)
        key[inside] = np.minimum(key[inside], key[inside - reach])
        reach *= 2
    return key


def _highest(key: FloatArray, count: int) -> IntArray:
    """Where the highest keys are, so many at most; of equal ones the first."""
    if count >= len(key):
        return np.arange(len(key))
    least = np.partition(key, len(key) - count)[len(key) - count]
    chosen = key > least
    chosen[np.flatnonzero(key == least)[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def _fitting(steps: StepList, width: IntArray, key: FloatArray, free: int) -> IntArray:
    """Which steps are taken by falling key when some take more than one GPU.

    All that fit before the first that does not are taken together. That job is out then, and so are all whose
    next step is too wide for what is left; the others go on.
    """
    order = np.argsort(-key, kind="stable")
    taken: list[IntArray] = []
    while order.size and free > 0:
        reach = width[order].cumsum()
        fitting = int(reach.searchsorted(free, side="right"))
        taken.append(order[:fitting])
        free -= int(reach[fitting - 1]) if fitting else 0
        order = order[fitting:]
        wide = order[width[order] > free]
        if not wide.size:
            break
        ends = np.full(int(steps.row.max()) + 1, len(key))
        np.minimum.at(ends, steps.row[wide], wide)
        order = order[order < ends[steps.row[order]]]
    return np.concatenate(taken) if taken else order[:0]
