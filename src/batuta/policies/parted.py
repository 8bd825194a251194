"""Many small pools at once: each part gets what it would get alone, in a few operations on whole columns.

Hundreds of queues divide their quota in one cycle. To ask for one after the other takes most of its time for
operations on arrays of a handful of rows.
"""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.parts import Parts
from batuta.core.sizes import NO_SET, LegalSizes
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.rounds import grow_in_rounds

_ENOUGH = np.int64(1 << 62)


def lowest_first(column: FloatArray, parts: Parts) -> IntArray:
    """The rows of each part by a column, ties in row order."""
    return np.lexsort((column, parts.number))


def admit_in_parts(asked: IntArray, parts: Parts, order: IntArray | None = None) -> IntArray:
    """As `admit_in_order` in each part; the order is one of all rows, part by part."""
    got = asked.copy()
    # Mostly there is enough for everybody's request, and a part where there is not is looked at by itself.
    for at in np.flatnonzero(parts.sums(asked) > parts.capacity).tolist():
        got[parts.rows(at)] = admit_in_order(
            asked[parts.rows(at)], int(parts.capacity[at]), _own(order, parts.rows(at))
        )
    return got


def grow_in_parts(gpus: IntArray, sizes: LegalSizes, parts: Parts, order: IntArray | None = None) -> IntArray:
    """As `grow_in_rounds` in each part."""
    if sizes.rigid or not len(gpus):
        return gpus
    grown = _by_level(gpus, sizes.max, parts, order)
    if not sizes.regular:
        uneven = (sizes.step != 1) | (sizes.set_of != NO_SET)
        for at in np.flatnonzero(parts.sums(uneven)).tolist():
            rows = parts.rows(at)
            own = sizes.subset(np.arange(rows.start, rows.stop))
            grown[rows] = grow_in_rounds(gpus[rows], own, int(parts.capacity[at]), _own(order, rows))
    return grown


def _by_level(gpus: IntArray, largest: IntArray, parts: Parts, order: IntArray | None) -> IntArray:
    """Steps of one GPU: after k rounds each job has grown by k or by all its room, so look for k.

    With the smallest room first, all whose room is the level at most are at the beginning of their part. So
    the number of those who have all their room, and what they take, says how far the others come.
    """
    number, lengths = parts.number, parts.lengths
    free = np.maximum(parts.capacity - parts.sums(gpus), 0)
    room = (largest - gpus) * (gpus > 0)
    width = int(room.max()) + 1
    ranked = np.sort(number * width + room) - number * width
    behind = (lengths + parts.starts)[number] - np.arange(len(room))
    cost = parts.running(ranked) + ranked * (behind - 1)
    full = cost <= free[number]
    left = free - parts.sums(ranked * full)
    growing = lengths - parts.sums(full)
    level = np.where(growing > 0, left // np.maximum(growing, 1), _ENOUGH)
    grown: IntArray = gpus + np.minimum(room, level[number])
    rest = np.where(growing > 0, left - level * growing, 0)
    more = room > level[number]
    if order is not None:
        more = more[order]
    more &= parts.running(more) <= rest[number]
    grown[np.flatnonzero(more) if order is None else order[more]] += 1
    return grown


def _own(order: IntArray | None, rows: slice) -> IntArray | None:
    """The part of an order that is one of these rows, counted from the first of them."""
    return None if order is None else order[rows] - rows.start
