"""One pass over the jobs in an order: each that still fits gets what it asks for, the others are skipped."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import IntArray


def admit_in_order(asked: IntArray, capacity: int, order: IntArray | None = None) -> IntArray:
    """What each row gets: all that it asks for, or nothing. No order means row order.

    All that fit before the first failure come from one running sum. Behind it, only requests that are no
    larger than what is left can still fit; those few are walked one by one, until nothing is left.
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
        later = np.flatnonzero(queue[first_failure:] <= free) + first_failure
        for place, gpus in zip(later.tolist(), queue[later].tolist(), strict=True):
            if gpus <= free:
                got[place] = gpus
                free -= gpus
                if not free:
                    break
    if order is None:
        return got
    result = np.empty_like(got)
    result[order] = got
    return result
