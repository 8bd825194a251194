"""Ways to hand out free GPUs to jobs that can grow: in rounds, by gain, or for many small pools at once.

In rounds every job gets its next legal size in turn. By gain each step goes to the job that it speeds up
most. Hundreds of queues divide their quota in one cycle, so `grow_in_parts` works on whole columns instead
of asking for one pool after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray, Partitions
from batuta.core.curve import NO_SET, LegalSizes
from batuta.core.view import PoolView
from batuta.policies.order import admit_in_order

NOISE = 1e-12  # a bend of a curve by less than this, relative to its speed, is rounding and not shape
_MANY = 256  # so many jobs are worth a look at their first steps before all steps are listed
_ENOUGH = np.int64(1 << 62)


def climb(sizes: LegalSizes, gpus: IntArray, steps: int) -> IntArray:
    """Every job's size after so many steps up from the size that it has, or its largest."""
    up: IntArray = gpus + np.minimum((sizes.max - gpus) // sizes.step, steps) * sizes.step
    listed = np.flatnonzero(sizes.set_of != NO_SET)
    if listed.size:
        table = sizes.sets[sizes.set_of[listed]]
        now, last = _rungs(table, gpus[listed]), _rungs(table, sizes.max[listed])
        up[listed] = table[np.arange(len(listed)), np.minimum(now + steps, last)]
    return up


def most_steps(sizes: LegalSizes, gpus: IntArray) -> int:
    """Steps from the present sizes to the top, for the job that has most of them."""
    left = (sizes.max - gpus) // sizes.step
    listed = np.flatnonzero(sizes.set_of != NO_SET)
    if listed.size:
        table = sizes.sets[sizes.set_of[listed]]
        left[listed] = _rungs(table, sizes.max[listed]) - _rungs(table, gpus[listed])
    return int(left.max())


def _rungs(table: IntArray, gpus: IntArray) -> IntArray:
    found: IntArray = (table <= gpus[:, None]).sum(axis=1) - 1
    return found


class Steps:
    """Next sizes and speeds of one job at a time, as plain lists: a NumPy scalar would cost more than the step."""

    __slots__ = ("_flat", "_last", "_lists", "_lowest", "_max", "_sizes", "_start")

    def __init__(self, view: PoolView) -> None:
        self._flat = view.speed.flat.data
        self._start: list[int] = view.speed.start.tolist()
        self._last: list[int] = view.speed.last.tolist()
        self._max: list[int] = view.max.tolist()
        self._lowest: list[int] = view.min.tolist()
        self._sizes = view.sizes
        self._lists: dict[int, dict[int, int]] = {}

    def speed(self, row: int, gpus: int) -> float:
        return self._flat[self._start[row] + min(gpus, self._last[row])]

    def after(self, row: int, gpus: int) -> int:
        """The next legal size, or 0 at the top."""
        if self._sizes.regular:
            if not gpus:
                return self._lowest[row]
            return gpus + 1 if gpus < self._max[row] else 0
        follows = self._lists.get(row)
        if follows is None:
            legal = self._sizes.of(row).tolist()
            follows = self._lists[row] = dict(zip([0, *legal], [*legal, 0], strict=True))
        return follows[gpus]


def grow_in_rounds(gpus: IntArray, sizes: LegalSizes, capacity: int, order: IntArray | None = None) -> IntArray:
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
    # No job can grow by more than what is free, so there are few different rooms.
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


class Options(NamedTuple):
    """Choices of job 0, then of job 1, … each ascending in cost and in speed; the first costs nothing.

    Flat, because one job with a thousand sizes would make a table of ten thousand jobs a thousand wide.
    """

    job: IntArray
    extra: IntArray  # GPUs above the job's minimum
    speed: FloatArray

    def keep(self, wanted: BoolArray) -> Options:
        return Options._make(column[wanted] for column in self)

    def only_better(self) -> Options:
        """Without options that a smaller one of the same job equals or beats."""
        options = self
        while not (better := (np.diff(options.speed, prepend=-np.inf) > 0) | (options.extra == 0)).all():
            options = options.keep(better)
        return options

    def starts(self) -> IntArray:
        """Where each job's first option is: the one that costs nothing."""
        return np.flatnonzero(self.extra == 0)

    def slopes(self) -> FloatArray:
        """Speed gained per GPU from the option before to this one; +inf for the first of a job."""
        width = np.diff(self.extra, prepend=0)
        slope = np.full(len(width), np.inf)
        np.divide(np.diff(self.speed, prepend=0.0), width, out=slope, where=self.extra > 0)
        return slope


def list_options(view: PoolView, rows: IntArray, free: int) -> Options:
    """The legal sizes of the jobs in `rows` within `free` GPUs above `min` that beat all cheaper ones."""
    low = view.min[rows]
    reach = np.minimum(view.max[rows] - low, free)
    step = view.sizes.step[rows]
    # From the end of a curve on more GPUs bring nothing, so of the sizes beyond it only the first can matter.
    to_end = -(-np.maximum(view.speed.last[rows] - low, 0) // step)
    count = 1 + np.minimum(reach // step, to_end)
    if view.sizes.regular:
        job, extra = count_up(count)
    else:
        count[view.sizes.set_of[rows] != NO_SET] = 1
        job, extra = count_up(count)
        job, extra = add_listed(view, rows, reach, job, extra * step[job])
    curves = view.speed.subset(rows)
    # Adding per job first and looking up per option once is three times as fast as `curves.of`.
    place = np.minimum((curves.start + low)[job] + extra, (curves.start + curves.last)[job])
    return Options(job, extra, curves.flat[place]).only_better()


def keep_corners(options: Options) -> Options:
    """The options on the upper hull of each job's points, where gain per GPU only falls.

    A point on or below the line between its neighbours is no corner; a few passes take all such points away.
    """
    while True:
        slope = options.slopes()
        corner = np.append(slope[1:] < slope[:-1], True)
        corner |= np.append(options.extra[1:] == 0, True)
        corner |= options.extra == 0
        if corner.all():
            return options
        options = options.keep(corner)


def flatten_out(options: Options, slope: FloatArray) -> bool:
    """True when no job gains more per GPU by a later step than by an earlier one."""
    bend = slope[1:] > slope[:-1] + NOISE * (1 + options.speed[1:])
    return not (bend & (options.extra[1:] > 0)).any()


def curves_flatten_out(view: PoolView, rows: IntArray) -> bool:
    """The same for steps of one GPU between `min` and `max`, seen from the curves: many jobs share one."""
    flat, start = view.speed.flat, view.speed.start[rows]
    gain = np.diff(flat)
    bends = np.zeros(len(flat), dtype=np.int64)
    (gain[1:] > gain[:-1] + NOISE * (1 + flat[2:])).cumsum(out=bends[2:])
    end = start + np.minimum(view.max[rows], view.speed.last[rows])
    # A bend is booked where its second step ends, so the first of a job lies two places behind its `min`.
    begin = np.minimum(start + view.min[rows] + 1, end)
    return bool((bends[end] == bends[begin]).all())


def count_up(count: IntArray) -> tuple[IntArray, IntArray]:
    """0, 1, …, count[j] − 1 for every j, and the j that each belongs to."""
    job = np.repeat(np.arange(len(count)), count)
    return job, np.arange(len(job)) - np.repeat(count.cumsum() - count, count)


def add_listed(
    view: PoolView, rows: IntArray, reach: IntArray, job: IntArray, extra: IntArray
) -> tuple[IntArray, IntArray]:
    """Adds the sizes of jobs that have an explicit list."""
    listed = np.flatnonzero(view.sizes.set_of[rows] != NO_SET)
    above = view.sizes.sets[view.sizes.set_of[rows[listed]]] - view.min[rows[listed], None]
    which, column = np.nonzero((above > 0) & (above <= reach[listed, None]))
    job = np.concatenate((job, listed[which]))
    extra = np.concatenate((extra, above[which, column]))
    order = np.lexsort((extra, job))
    return job[order], extra[order]


class StepList(NamedTuple):
    """Steps of the first job in their order, then of the second, …: each from one legal size to the next.

    Of each: the row that takes it, sizes before and after, steps before this one, speed before and after.
    """

    row: IntArray
    before: IntArray
    after: IntArray
    number: IntArray
    slow: FloatArray
    fast: FloatArray

    @property
    def width(self) -> IntArray:
        return self.after - self.before

    def keep(self, wanted: BoolArray | IntArray) -> StepList:
        return StepList._make(column[wanted] for column in self)


def list_steps(view: PoolView, rows: IntArray, gpus: IntArray, free: int) -> StepList:
    """The steps of the jobs in `rows`, which have `gpus`, within so many free ones; jobs in the given order.

    A job without GPUs begins at its `min`. Past the end of a curve there is one step at most: more bring nothing.
    """
    low, high = view.min[rows], np.minimum(view.max[rows], gpus + free)
    end = np.maximum(view.speed.last[rows], low)
    if view.sizes.regular:
        base = np.where(gpus > 0, gpus, low - 1)
        job, number = count_up(np.maximum(np.minimum(high, np.maximum(end, base + 1)) - base, 0))
        after = (base + 1)[job] + number
    else:
        job, after = _legal_sizes(view, rows, high, end)
        above = after > gpus[job]
        job, after = job[above], after[above]
        starts = np.flatnonzero(np.diff(job, prepend=-1))
        number = np.arange(len(job)) - np.repeat(starts, np.diff(starts, append=len(job)))
    before = after - 1
    first = number == 0
    if not view.sizes.regular:
        before[1:] = after[:-1]
    before[first] = gpus[job[first]]
    start, flat = view.speed.start[rows], view.speed.flat
    base_of, end_of = start[job], (start + view.speed.last[rows])[job]
    slow, fast = (flat[np.minimum(base_of + size, end_of)] for size in (before, after))
    return StepList(rows[job], before, after, number, slow, fast)


def _legal_sizes(view: PoolView, rows: IntArray, high: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """All legal sizes from `min` to `high` of each job, and the job, as its place in `rows`."""
    low, step = view.min[rows], view.sizes.step[rows]
    reach = high - low
    count = np.where(reach < 0, 0, 1 + np.minimum(reach // step, -(-(end - low) // step) + 1))
    listed = view.sizes.set_of[rows] != NO_SET
    count[listed] = reach[listed] >= 0
    job, place = count_up(count)
    job, extra = add_listed(view, rows, reach, job, place * step[job])
    return job, low[job] + extra


Gain: TypeAlias = Callable[[StepList], FloatArray]  # what each step of a list is worth; taken if above zero


def speed_gain(steps: StepList) -> FloatArray:
    return (steps.fast - steps.slow) / steps.width


def grow_by_gain(
    view: PoolView, gpus: IntArray, free: int, rows: IntArray, gain: Gain, tier: IntArray | None = None
) -> IntArray:
    """The sizes after giving each next step to the job of `rows` that gains most by it.

    Ties go to the lower tier, then to row order. A job whose next step no longer fits drops out; the end
    is when nothing is free or no job gains.

    No step is given by itself. A step has its turn when all others that are ready gain less, which is when
    the worst step of its job up to this one would have it. So that lowest gain is the key by which all steps
    are taken in one go, whatever the shape of the curves.
    """
    rows = rows[gpus[rows] < view.max[rows]]
    if free <= 0 or not rows.size:
        return gpus
    if tier is not None:
        rows = rows[tier[rows].argsort(kind="stable")]
    if _MANY < len(rows) > free and view.sizes.regular and gpus[rows].all():
        # Only those may get something whose first step gains as much as the first steps of the best so many jobs.
        first = _numbers(gain(list_steps(view, rows, gpus[rows], 1)))
        rows = rows[first >= np.partition(first, len(first) - free)[len(first) - free]]
    steps = list_steps(view, rows, gpus[rows], free)
    key = _lowest_so_far(steps, _numbers(gain(steps)))
    useful = key > 0
    if not useful.all():
        steps, key = steps.keep(useful), key[useful]
    width = steps.width
    grown = gpus.copy()
    if (width == 1).all():
        taken = highest(key, free)
        grown += np.bincount(steps.row[taken], minlength=len(gpus))
        return grown
    taken = _fitting(steps, width, key, free)
    np.maximum.at(grown, steps.row[taken], steps.after[taken])
    return grown


def _numbers(gain: FloatArray) -> FloatArray:
    """A gain that is no number counts as less than any."""
    return np.where(np.isnan(gain), -np.inf, gain)


def _lowest_so_far(steps: StepList, gain: FloatArray) -> FloatArray:
    """The lowest gain among the steps of a job up to each one; overwrites the gains."""
    key = gain
    if not ((key[1:] > key[:-1]) & (steps.number[1:] > 0)).any():
        return key
    reach, longest = 1, int(steps.number.max(initial=0))
    while reach <= longest:
        inside = np.flatnonzero(steps.number >= reach)
        key[inside] = np.minimum(key[inside], key[inside - reach])
        reach *= 2
    return key


def highest(key: FloatArray, count: int) -> IntArray:
    """Where the highest keys are, so many at most; of equal ones the first."""
    if count >= len(key):
        return np.arange(len(key))
    least = np.partition(key, len(key) - count)[len(key) - count]
    chosen = key > least
    chosen[np.flatnonzero(key == least)[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def _fitting(steps: StepList, width: IntArray, key: FloatArray, free: int) -> IntArray:
    """Which steps are taken by falling key when some take more than one GPU.

    All that fit before the first that does not are taken together; jobs whose next step is too wide are out then.
    """
    order = np.argsort(-key, kind="stable")
    taken: list[IntArray] = []
    while order.size and free > 0:
        reach = width[order].cumsum()
        fitting = int(reach.searchsorted(free, side="right"))
        taken.append(order[:fitting])
        free -= int(reach[fitting - 1]) if fitting else 0
        order = order[fitting:]
        wide = order[width[order] > free]
        if not wide.size:
            break
        ends = np.full(int(steps.row.max()) + 1, len(key))
        np.minimum.at(ends, steps.row[wide], wide)
        order = order[order < ends[steps.row[order]]]
    return np.concatenate(taken) if taken else order[:0]


def lowest_first(column: FloatArray, parts: Partitions) -> IntArray:
    """The rows of each part by a column, ties in row order."""
    return np.lexsort((column, parts.number))


def admit_in_parts(asked: IntArray, parts: Partitions, order: IntArray | None = None) -> IntArray:
    """As `admit_in_order` in each part; the order is one of all rows, part by part."""
    got = asked.copy()
    # Mostly there is enough for the requests of all jobs, and a part where there is not is looked at by itself.
    for at in np.flatnonzero(parts.sums(asked) > parts.capacity).tolist():
        rows = parts.rows(at)
        got[rows] = admit_in_order(asked[rows], int(parts.capacity[at]), _own(order, rows))
    return got


def grow_in_parts(gpus: IntArray, sizes: LegalSizes, parts: Partitions, order: IntArray | None = None) -> IntArray:
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


def _by_level(gpus: IntArray, largest: IntArray, parts: Partitions, order: IntArray | None) -> IntArray:
    """Steps of one GPU: after k rounds each job has grown by k or by all its room, so look for k.

    With the smallest room first, all whose room is the level at most are at the beginning of their part. So
    the number of jobs that have all their room, and what they take, says how far the others come.
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
