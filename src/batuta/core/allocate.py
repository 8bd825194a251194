"""Step 2 of a cycle: how many GPUs, of which type, each admitted job should have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.arrays import BoolArray, IntArray, frozen
from batuta.core.bundles import bundle_shares
from batuta.core.job import NO_RESTART_S, JobId
from batuta.core.job_table import Phase
from batuta.core.policy import Policy
from batuta.core.pools import assign_types
from batuta.core.reach import Reach, within_reach
from batuta.core.view import PoolView
from batuta.core.withhold import left_alone, withheld
from batuta.core.world import World
from batuta.core.world_view import pool_view


@dataclass(frozen=True, slots=True)
class Allocation:
    """What each row should have."""

    gpus: IntArray
    gpu_type: IntArray | None
    """The type that a row competes for, -1 where it accepts none; None when there is only one."""
    capacity: list[int]
    """GPUs by type."""
    retiered: tuple[tuple[JobId, int], ...]
    reach: Reach | None
    """The most GPUs that their wishes leave to jobs, where that is less than they want; None for none."""
    all_at_max: bool = False
    """It is known without looking that every job gets its `max`."""


def allocate(world: World, now_s: float, admitted: Admitted, policy: Policy, freeze: bool) -> Allocation:
    """Asks the policy, once for every GPU type.

    Jobs in transition are left out when `freeze` is set: they keep what they have, the others share the rest.
    """
    jobs = world.jobs
    capacity = world.capacity()
    gpu_type: IntArray | None = None
    if len(capacity) != 1 or jobs.picky:
        gpu_type = assign_types(world, capacity) if admitted.gpu_type is None else admitted.gpu_type
    cap, reach = within_reach(world, admitted.cap, gpu_type, admitted.wishes)
    fixed, eligible = _who_may_change(world, now_s, cap, freeze)
    retiered: list[tuple[JobId, int]] = []
    if gpu_type is None:
        if eligible is None:
            if jobs.total_max <= capacity[0] and _is_generous(policy):
                return Allocation(jobs.i("max"), None, capacity, (), reach, all_at_max=True)
            gpus = _ask(policy, pool_view(world, now_s, None, capacity[0], cap), retiered)
        else:
            gpus, rows = _kept(world, fixed), np.flatnonzero(eligible)
            view = pool_view(world, now_s, rows, capacity[0] - int(gpus.sum()), cap)
            gpus[rows] = _ask(policy, view, retiered)
        return Allocation(gpus, None, capacity, tuple(retiered), reach)

    gpus = _kept(world, fixed)
    if fixed is None:
        fixed = np.zeros(jobs.n, dtype=bool)
    if eligible is None:
        eligible = ~fixed
    bundles = bundle_shares(world, gpu_type, eligible, fixed)
    for kind, total in enumerate(capacity):
        room = total - bundles.cards_held(gpu_type, kind, fixed)
        here = (gpu_type == kind) & eligible
        rows = np.flatnonzero(here & ~bundles.hidden)
        if int(jobs.i("max")[rows].sum()) > room:
            # Not all can have all: now it matters who stands for a bundle, and only the policy can say that.
            bundles.put_best_first(here, partial(_fight_for_one, world, now_s, policy, cap, kind))
            rows = np.flatnonzero(here & ~bundles.hidden)
        gpus[rows] = _ask(policy, pool_view(world, now_s, rows, room, cap, kind), retiered)
    bundles.spread(gpus)
    return Allocation(gpus, gpu_type, capacity, tuple(retiered), reach)


def _who_may_change(
    world: World, now_s: float, cap: IntArray | None, freeze: bool
) -> tuple[BoolArray | None, BoolArray | None]:
    """Rows that keep what they have, and rows that the policy is asked about; None for none, and for all."""
    jobs = world.jobs
    fixed = jobs.in_motion() if freeze else None
    unmoved = _cannot_be_stopped(world, cap)
    if unmoved is not None:
        fixed = unmoved if fixed is None else fixed | unmoved
    if jobs.held_back:
        alone = left_alone(jobs, now_s)
        # Whoever is cancelled does not have to finish its start first.
        fixed = alone if fixed is None else fixed & ~withheld(jobs, now_s) | alone
    if cap is None:
        return fixed, None if fixed is None else ~fixed
    # Below its `min` a job has no legal size, and policies rely on `min`.
    admissible = cap >= jobs.i("min")
    return fixed, admissible if fixed is None else ~fixed & admissible


def _cannot_be_stopped(world: World, cap: IntArray | None) -> BoolArray | None:
    """Rows that run, may have what they have, and would not come back from a restart; None for none."""
    jobs = world.jobs
    lasting: BoolArray = jobs.f("restart_s") >= NO_RESTART_S
    if not lasting.any():
        return None
    gpus = jobs.i("gpus")
    lasting &= (gpus > 0) & (jobs.i("phase") == Phase.RUNNING)
    if cap is not None:
        lasting &= cap >= gpus
    return lasting if lasting.any() else None


def _kept(world: World, fixed: BoolArray | None) -> IntArray:
    """What the rows have that keep it; nothing for the others."""
    jobs = world.jobs
    return np.zeros(jobs.n, dtype=np.int64) if fixed is None else np.where(fixed, jobs.i("gpus"), 0)


def _is_generous(policy: Policy) -> bool:
    """Whether the policy need not be asked when there is enough for all; levels always have to be."""
    return getattr(policy, "generous", False) and not hasattr(policy, "tiers")


def _fight_for_one(
    world: World, now_s: float, policy: Policy, cap: IntArray | None, kind: int, rows: IntArray
) -> int:
    """The row to which the policy would give a GPU if there were only one; the first if to none."""
    gpus = _ask(policy, pool_view(world, now_s, rows, 1, cap, kind), [])
    return int(rows[gpus.argmax()])


def _ask(policy: Policy, view: PoolView, retiered: list[tuple[JobId, int]]) -> IntArray:
    tiers: Any = getattr(policy, "tiers", None)
    if tiers is not None and len(view):
        tier: IntArray = tiers(view)
        moved = np.flatnonzero(tier != view.tier)
        if moved.size:
            since_s = view.tier_since_s.copy()
            since_s[moved] = view.now_s
            view = replace(view, tier=frozen(tier), tier_since_s=frozen(since_s))
            retiered.extend((view.ids[row], int(tier[row])) for row in moved.tolist())
    return policy.allocate(view)
