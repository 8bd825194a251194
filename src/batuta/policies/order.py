"""The order in which jobs are looked at."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.view import PoolView


def shortest_first(view: PoolView) -> IntArray:
    """Rows by predicted remaining time, then by submission."""
    return _ascending(view.remaining_s)


def tier_order(view: PoolView) -> IntArray:
    """Rows by tier, then by first start (never started last), then by submission.

    First start, not submission, within a tier: it spares running jobs needless preemptions. NumPy sorts
    NaN, which stands for "never", to the end.
    """
    return np.lexsort((view.first_start_s, view.tier))


def _ascending(column: FloatArray) -> IntArray:
    """Rows by a column, ties in row order.

    Without ties there is only one order, and the sort that does not keep ties in order is four times as fast.
    """
    rows = column.argsort()
    ranked = column[rows]
    if (ranked[1:] == ranked[:-1]).any():
        return column.argsort(kind="stable")
    return rows
