"""The sizes that `rent` considers for each job, and its guards against starving and against restarts.

Both guards are factors of 1 as long as no job is late and none was restarted too often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.curve import NO_SET, node_sizes
from batuta.core.view import PoolView

USUAL_NODE = 8  # GPUs of a node where it is not said how many there are
UNKNOWN_EXPONENT = 0.7  # speed where nothing is known: n to this power
LEAST_S, MOST_S = 1.0, 1e12


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """A column for each job, a row for each size, ascending. Where `legal` is not set there is no option."""

    gpus: IntArray
    legal: BoolArray
    left_s: FloatArray  # seconds to the end of the job at this size; very many where there is no option
    speed: FloatArray  # mean speed until then relative to one GPU; 0 where there is no option
    alone_s: FloatArray  # seconds to the end on one GPU, for each job


def list_sizes(view: PoolView, *also: IntArray) -> SizeOptions:
    """Options of all jobs: sizes that fill nodes as far as they are legal, the least and the most.

    `also` are columns of further sizes, one for each job; of one that is not legal, the next below it.
    """
    gpus, legal = _legal_sizes(view, also)
    alone_s = np.clip(np.nan_to_num(view.remaining_s, nan=MOST_S, posinf=MOST_S), LEAST_S, MOST_S)
    flat, start, last = view.speed.flat, view.speed.start, view.speed.last
    speed = flat[start + np.minimum(gpus, last)]
    # A curve of one value for a job that may have more GPUs: nothing is known.
    unknown = (last <= 1) & (view.max > 1)
    if unknown.any():
        speed = np.where(unknown, gpus**UNKNOWN_EXPONENT, speed)
    # More GPUs than a curve knows bring nothing; the least size is an option whatever it brings.
    legal[1:] &= (gpus[1:] <= last) | unknown
    speed = np.where(legal, np.maximum(speed, 1e-9), 0.0)
    left_s = np.where(legal, alone_s / np.where(legal, speed, 1.0), MOST_S)
    for shared in view.outlooks:
        rows = shared.rows
        left = shared.left_s(alone_s[rows], gpus[:, rows].T).T
        left_s[:, rows] = np.where(legal[:, rows], np.clip(left, LEAST_S / 1e3, MOST_S), MOST_S)
        speed[:, rows] = np.where(legal[:, rows], alone_s[rows] / left_s[:, rows], 0.0)
    return SizeOptions(gpus, legal, left_s, speed, alone_s)


def count_longer(length: FloatArray) -> FloatArray:
    """How many jobs are longer than each; of equal ones the later counts as longer, as it came."""
    # Lengths are products: a job that differs by the last digit alone is not longer.
    order = np.argsort(np.round(np.log(length), 9), kind="stable")
    longer = np.empty(len(length))
    longer[order] = np.arange(len(length) - 1, -1, -1)
    return longer


def _legal_sizes(view: PoolView, also: tuple[IntArray, ...]) -> tuple[IntArray, BoolArray]:
    high = np.minimum(view.max, max(view.capacity, 1))
    most = int(high.max(initial=1))
    grid = np.array(node_sizes(most, view.node_gpus or USUAL_NODE) or (1,), np.int64)
    if int(grid[-1]) < most:
        grid = np.append(grid, most)
    wanted = np.broadcast_to(grid[:, None], (len(grid), len(view)))
    if also:
        wanted = np.sort(np.vstack([wanted, *also]), axis=0)
    wanted = np.minimum(np.maximum(wanted, view.min), np.maximum(high, view.min))
    gpus = wanted if view.sizes.regular else _floor(view, wanted)
    legal = np.ones(gpus.shape, dtype=bool)
    legal[1:] = gpus[1:] > gpus[:-1]
    legal &= (gpus > 0) & (gpus <= view.capacity)
    return gpus, legal


def _floor(view: PoolView, wanted: IntArray) -> IntArray:
    """The largest legal size that is at most each wanted one; those are within `min` and `max`."""
    sizes = view.sizes
    gpus: IntArray = sizes.min + (wanted - sizes.min) // sizes.step * sizes.step
    listed = np.flatnonzero(sizes.set_of != NO_SET)
    if listed.size:
        table = sizes.sets[sizes.set_of[listed]]
        fits = (table <= wanted[:, listed, None]) & (table >= sizes.min[listed, None])
        gpus[:, listed] = np.where(fits, table, 0).max(axis=2)
    return gpus


LATE = 1.8  # from so many times the time on a fair share on, a job's work becomes dearer, …
URGENCY = 6.0  # … by this power of how much later it is
FREE_RESTARTS, RESTARTS_PER_HOUR = 6.0, 6.0  # usual; a job with more is changed with reluctance, …
ENOUGH = 1.5  # … and one with so many times as many keeps what it has for a while, whatever it says of itself
HOUR_S = 3600.0


def urgency(view: PoolView, options: SizeOptions) -> FloatArray:
    """How much dearer the work of each job is because it is late; 1 for nearly all.

    Late is judged as finish-time fairness is (Themis, NSDI '20): from submission to the earliest end that is
    still possible, over the time that a fair share of the cluster would have taken for all of its work.
    """
    left_s = options.left_s.min(axis=0)
    share = fair_share(view, view.capacity, left_s)
    within = np.where(options.legal & (options.gpus <= share), options.speed, 0.0).max(axis=0)
    # Less than its least size is that size for a part of the time.
    least = options.speed[0] * np.minimum(share / np.maximum(options.gpus[0], 1), 1.0)
    speed = np.maximum(np.maximum(within, least), 1e-9)
    return lateness(view, options.alone_s, left_s, speed)


def fair_share(view: PoolView, gpus: int, left_s: FloatArray) -> FloatArray:
    """The GPUs due to each job from submission to its end, if it stays as crowded as now: less after a rush."""
    share = np.full(len(view), gpus / len(view))
    if view.crowd is None:
        return share
    age_s = np.maximum(view.now_s - view.submit_s, 0.0)
    crowd: FloatArray = (view.crowd * age_s + left_s) / np.maximum(age_s + left_s, 1.0)
    return share / np.maximum(crowd, 1.0 / len(view))


def lateness(
    view: PoolView, work_s: FloatArray, left_s: FloatArray, fair_speed: FloatArray, unit: FloatArray | float = 1.0
) -> FloatArray:
    """The same from work left, least time for it and fair speed; `unit`: the view's seconds in one of these."""
    done_s = 0.0 if view.done_s is None else np.maximum(np.nan_to_num(view.done_s), 0.0) / unit
    fair_s = (work_s + done_s) / fair_speed + view.restart_s
    age_s = np.maximum(view.now_s - view.submit_s, 0.0)
    late: FloatArray = (age_s + left_s) / np.maximum(fair_s, 1.0) / LATE
    return np.maximum(late, 1.0) ** URGENCY


def unrest(view: PoolView) -> FloatArray:
    """The restarts of each job over the usual number of them; 1 where it is no more."""
    if view.restarts is None:
        return np.ones(len(view))
    age_s = np.maximum(view.now_s - view.submit_s, 0.0)
    usual = FREE_RESTARTS + RESTARTS_PER_HOUR * age_s / HOUR_S
    return np.maximum(view.restarts / usual, 1.0)


def is_tired(view: PoolView, often: FloatArray) -> BoolArray:
    """Who runs, and was restarted far too often."""
    return (often >= ENOUGH) & (view.gpus > 0)


def hold_still(values: FloatArray, stays: BoolArray, tired: BoolArray) -> FloatArray:
    """The values, such that a job with too many restarts keeps what it has."""
    if not tired.any():
        return values
    return np.where(tired & stays & (values > 0), 1e3 * float(values.max()), values)
