"""Between quota and policy: who grows within a queue that cannot grow all of its jobs.

To the policy each such queue is a small cluster of its own. So a queue's quota is divided as the whole
cluster would be, and no policy has to know of quota.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from batuta.core.admission import Admitted, Budget
from batuta.core.arrays import IntArray
from batuta.core.policy import Policy
from batuta.core.reason import Evidence, Reason
from batuta.core.sizes import LegalSizes
from batuta.core.world import World
from batuta.core.world_view import pool_view


def within_budgets(world: World, now_s: float, admitted: Admitted, policy: Policy) -> Admitted:
    """The same with lower caps: all rows together may have what their budgets allow."""
    assert admitted.cap is not None
    cap, refused = admitted.cap.copy(), dict(admitted.refused or {})
    low, gpu_type = world.jobs.i("min"), admitted.gpu_type
    for budget in admitted.budgets:
        # Whoever shall not run now, for another reason than quota, leaves its part to the others.
        rows = budget.rows[cap[budget.rows] >= low[budget.rows]]
        before = cap[rows]
        # As in a small cluster: who asks for more than there is asks for all of it.
        cap[rows] = world.jobs.legal_sizes().subset(rows).floor(np.minimum(before, budget.gpus))
        if int(cap[rows].sum()) > budget.gpus:
            kinds = {0} if gpu_type is None else set(gpu_type[rows].tolist())
            if len(kinds) == 1:
                kind = None if gpu_type is None else kinds.pop()
                given = policy.allocate(pool_view(world, now_s, rows, budget.gpus, cap, kind))
            else:
                given = _in_turns(world.jobs.legal_sizes().subset(rows), cap[rows], budget.gpus)
            cap[rows] = given
        _heed_what_is_beside(world, budget, rows, cap)
        _explain(world, budget, rows[cap[rows] < before], budget.gpus - int(cap[rows].sum()), cap, refused)
    return replace(admitted, cap=cap, refused=refused, budgets=())


def _heed_what_is_beside(world: World, budget: Budget, rows: IntArray, cap: IntArray) -> None:
    """Takes growth back, from the last row on, until other limits hold as well."""
    if not budget.beside or not rows.size:
        return
    own = np.isin(budget.rows, rows)
    sizes = world.jobs.legal_sizes().subset(rows)
    for per_gpu, most in budget.beside:
        over = int((per_gpu[own] * cap[rows]).sum()) - most
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
    """Everybody's `min`, then one step after another as long as there are GPUs."""
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
    budget: Budget,
    rows: IntArray,
    left: int,
    cap: IntArray,
    refused: dict[int, tuple[Reason, Evidence]],
) -> None:
    """Quota is the reason for those who would need more than what is left; others the policy wants so."""
    steps = world.jobs.legal_sizes().subset(rows).next(cap[rows]) - cap[rows]
    for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
        if cap[row] and (step > left or budget.beside):
            refused[row] = (Reason.QUOTA_REACHED, ())
        elif step > left:
            numbers = (("needs", step), ("quota_left", left), ("quota", budget.gpus), ("lends", 0))
            refused[row] = (Reason.QUOTA_EXHAUSTED, numbers)
        elif not cap[row]:
            # Whatever limited its size is not why it has nothing.
            refused.pop(row, None)
