"""The order in which a policy looks at jobs, and one pass over them: each that fits gets what it asks for.

A lease lets a job that has just got GPUs keep them for a while, so that dividing time costs few restarts.
"""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.view import PoolView


def shortest_first(view: PoolView) -> IntArray:
    """Rows by predicted remaining time, then by submission."""
    return _ascending(view.remaining_s)


def tier_order(view: PoolView) -> IntArray:
    """Rows by tier, then by first start (never started last), then by submission.

    First start, not submission, within a tier: it spares running jobs needless preemptions. NaN is never.
    """
    return np.lexsort((view.first_start_s, view.tier))


def _ascending(column: FloatArray) -> IntArray:
    """Rows by a column, ties in row order. Without ties there is one order, which a faster sort finds."""
    rows = column.argsort()
    ranked = column[rows]
    if (ranked[1:] == ranked[:-1]).any():
        return column.argsort(kind="stable")
    return rows


STRETCH = 64  # requests that are looked at together


def admit_in_order(asked: IntArray, capacity: int, order: IntArray | None = None) -> IntArray:
    """What each row gets: all that it asks for, or nothing. No order means row order.

    All that fit before the first failure come from one running sum. Behind it, only requests that are no
    larger than what is left can still fit; those are walked one by one, until nothing is left.
    """
    queue = asked if order is None else asked[order]
    reach = queue.cumsum()
    if not queue.size or reach[-1] <= capacity:
        return asked.copy()
    first_failure = int(reach.searchsorted(capacity, side="right"))
    free = capacity - int(reach[first_failure - 1]) if first_failure else capacity
    got = queue.copy()
    got[first_failure:] = 0
    if free > 0:
        _fill_up(queue, got, first_failure, free)
    if order is None:
        return got
    result = np.empty_like(got)
    result[order] = got
    return result


def _fill_up(queue: IntArray, got: IntArray, begin: int, free: int) -> None:
    """Gives what is left to the requests from `begin` on that fit, in their order."""
    behind = queue[begin:]
    small = (behind <= free).nonzero()[0]
    # Thousands may be small enough, and mostly the first few of them take all that is left.
    for k in range(0, len(small), STRETCH):
        stretch = small[k : k + STRETCH]
        for place, gpus in zip(stretch.tolist(), behind[stretch].tolist(), strict=True):
            if gpus <= free:
                got[begin + place] = gpus
                free -= gpus
                if not free:
                    return


def leased(view: PoolView, lease_s: float, restarts: float = 12.0) -> IntArray:
    """GPUs that each row keeps: all that it has, or nothing. Together they are within the capacity.

    A lease lasts `lease_s` seconds since the last start or resize, and at least so many restart times.
    """
    begun_s = np.fmax(view.last_start_s, view.last_resize_s)
    with np.errstate(invalid="ignore"):
        young = view.now_s - begun_s < np.maximum(lease_s, restarts * view.restart_s)
    legal = (view.gpus > 0) & (view.sizes.floor(np.maximum(view.gpus, view.min)) == view.gpus)
    return admit_in_order(np.where(young & legal, view.gpus, 0), view.capacity)
