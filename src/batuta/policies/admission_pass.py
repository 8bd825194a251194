"""One pass over the jobs in an order: each that still fits gets what it asks for, the others are skipped."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import IntArray

STRETCH = 64
"""Requests that are looked at together."""


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
