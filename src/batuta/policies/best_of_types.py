"""Which options of which jobs to take when there are several GPU types: exactly, or at a price per type."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.type_options import TypeOptions

_NOISE = 1e-12
"""A total that is better by less is as good."""
_CUTS = 200
_GAP = 1e-6
"""Prices are right when the bound that they give can fall by no more than this part of it."""


def choose_exactly_of_types(options: TypeOptions, gain: FloatArray, capacity: IntArray) -> BoolArray:
    """The best set of options, at most one for each job.

    Dynamic programme over jobs: the table has the highest total for every number of GPUs of each type. What
    each job took for which numbers is kept, and followed back from the whole cluster.
    """
    starts = np.flatnonzero(np.diff(options.row, prepend=-1)).tolist()
    ends = [*starts[1:], len(options)]
    best: FloatArray = np.zeros(tuple((capacity + 1).tolist()))
    took: list[IntArray] = []
    for begin, end in zip(starts, ends, strict=True):
        before, picks = best.copy(), np.full(best.shape, -1, dtype=np.int64)
        for place in range(begin, end):
            kind, gpus = int(options.kind[place]), int(options.gpus[place])
            up = (*(slice(None),) * kind, slice(gpus, None))
            down = (*(slice(None),) * kind, slice(None, best.shape[kind] - gpus))
            total = before[down] + gain[place]
            better = total > best[up] + _NOISE
            best[up][better] = total[better]
            picks[up][better] = place
        took.append(picks)
    taken = np.zeros(len(options), dtype=bool)
    left = capacity.copy()
    for picks in reversed(took):
        place = int(picks[tuple(left.tolist())])
        if place >= 0:
            taken[place] = True
            left[options.kind[place]] -= options.gpus[place]
    return taken


def choose_at_prices(options: TypeOptions, gain: FloatArray, capacity: IntArray) -> BoolArray:
    """Near the best set: what jobs take when a GPU of each type has its price, cut to what is there, filled.

    At the right prices only a few jobs, about one for each type, are not sure what to take; for all others
    it is what they have in the best set, so little is lost.
    """
    starts = np.flatnonzero(np.diff(options.row, prepend=-1))
    price = _prices(options, gain, capacity, starts)
    wanted = np.flatnonzero(_best_at(options, gain, price, starts))
    taken = np.zeros(len(options), dtype=bool)
    order = wanted[np.argsort(-(gain / options.gpus)[wanted], kind="stable")]
    for kind, there in enumerate(capacity.tolist()):
        own = order[options.kind[order] == kind]
        taken[own] = admit_in_order(options.gpus[own], there) > 0
    return _fill(options, gain, capacity, taken)


def _prices(options: TypeOptions, gain: FloatArray, capacity: IntArray, starts: IntArray) -> FloatArray:
    """The prices at which the bound on the total (all net gains, and all GPUs at their price) is lowest.

    Kelley's cutting planes: the bound is convex in the prices, and every look at it gives a plane below it.
    """
    # 0.3 s of CPU time that clusters of one type never need.
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415

    types = len(capacity)
    highest = np.zeros(types)
    np.maximum.at(highest, options.kind, gain / options.gpus)
    price, best, lowest = highest / 2, highest, np.inf
    planes, limits = list[FloatArray](), list[float]()
    for _ in range(_CUTS):
        wanted = _best_at(options, gain, price, starts)
        used = np.bincount(options.kind[wanted], options.gpus[wanted], types)
        slope = capacity - used
        alone = float(gain[wanted].sum())
        bound = alone + float(slope @ price)
        if bound < lowest:
            lowest, best = bound, price
        # The plane through this point: what is gained by these options, whatever the prices.
        planes.append(np.append(slope, -1.0))
        limits.append(-alone)
        found = milp(
            np.append(np.zeros(types), 1.0),
            bounds=Bounds(0, np.append(highest, np.inf)),
            constraints=LinearConstraint(np.array(planes), -np.inf, np.array(limits)),
        )
        if found.x is None or lowest - found.x[-1] <= _GAP * lowest:
            break
        price = found.x[:-1]
    return best


def _best_at(options: TypeOptions, gain: FloatArray, price: FloatArray, starts: IntArray) -> BoolArray:
    """The option of each job with the highest net gain, the first of equal ones; none if all would lose."""
    net = gain - price[options.kind] * options.gpus
    best = np.maximum.reduceat(net, starts)
    counts = np.diff(starts, append=len(net))
    equal = np.flatnonzero((net == np.repeat(best, counts)) & (net > 0))
    first = np.flatnonzero(np.diff(options.row[equal], prepend=-1))
    found = np.zeros(len(net), dtype=bool)
    found[equal[first]] = True
    return found


def _fill(options: TypeOptions, gain: FloatArray, capacity: IntArray, taken: BoolArray) -> BoolArray:
    """Spends what is left: again and again the option of each job that gains most per GPU and still fits.

    Who has something may get more of the same type; who has nothing may get anything.
    """
    taken = taken.copy()
    rows = int(options.row[-1]) + 1
    while True:
        has, size, of = np.zeros(rows), np.zeros(rows, dtype=np.int64), np.full(rows, -1)
        who = options.row[taken]
        has[who], size[who], of[who] = gain[taken], options.gpus[taken], options.kind[taken]
        left = capacity - np.bincount(options.kind[taken], options.gpus[taken], len(capacity)).astype(
            np.int64
        )
        width, more = options.gpus - size[options.row], gain - has[options.row]
        can = (width > 0) & (width <= left[options.kind]) & (more > 0)
        can &= (size[options.row] == 0) | (options.kind == of[options.row])
        steps = np.flatnonzero(can)
        steps = steps[np.argsort(-more[steps] / width[steps], kind="stable")]
        _, first = np.unique(options.row[steps], return_index=True)
        steps = steps[np.sort(first)]
        given = [
            own[admit_in_order(width[own], there) > 0]
            for kind, there in enumerate(left.tolist())
            if (own := steps[options.kind[steps] == kind]).size
        ]
        chosen = np.concatenate([*given, np.zeros(0, dtype=np.int64)])
        if not chosen.size:
            return taken
        taken[np.isin(options.row, options.row[chosen])] = False
        taken[chosen] = True
