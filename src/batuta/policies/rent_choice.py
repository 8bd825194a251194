"""One size for each job so that the total value is as high as the GPUs allow: a multiple-choice knapsack.

A price per GPU solves it nearly. What the price leaves open are a few jobs, and for these the best choice is
found exactly, as long as that does not take too long.
"""

from __future__ import annotations

import math

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.policies.admission_pass import admit_in_order

NEARLY = 1e-3
"""How exactly the price is found: what it leaves open is found in another way."""
CELLS = 4_000_000
"""Jobs × options × GPUs up to which the choice is exact."""
NOISE, TINY = 1e-12, 1e-300
WORTH_LESS = 0.7
"""Part of the jobs below which it pays to go on with them alone."""


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


def _price(gpus: IntArray, values: FloatArray, capacity: int) -> float:
    """The lowest price at which no more is wanted than there is.

    What a job wants only falls with the price. So whoever wants the same at both ends of the range wants that
    everywhere in it, and need not be asked again: after a few steps hardly anybody is.
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

    A job wants something as long as a GPU is worth more to it than the price: then between its least size
    and its largest.
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
    # Whoever gives up more surplus than the whole gap cannot be part of a better choice.
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
        for k in np.flatnonzero(may_have[:, j]).tolist():
            n = int(gpus[k, j])
            if n > capacity:
                continue
            total = best[: capacity + 1 - n] + values[k, j]
            better = total > after[n:] + NOISE
            after[n:][better] = total[better]
            picks[n:][better] = n
        stages.append(picks)
        best = after
    if not best[capacity] > -np.inf:
        return None
    left, chosen = capacity, np.zeros(gpus.shape[1], dtype=np.int64)
    for j in range(len(stages) - 1, -1, -1):
        chosen[j] = stages[j][left]
        left -= int(chosen[j])
    return chosen
