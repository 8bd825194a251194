"""FfDL's optimizer: the allocation with the highest total speed-up.

Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", MASCOTS 2020: the dynamic programme of
its optimizer, with the queue cut to what is feasible as in Voda.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView
from batuta.policies.best_total import choose_by_price, choose_even, choose_exactly
from batuta.policies.gain import grow_by_gain, speed_gain
from batuta.policies.options import Options, curves_flatten_out, flatten_out, list_options


@dataclass(frozen=True, slots=True)
class Ffdl:
    """Jobs in submit order while their `min` still fits; then the sizes with the highest total speed.

    Every job taken gets at least its `min`. The total is the best there is, by whichever way is fastest:
    the highest gains where all curves flatten and all steps are alike, a price per GPU where it comes out
    even, else the dynamic programme. Only beyond both limits below is it up to 0.5 % under the best.
    """

    name: str = "ffdl"
    exact_gpus: int = 2000
    """Up to this capacity the result is exact for all curves."""
    exact_cells: int = 20_000_000
    """Above it, it is still exact when the dynamic programme has at most this many cells."""

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
            return choose_even(options, slope, int(width[0]), free)
        extra, best = choose_by_price(options, free)
        if best or (capacity > self.exact_gpus and len(width) * (free + 1) > self.exact_cells):
            return extra
        return choose_exactly(options, free)
