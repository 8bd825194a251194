"""The legal sizes of a job as a ladder: how high it is after k steps, and what the next step brings."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.sizes import NO_SET, LegalSizes
from batuta.core.view import PoolView


def climb(sizes: LegalSizes, gpus: IntArray, steps: int) -> IntArray:
    """Every job's size after so many steps up from the size that it has, or its largest."""
    up: IntArray = gpus + np.minimum((sizes.max - gpus) // sizes.step, steps) * sizes.step
    listed = np.flatnonzero(sizes.set_of != NO_SET)
    if listed.size:
        table = sizes.sets[sizes.set_of[listed]]
        now, last = _rungs(table, gpus[listed]), _rungs(table, sizes.max[listed])
        up[listed] = table[np.arange(len(listed)), np.minimum(now + steps, last)]
    return up


def most_steps(sizes: LegalSizes, gpus: IntArray) -> int:
    """Steps from the present sizes to the top, for the job that has most of them."""
    left = (sizes.max - gpus) // sizes.step
    listed = np.flatnonzero(sizes.set_of != NO_SET)
    if listed.size:
        table = sizes.sets[sizes.set_of[listed]]
        left[listed] = _rungs(table, sizes.max[listed]) - _rungs(table, gpus[listed])
    return int(left.max())


def _rungs(table: IntArray, gpus: IntArray) -> IntArray:
    rungs: IntArray = (table <= gpus[:, None]).sum(axis=1) - 1
    return rungs


class Steps:
    """Next sizes and speeds of one job at a time, for loops that give one step after the other.

    Plain lists and a memory view: a NumPy scalar would cost more than the step itself.
    """

    __slots__ = ("_flat", "_last", "_lists", "_lowest", "_max", "_sizes", "_start")

    def __init__(self, view: PoolView) -> None:
        self._flat = view.speed.flat.data
        self._start: list[int] = view.speed.start.tolist()
        self._last: list[int] = view.speed.last.tolist()
        self._max: list[int] = view.max.tolist()
        self._lowest: list[int] = view.min.tolist()
        self._sizes = view.sizes
        self._lists: dict[int, dict[int, int]] = {}

    def speed(self, row: int, gpus: int) -> float:
        speed: float = self._flat[self._start[row] + min(gpus, self._last[row])]
        return speed

    def after(self, row: int, gpus: int) -> int:
        """The next legal size, or 0 at the top."""
        if self._sizes.regular:
            if not gpus:
                return self._lowest[row]
            return gpus + 1 if gpus < self._max[row] else 0
        follows = self._lists.get(row)
        if follows is None:
            legal = self._sizes.of(row).tolist()
            follows = self._lists[row] = dict(zip([0, *legal], [*legal, 0], strict=True))
        return follows[gpus]
