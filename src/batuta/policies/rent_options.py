"""The sizes that are worth thinking about for each job, and how long each would take it to its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.node_sizes import node_sizes
from batuta.core.sizes import NO_SET
from batuta.core.view import PoolView

USUAL_NODE = 8
"""GPUs of a node where nobody says how many there are."""
UNKNOWN_EXPONENT = 0.7
"""Speed where nothing is known: n to this power."""
LEAST_S, MOST_S = 1.0, 1e12


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """A column for each job, a row for each size, ascending. Where `legal` is not set there is no option."""

    gpus: IntArray
    legal: BoolArray
    left_s: FloatArray
    """Seconds to the end of the job at this size; very many where there is no option."""
    speed: FloatArray
    """Mean speed until then relative to one GPU; 0 where there is no option."""
    alone_s: FloatArray
    """Seconds to the end on one GPU, for each job."""


def list_sizes(view: PoolView) -> SizeOptions:
    """Options of all jobs: sizes that fill nodes as far as they are legal, the least and the most."""
    gpus, legal = _legal_sizes(view)
    alone_s = np.clip(np.nan_to_num(view.remaining_s, nan=MOST_S, posinf=MOST_S), LEAST_S, MOST_S)
    flat, start, last = view.speed.flat, view.speed.start, view.speed.last
    speed = flat[start + np.minimum(gpus, last)]
    # A curve of one value for a job that may have more GPUs: nobody has said anything.
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
    # Lengths are products: whoever differs by the last digit alone is not longer.
    order = np.argsort(np.round(np.log(length), 9), kind="stable")
    longer = np.empty(len(length))
    longer[order] = np.arange(len(length) - 1, -1, -1)
    return longer


def _legal_sizes(view: PoolView) -> tuple[IntArray, BoolArray]:
    high = np.minimum(view.max, max(view.capacity, 1))
    most = int(high.max(initial=1))
    grid = np.array(node_sizes(most, view.node_gpus or USUAL_NODE) or (1,), np.int64)
    if int(grid[-1]) < most:
        grid = np.append(grid, most)
    wanted = np.minimum(np.maximum(grid[:, None], view.min), np.maximum(high, view.min))
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
