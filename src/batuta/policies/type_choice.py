"""At most one GPU type and size for each job, so that the total gain is highest: exactly, or by prices.

Options are flat arrays, one after the other. `restart_factor` is how Pollux and Sia discount an option that
needs a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray, frozen
from batuta.core.view import Choice, PoolView, TypedView
from batuta.policies.ffdl import choose_by_price, choose_exactly
from batuta.policies.growth import Options, list_steps
from batuta.policies.order import admit_in_order

_NOISE = 1e-12  # a total that is better by less is as good
_CUTS = 200
_GAP = 1e-6  # prices are right when the bound that they give can fall by no more than this part of it
_EXACT_CELLS = 20_000_000  # options × numbers of free GPUs up to which a dynamic programme is worth its time
_LEAST = 1e-3


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """Options by row, then by type, then by size."""

    row: IntArray
    kind: IntArray
    gpus: IntArray
    speed: FloatArray  # relative to one GPU of the reference type

    def __len__(self) -> int:
        return len(self.row)

    def keep(self, wanted: BoolArray) -> TypeOptions:
        return TypeOptions(self.row[wanted], self.kind[wanted], self.gpus[wanted], self.speed[wanted])

    def held(self, view: TypedView) -> BoolArray:
        """Which option of each job is what it has."""
        found: BoolArray = (self.gpus == view.jobs.gpus[self.row]) & (self.kind == view.gpu_type[self.row])
        return found


def one_type(view: PoolView) -> TypedView:
    """A pool of one GPU type, seen as several types would be."""
    rows = len(view)
    return TypedView(
        jobs=view,
        types=("",),
        capacity=frozen(np.array([view.capacity], dtype=np.int64)),
        speed=frozen(np.ones((rows, 1))),
        most=frozen(view.max.reshape(rows, 1)),
        gpu_type=frozen(np.where(view.gpus > 0, 0, -1)),
        node_gpus=(view.node_gpus,),
    )


def list_type_options(view: TypedView, rows: IntArray | None = None, least: float = 0.0) -> TypeOptions:
    """The legal sizes of every type that a job may have; `least` is its speed at any size, whatever its curve says."""
    jobs, parts = view.jobs, list[TypeOptions]()
    for kind, capacity in enumerate(view.capacity.tolist()):
        able = view.speed[:, kind] > 0
        own = np.flatnonzero(able) if rows is None else rows[able[rows]]
        steps = list_steps(jobs, own, np.zeros(len(own), dtype=np.int64), capacity)
        found = TypeOptions(
            steps.row,
            np.full(len(steps.row), kind, dtype=np.int64),
            steps.after,
            np.maximum(steps.fast, least) * view.speed[steps.row, kind],
        )
        parts.append(found.keep((found.speed > 0) & (found.gpus <= view.most[found.row, kind])))
    if len(parts) == 1:
        return parts[0]
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in TypeOptions.__slots__)
    row, kinds, gpus, speed = columns
    order = np.lexsort((gpus, kinds, row))
    return TypeOptions(row[order], kinds[order], gpus[order], speed[order])


def usual_sizes(view: TypedView, options: TypeOptions) -> TypeOptions:
    """Without odd sizes: powers of two within a node, whole nodes beyond; what a job has, and `min`, stay."""
    if not len(options):
        return options
    width = np.array(view.node_gpus, dtype=np.int64)[options.kind]
    size = options.gpus
    usual = ((size & (size - 1)) == 0) & (size <= width)
    usual |= (width > 0) & (size % np.maximum(width, 1) == 0)
    usual |= (width == 0) | (size == view.jobs.min[options.row]) | options.held(view)
    return options.keep(usual)


def choose_exactly_of_types(options: TypeOptions, gain: FloatArray, capacity: IntArray) -> BoolArray:
    """The best set of options, at most one for each job.

    Dynamic programme over jobs: the highest total for every number of GPUs of each type, and what each job took.
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

    At the right prices only about one job for each type is not sure what to take, so little is lost.
    """
    starts = np.flatnonzero(np.diff(options.row, prepend=-1))
    price = _prices(options, gain, capacity, starts)
    wanted = np.flatnonzero(_best_at(options, gain, price, starts))
    taken = np.zeros(len(options), dtype=bool)
    order = wanted[np.argsort(-(gain / options.gpus)[wanted], kind="stable")]
    for kind, there in enumerate(capacity.tolist()):
        own = order[options.kind[order] == kind]
        taken[own] = admit_in_order(options.gpus[own], there) > 0
    return fill(options, gain, capacity, taken)


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


def fill(options: TypeOptions, gain: FloatArray, capacity: IntArray, taken: BoolArray) -> BoolArray:
    """Spends what is left: again and again the option that gains most per GPU; a job keeps its type, if it has one."""
    taken = taken.copy()
    rows = int(options.row[-1]) + 1
    while True:
        has, size, of = np.zeros(rows), np.zeros(rows, dtype=np.int64), np.full(rows, -1)
        who = options.row[taken]
        has[who], size[who], of[who] = gain[taken], options.gpus[taken], options.kind[taken]
        left = capacity - np.bincount(options.kind[taken], options.gpus[taken], len(capacity)).astype(np.int64)
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


def best_choice(options: TypeOptions, gain: FloatArray, capacity: IntArray, rows: int) -> Choice:
    """The options to take; a job without one gets nothing.

    Exact by dynamic programmes for clusters of a few dozen GPUs of each type, or thousands of one; beyond
    that, a price per GPU and type comes within a few jobs' gain of the best total.
    """
    worth = (gain > 0) & (options.gpus <= capacity[options.kind])
    options, gain = options.keep(worth), gain[worth]
    gpus, kinds = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    if not len(options):
        return Choice(gpus, kinds)
    if len(capacity) == 1:
        named, chosen = _of_one_type(options, gain, int(capacity[0]))
        gpus[named] = chosen
        return Choice(gpus, kinds)
    if len(options) * int((capacity + 1).prod()) <= _EXACT_CELLS:
        taken = choose_exactly_of_types(options, gain, capacity)
    else:
        taken = choose_at_prices(options, gain, capacity)
    gpus[options.row[taken]], kinds[options.row[taken]] = options.gpus[taken], options.kind[taken]
    return Choice(gpus, kinds)


def _of_one_type(options: TypeOptions, gain: FloatArray, capacity: int) -> tuple[IntArray, IntArray]:
    """The rows that have options, and what each of them gets."""
    named, job = np.unique(options.row, return_inverse=True)
    nothing = np.arange(len(named))
    job = np.concatenate((nothing, job))
    extra = np.concatenate((np.zeros_like(nothing), options.gpus))
    order = np.lexsort((extra, job))
    worth = np.concatenate((np.zeros(len(named)), gain))
    listed = Options(job[order], extra[order], worth[order]).only_better()
    chosen, best = choose_by_price(listed, capacity)
    if not best and len(listed.extra) * (capacity + 1) <= _EXACT_CELLS:
        chosen = choose_exactly(listed, capacity)
    return named, chosen


def restart_factor(view: PoolView) -> FloatArray:
    """(T − R·S) / (T + S) with age T, restarts R and restart time S, from just above 0 to 1.

    A young job, or one that restarts often, has to gain much by a change. Never 0: so a new job starts at all.
    """
    age_s = np.maximum(view.now_s - view.submit_s, 0.0)
    restarts = np.zeros(len(view)) if view.restarts is None else view.restarts
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = (age_s - restarts * view.restart_s) / (age_s + view.restart_s)
    # No age and no restart time: nothing is known against it.
    return np.clip(np.where(np.isnan(factor), 1.0, factor), _LEAST, 1.0)
