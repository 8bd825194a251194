"""Rent: each job pays for its GPUs by the time that it makes the longer ones wait. Batuta's own policy.

In the fluid model of jobs that share C GPUs, the sum of completion times is least when each job's remaining
work has a constant price, and the price of the k-th longest job is found from those before it (heSRPT for
arbitrary, unequal speed-ups). Linearised, one unit of a job's work takes 1/s(n) seconds with n GPUs; each
such second costs the job itself 1, and delays the r longer jobs and one more by n/C each. So its price is

    p = min over n of (1 + (r + 1)·n/C) / s(n)

Each cycle then chooses the sizes with the highest total value over the next while, in which a change has to
earn its restart, and the speed at each size is that of the phases which the job will be in. The choice is a
multiple-choice knapsack: a price per GPU solves it nearly, and the few jobs that the price leaves open are
decided exactly, as long as that does not take too long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.policy import PlacerKind, PolicyTraits, ReplayTraits
from batuta.core.view import Choice, PoolView, TypedView
from batuta.policies import rent_types
from batuta.policies.order import admit_in_order
from batuta.policies.rent_options import SizeOptions, count_longer, hold_still, is_tired, list_sizes, unrest, urgency

NEARLY = 1e-3  # how exactly the price is found: what it leaves open is found in another way
CELLS = 4_000_000  # jobs × options × GPUs up to which the choice is exact
NOISE, TINY = 1e-12, 1e-300
WORTH_LESS = 0.7  # part of the jobs below which it pays to go on with them alone


def choose_sizes(gpus: IntArray, values: FloatArray, capacity: int) -> IntArray:
    """The size of each job, 0 for none. A column for each job; a value that is not above 0 is no option."""
    jobs = np.arange(gpus.shape[1])
    if not jobs.size or capacity <= 0:
        return np.zeros(len(jobs), dtype=np.int64)
    open_ = (values > 0) & (gpus <= capacity)
    values = np.where(open_, values, -np.inf)
    best = values.argmax(axis=0)
    wanted = np.where(values[best, jobs] > 0, gpus[best, jobs], 0)
    if int(wanted.sum()) <= capacity:
        return wanted
    price = _price(gpus, values, capacity)
    chosen, worth = _at_price(gpus, values, price)
    chosen, worth = _fill(gpus, values, chosen, worth, capacity)
    return _improve(gpus, values, chosen, float(worth.sum()), price, capacity)


def choose_sizes_min_first(gpus: IntArray, values: FloatArray, capacity: int) -> IntArray:
    """The same, but no job has more than its first size while another that would fit at its own has none.

    First the jobs that have their first size: all, or those worth most at it where not all fit. Then what is
    left of the capacity goes into growth, where a larger size is worth what it adds to the first.
    """
    least, best = np.where(values[0] > 0, gpus[0], 0), values.max(axis=0)
    if int(least.sum()) > capacity:
        least = choose_sizes(gpus[:1], values[:1], capacity)
    left = capacity - int(least.sum())
    rows = np.flatnonzero((least > 0) & (best > values[0]))
    if left > 0 and rows.size:
        own = values[:, rows]
        more = np.where(own > 0, own - own[0], 0.0)
        least[rows] += choose_sizes(gpus[1:, rows] - gpus[0, rows], more[1:], left)
    return least


def _price(gpus: IntArray, values: FloatArray, capacity: int) -> float:
    """The lowest price at which no more is wanted than there is.

    What a job wants only falls with the price. So one that wants the same at both ends of the range
    wants that everywhere in it, and need not be asked again: after a few steps hardly any job is.
    """
    low, high = _price_range(gpus, values, capacity)
    cheap, dear = _at_price(gpus, values, low)[0], _at_price(gpus, values, high)[0]
    settled = 0
    while high - low > NEARLY * high:
        unsure = np.flatnonzero(cheap != dear)
        if len(unsure) < WORTH_LESS * len(cheap):
            settled += int(cheap.sum()) - int(cheap[unsure].sum())
            gpus, values, cheap, dear = gpus[:, unsure], values[:, unsure], cheap[unsure], dear[unsure]
        # Prices differ by orders of magnitude: close in on the order first.
        middle = math.sqrt(low * high) if low > 0 else high / 8
        taken = _at_price(gpus, values, middle)[0]
        wanted = settled + int(taken.sum())
        if wanted > capacity:
            low, cheap = middle, taken
        else:
            high, dear = middle, taken
        if wanted == capacity or high < TINY:
            break
    return high


def _price_range(gpus: IntArray, values: FloatArray, capacity: int) -> tuple[float, float]:
    """A price at which more is wanted than there is, or 0, and one at which no more is.

    A job wants something while a GPU is worth more to it than the price: between its least size and its largest.
    """
    open_ = values > 0
    worth = (values / gpus).max(axis=0)
    order = np.argsort(-worth, kind="stable")
    least = np.where(open_, gpus, capacity + 1).min(axis=0)[order].cumsum()
    most = np.where(open_, gpus, 0).max(axis=0)[order].cumsum()
    over, within = int(least.searchsorted(capacity, side="right")), int(most.searchsorted(capacity, "right"))
    low = float(worth[order[over]]) * (1 - 1e-9) if over < len(order) else 0.0
    high = float(worth[order[min(within, len(order) - 1)]]) * (1 + 1e-9)
    return max(low, 0.0), high


def _at_price(gpus: IntArray, values: FloatArray, price: float) -> tuple[IntArray, FloatArray]:
    """What each job takes at a price per GPU, and what that is worth without the price."""
    surplus = values - price * gpus
    best = surplus.argmax(axis=0)
    jobs = np.arange(gpus.shape[1])
    takes = surplus[best, jobs] > 0
    return np.where(takes, gpus[best, jobs], 0), np.where(takes, values[best, jobs], 0.0)


def _fill(
    gpus: IntArray, values: FloatArray, chosen: IntArray, worth: FloatArray, capacity: int
) -> tuple[IntArray, FloatArray]:
    """Spends what is left: again and again the step of each job that gains most per GPU and still fits."""
    jobs = np.arange(gpus.shape[1])
    left = capacity - int(chosen.sum())
    while left > 0:
        width = gpus - chosen
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = np.where((width > 0) & (width <= left), (values - worth) / width, 0.0)
        pick = gain.argmax(axis=0)
        best = gain[pick, jobs]
        order = np.argsort(-best, kind="stable")
        order = order[best[order] > 0]
        if not order.size:
            break
        given = admit_in_order(width[pick[order], order], left)
        taken = order[given > 0]
        chosen[taken] = gpus[pick[taken], taken]
        worth[taken] = values[pick[taken], taken]
        left -= int(given.sum())
        if not taken.size:
            break
    return chosen, worth


def _improve(
    gpus: IntArray, values: FloatArray, chosen: IntArray, total: float, price: float, capacity: int
) -> IntArray:
    """The best choice, where it is not too far to look for; else the one that was found."""
    surplus = values - price * gpus
    most = np.maximum(surplus.max(axis=0), 0.0)
    gap = float(most.sum()) + price * capacity - total
    slack = gap + NOISE * abs(total)
    if gap <= NOISE * abs(total):
        return chosen
    # A job that gives up more surplus than the whole gap cannot be part of a better choice.
    may_have = most - surplus <= slack
    may_wait = most <= slack
    choices = may_have.sum(axis=0) + may_wait
    fixed = choices == 1
    sure = np.where(may_have, gpus, 0).max(axis=0)
    left = capacity - int(sure[fixed].sum())
    unsure = np.flatnonzero(~fixed)
    if left < 0 or int(choices[unsure].sum()) * (left + 1) > CELLS:
        return chosen
    found = _exactly(gpus[:, unsure], values[:, unsure], may_have[:, unsure], may_wait[unsure], left)
    if found is None:
        return chosen
    result = np.where(fixed, sure, 0)
    result[unsure] = found
    return result


def _exactly(
    gpus: IntArray, values: FloatArray, may_have: BoolArray, may_wait: BoolArray, capacity: int
) -> IntArray | None:
    """Dynamic programme over jobs in their order; a later choice has to be better, not just as good."""
    best: FloatArray = np.zeros(capacity + 1)
    stages: list[IntArray] = []
    for j in range(gpus.shape[1]):
        after = best.copy() if may_wait[j] else np.full(capacity + 1, -np.inf)
        picks = np.zeros(capacity + 1, dtype=np.int64)
        for k in np.flatnonzero(may_have[:, j] & (gpus[:, j] <= capacity)).tolist():
            n = int(gpus[k, j])
            total = best[: capacity + 1 - n] + values[k, j]
            better = total > after[n:] + NOISE
            after[n:][better] = total[better]
            picks[n:][better] = n
        stages.append(picks)
        best = after
    if not best[capacity] > -np.inf:
        return None
    left, chosen = capacity, np.zeros(gpus.shape[1], dtype=np.int64)
    for j in reversed(range(len(stages))):
        chosen[j] = stages[j][left]
        left -= int(chosen[j])
    return chosen


_PURE = PolicyTraits(
    placer=PlacerKind.WHOLE_NODES,
    typed=True,
    weighs=True,
    steady=True,
    decide_every_s=300.0,  # a job becomes late by waiting alone
    replay=ReplayTraits(adapts_batch=True),
)
_MIN_FIRST = replace(_PURE, min_first=True)


@dataclass(frozen=True, slots=True)
class Rent:
    """The sizes whose work is worth most, where a job's work is dear if few are longer and it scales well."""

    name: str = "rent"
    charge: float = 2.0  # restarts charged per change: one to make it, one because it will be undone some day
    horizon_charges: float = 10.0  # a change has this many times its charge to pay for itself, …
    least_horizon_s: float = 600.0  # … but at least this long
    own_place: float = 1.0  # jobs as long as this one, counted beside the longer ones; more favours the makespan
    min_first: bool = True
    """No job grows while another waits that would fit at its `min`: prices decide about growth, and about who
    waits where the `min`s do not all fit. False lets prices decide about both at once."""
    by_rank: bool = True  # false makes the work of all jobs worth the same: to see what prices are good for

    @property
    def traits(self) -> PolicyTraits:
        return _MIN_FIRST if self.min_first else _PURE

    def allocate(self, view: PoolView) -> IntArray:
        if not len(view) or view.capacity <= 0:
            return np.zeros(len(view), dtype=np.int64)
        if not self.min_first:
            return self._choose(view, list_sizes(view))
        gpus = self._choose(view, list_sizes(view, view.gpus))
        left = view.capacity - int(gpus.sum())
        if left > 0 and ((gpus > 0) & (gpus < view.max)).any():
            # Sizes that do not fill nodes are better than GPUs that stand idle.
            gpus = self._choose(view, list_sizes(view, view.gpus, gpus + left))
        return gpus

    def _choose(self, view: PoolView, options: SizeOptions) -> IntArray:
        prices = self.prices(options, view.capacity) * urgency(view, options)
        choose = choose_sizes_min_first if self.min_first else choose_sizes
        if len(options.gpus) == 1:
            steady = options.gpus[0]  # each job has one size: there is nothing to compare it with
        else:
            steady = choose(options.gpus, prices * options.speed, view.capacity)
        return choose(options.gpus, self._values(view, options, prices, steady), view.capacity)

    def allocate_types(self, view: TypedView) -> Choice:
        return rent_types.allocate_types(view, self.own_place, self.min_first)

    def prices(self, options: SizeOptions, capacity: int) -> FloatArray:
        if not self.by_rank:
            return np.ones(len(options.alone_s))
        longer = count_longer(options.alone_s * options.left_s.min(axis=0))
        rent = (longer + self.own_place) / capacity
        with np.errstate(divide="ignore", invalid="ignore"):
            price = (1.0 + rent * options.gpus) / options.speed
        least: FloatArray = np.where(options.legal, price, np.inf).min(axis=0)
        return np.where(np.isfinite(least), least, 0.0)

    def _values(self, view: PoolView, options: SizeOptions, prices: FloatArray, steady: IntArray) -> FloatArray:
        """Value per second of each size, over the time that a change has to pay for itself."""
        gpus, jobs = options.gpus, np.arange(len(view))
        charge_s = self.charge * np.maximum(view.restart_s, 0.0)
        rest_s = np.zeros(len(view)) if view.restart_left_s is None else view.restart_left_s
        stays, often = gpus == view.gpus, unrest(view)
        reluctant_s = charge_s * often**2
        cost_s = np.where(stays, rest_s, np.where(view.gpus > 0, reluctant_s, charge_s))
        horizon_s = np.maximum(self.horizon_charges * charge_s, self.least_horizon_s)
        span_s = np.minimum(horizon_s, options.left_s + cost_s)
        # What is left is counted at the size that the job would have if changes were free.
        at = (gpus >= steady).argmax(axis=0)
        then_left_s, then_speed = options.left_s[at, jobs], options.speed[at, jobs]
        run_s = np.maximum(span_s - cost_s, 0.0)
        later_s = then_left_s * np.maximum(1.0 - run_s / options.left_s, 0.0)
        for shared in view.outlooks:
            rows = shared.rows
            later_s[:, rows] = shared.left_after_s(
                options.alone_s[rows], gpus[:, rows].T, run_s[:, rows].T, gpus[at[rows], rows]
            ).T
        # To lose its GPUs would cost a job its restart: without this, one near its end never gets them back.
        kept_s = np.where(stays, reluctant_s, charge_s)
        value = prices * then_speed * (then_left_s - later_s + kept_s) / span_s
        value = np.where(options.legal, np.maximum(value, 1e-9), 0.0)
        tired = is_tired(view, often)
        if view.held is not None:
            value = np.where(view.held & (gpus > view.gpus), 0.0, value)
            tired |= view.held
        return hold_still(value, stays, tired)
