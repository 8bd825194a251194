"""Free GPUs go where they bring most: one step at a time to the job with the highest gain per GPU."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView
from batuta.policies.ladder import Steps, step_gains


def grow_by_gain(
    view: PoolView, gpus: IntArray, free: int, rows: IntArray, tier: IntArray | None = None
) -> IntArray:
    """The sizes after giving each next step to the job of `rows` that gains most speed per GPU by it.

    Ties go to the lower tier, then to row order. A job whose next step no longer fits drops out; the end
    is when nothing is free or nobody gains. A job's gain changes only when it is served, so a heap holds
    the exact order of the step-by-step rule, whatever the shape of the curves.
    """
    rows = rows[gpus[rows] < view.max[rows]]
    if free <= 0 or not rows.size:
        return gpus
    gains, _ = step_gains(view, rows, gpus[rows])
    useful = gains > 0
    rows, gains = rows[useful], gains[useful]
    count = len(view)
    rank = rows if tier is None else tier[rows] * count + rows
    heap = list(zip((-gains).tolist(), rank.tolist(), strict=True))
    heapify(heap)
    have: list[int] = gpus.tolist()
    steps = Steps(view)
    speed, after = steps.speed, steps.after
    while heap:
        place = heap[0][1]
        row = place % count
        up = after(row, have[row])
        width = up - have[row]
        if width > free:
            heappop(heap)
            continue
        have[row] = up
        free -= width
        if not free:
            break
        above = after(row, up)
        gain = (speed(row, above) - speed(row, up)) / (above - up) if above else 0.0
        if gain > 0:
            heapreplace(heap, (-gain, place))
        else:
            heappop(heap)
    return np.array(have, dtype=np.int64)
