"""Free GPUs go round and round: in each round every job that can still grow gets its next legal size."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.sizes import LegalSizes
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.ladder import climb, most_steps


def grow_in_rounds(
    gpus: IntArray, sizes: LegalSizes, capacity: int, order: IntArray | None = None
) -> IntArray:
    """The sizes after the rounds, together at most the capacity. Jobs without GPUs take no part.

    No order means row order. A step that no longer fits is skipped, and later jobs in the round may pass it.
    """
    if sizes.rigid:
        return gpus
    free = capacity - int(gpus.sum())
    if free <= 0:
        return gpus
    if sizes.regular:
        return _grow_by_level(gpus, sizes.max, free, order)
    return _grow_by_steps(gpus, sizes, free, order)


def _grow_by_level(gpus: IntArray, largest: IntArray, free: int, order: IntArray | None) -> IntArray:
    """Steps of one GPU: after k rounds each job has grown by k or by all its room, so look for k.

    Between two neighbours among the rooms that occur the same number of jobs grows in every round.
    """
    room = (largest - gpus) * (gpus > 0)
    if int(room.sum()) <= free:
        return gpus + room
    # Nobody can grow by more than what is free, so there are few different rooms.
    counts = np.bincount(np.minimum(room, free + 1))
    levels = counts.nonzero()[0]
    level, growing = 0, len(room)
    for higher, jobs in zip(levels.tolist(), counts[levels].tolist(), strict=True):
        cost = (higher - level) * growing
        if cost > free:
            break
        free -= cost
        level, growing = higher, growing - jobs
    rounds, rest = divmod(free, growing)
    level += rounds
    grown: IntArray = gpus + np.minimum(room, level)
    if rest:
        if order is None:
            grown[(room > level).nonzero()[0][:rest]] += 1
        else:
            grown[order[room[order] > level][:rest]] += 1
    return grown


def _grow_by_steps(gpus: IntArray, sizes: LegalSizes, free: int, order: IntArray | None) -> IntArray:
    """Steps of any width: jump over all rounds that fit as a whole, then walk one round; repeat.

    Every walk skips at least one job, and what does not fit now never will: so there are few walks.
    """
    grown = gpus.copy()
    growing = np.flatnonzero(gpus > 0) if order is None else order[gpus[order] > 0]
    while free > 0 and growing.size:
        own = sizes.subset(growing)
        before = grown[growing]
        after = _whole_rounds(own, before, free)
        free -= int((after - before).sum())
        step = own.next(after) - after
        step[step > free] = 0
        given = admit_in_order(step, free)
        grown[growing] = after + given
        free -= int(given.sum())
        growing = growing[given > 0]
    return grown


def _whole_rounds(sizes: LegalSizes, gpus: IntArray, free: int) -> IntArray:
    """The sizes after as many rounds as fit without skipping anyone."""
    budget = int(gpus.sum()) + free
    fits, fails = 0, most_steps(sizes, gpus) + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if int(climb(sizes, gpus, middle).sum()) <= budget:
            fits = middle
        else:
            fails = middle
    return climb(sizes, gpus, fits)
