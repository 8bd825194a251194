"""Between quota and policy: who grows within a queue that cannot grow all of its jobs.

To the policy each such queue is a small cluster of its own. So a queue's quota is divided as the whole
cluster would be, and no policy has to know of quota.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

import numpy as np

from batuta.core.admission import Admitted, Budget
from batuta.core.arrays import BoolArray, IntArray, Partitions
from batuta.core.curve import LegalSizes
from batuta.core.eligibility import unsaved_rows
from batuta.core.policy import Policy, as_parted
from batuta.core.reason import Evidence, Reason
from batuta.core.view import PoolView
from batuta.core.world import World
from batuta.core.world_view import part_of, pool_view

_ANY_KIND = -2  # there is no choice of GPU types; -1 stands for none


def within_budgets(world: World, now_s: float, admitted: Admitted, policy: Policy) -> Admitted:
    """The same with lower caps: all rows together may have what their budgets allow.

    No row is in two budgets. There may be one for each of many hundred queues, so all rows are gone through
    at once, and one by one only those budgets whose rows want more.
    """
    assert admitted.cap is not None
    cap, refused, budgets = admitted.cap.copy(), dict(admitted.refused or {}), admitted.budgets
    low, sizes = world.jobs.min, world.jobs.legal_sizes()
    rows = np.concatenate([budget.rows for budget in budgets])
    number = np.repeat(np.arange(len(budgets)), [len(budget.rows) for budget in budgets])
    # A job that shall not run now, for another reason than quota, leaves its part to the others.
    starts = cap[rows] >= low[rows]
    rows, number = rows[starts], number[starts]
    limit = np.array([budget.gpus for budget in budgets])
    stays = _keep_sizes(world, rows, number, limit, cap)
    rows, number = rows[~stays], number[~stays]
    before = cap[rows]
    # As in a small cluster: who asks for more than there is asks for all of it.
    cap[rows] = sizes.subset(rows).floor(np.minimum(before, limit[number]))
    parts = Partitions(np.bincount(number, minlength=len(budgets)), np.maximum(limit, 0))
    cap[rows] = _divided(world, now_s, admitted, policy, rows, parts, cap)
    for at, budget in enumerate(budgets):
        if budget.beside:
            _heed_what_is_beside(world, budget, rows[parts.rows(at)], cap)
    left = limit - np.bincount(number, cap[rows], len(budgets)).astype(np.int64)
    short = cap[rows] < before
    _explain(world, budgets, rows[short], number[short], left, cap, refused)
    return replace(admitted, cap=cap, refused=refused, budgets=())


def _keep_sizes(world: World, rows: IntArray, number: IntArray, limit: IntArray, cap: IntArray) -> BoolArray:
    """Rows that keep their size for want of a checkpoint, where the budget leaves all others their `min`."""
    jobs, n = world.jobs, len(limit)
    stays = np.isin(rows, unsaved_rows(jobs, cap))
    if not stays.any():
        return stays
    held = np.bincount(number[stays], jobs.held[rows[stays]], n).astype(np.int64)
    others = np.bincount(number[~stays], jobs.min[rows[~stays]], n).astype(np.int64)
    stays &= (held + others <= limit)[number]
    cap[rows[stays]] = jobs.held[rows[stays]]
    limit -= np.bincount(number[stays], cap[rows[stays]], n).astype(np.int64)
    return stays


def _divided(
    world: World, now_s: float, admitted: Admitted, policy: Policy, rows: IntArray, parts: Partitions, cap: IntArray
) -> IntArray:
    """What each of these rows may have; each part of them is one budget's."""
    given = cap[rows]
    short = parts.sums(given) > parts.capacity
    kinds = np.full(len(parts), _ANY_KIND)
    if admitted.gpu_type is not None:
        own = admitted.gpu_type[rows]
        for at in np.flatnonzero(short).tolist():
            part = parts.rows(at)
            kinds[at] = own[part.start]
            if (own[part] != kinds[at]).any():
                sizes = world.jobs.legal_sizes().subset(rows[part])
                given[part] = _in_turns(sizes, given[part], int(parts.capacity[at]))
                short[at] = False
    for kind in dict.fromkeys(kinds[short].tolist()):
        here = short & (kinds == kind)
        chosen = here[parts.number]
        view = pool_view(world, now_s, rows[chosen], 0, cap, None if kind == _ANY_KIND else kind)
        given[chosen] = _asked_for(policy, view, parts.only(here))
    return given


def _asked_for(policy: Policy, view: PoolView, parts: Partitions) -> IntArray:
    """What a policy gives to these parts: one after the other, unless it can be asked for all at once."""
    if (parted := as_parted(policy)) is not None:
        return parted.allocate_parts(view, parts)
    slices = map(parts.rows, range(len(parts)))
    pools = map(part_of, repeat(view), slices, parts.capacity.tolist())
    return np.concatenate([policy.allocate(pool) for pool in pools])


def _heed_what_is_beside(world: World, budget: Budget, rows: IntArray, cap: IntArray) -> None:
    """Takes growth back, from the last row on, until other limits hold as well."""
    if not rows.size:
        return
    own = np.isin(budget.rows, rows)
    # Who keeps its size uses its part of them as well.
    kept = np.isin(budget.rows, unsaved_rows(world.jobs, cap)) & ~own
    sizes = world.jobs.legal_sizes().subset(rows)
    for per_gpu, most in budget.beside:
        over = int((per_gpu[own] * cap[rows]).sum()) - most
        over += int((per_gpu[kept] * cap[budget.rows[kept]]).sum())
        for at in range(len(rows) - 1, -1, -1):
            each, has = int(per_gpu[own][at]), int(cap[rows[at]])
            if over <= 0:
                break
            if not each or has <= sizes.min[at]:
                continue
            legal = sizes.of(at)
            wanted = max(has - -(-over // each), int(sizes.min[at]))
            lower = int(legal[legal <= wanted].max())
            over -= each * (has - lower)
            cap[rows[at]] = lower


def _in_turns(sizes: LegalSizes, wanted: IntArray, gpus: int) -> IntArray:
    """The `min` of every job, then one step after another as long as there are GPUs."""
    given = sizes.min.copy()
    left = gpus - int(given.sum())
    while True:
        step = sizes.next(given) - given
        step[(given + step > wanted) | (step > left)] = 0
        step[np.cumsum(step) > left] = 0
        if not step.any():
            return given
        given += step
        left -= int(step.sum())


def _explain(
    world: World,
    budgets: Sequence[Budget],
    rows: IntArray,
    number: IntArray,
    left: IntArray,
    cap: IntArray,
    refused: dict[int, tuple[Reason, Evidence]],
) -> None:
    """Quota is the reason for jobs that need more than what is left; the policy chose the size of the others."""
    has = cap[rows]
    steps = world.jobs.legal_sizes().subset(rows).next(has) - has
    beside = np.array([bool(budget.beside) for budget in budgets])
    reached = (has > 0) & ((steps > left[number]) | beside[number])
    refused.update(dict.fromkeys(rows[reached].tolist(), (Reason.QUOTA_REACHED, ())))
    for at in np.flatnonzero(has == 0).tolist():
        row, step, budget, rest = int(rows[at]), int(steps[at]), budgets[number[at]], int(left[number[at]])
        if step > rest:
            numbers = (("needs", step), ("quota_left", rest), ("quota", budget.gpus), ("lends", 0))
            refused[row] = (Reason.QUOTA_EXHAUSTED, numbers)
        else:
            # Whatever limited its size is not why it has nothing.
            refused.pop(row, None)
