"""Step 2 of a cycle: how many GPUs, of which type, each admitted job should have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.arrays import BoolArray, IntArray, frozen
from batuta.core.bundles import Bundles, bundle_shares
from batuta.core.eligible import kept, who_may_change
from batuta.core.job import JobId
from batuta.core.policy import Policy
from batuta.core.pools import OpenTypes, assign_types, open_types
from batuta.core.reach import Reach, within_reach
from batuta.core.typed_view import Choice, TypedView
from batuta.core.view import PoolView
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
    exchanges: bool = False
    """The policy chose the types too: who runs may be sent from one to another."""


def allocate(world: World, now_s: float, admitted: Admitted, policy: Policy, freeze: bool) -> Allocation:
    """Asks the policy: once for every GPU type, or once for all if it chooses types itself.

    Jobs in transition are left out when `freeze` is set: they keep what they have, the others share the rest.
    """
    jobs = world.jobs
    capacity = world.capacity()
    if len(capacity) > 1 and hasattr(policy, "allocate_types"):
        return _across_types(world, now_s, admitted, policy, freeze, capacity)
    gpu_type: IntArray | None = None
    if len(capacity) != 1 or jobs.picky:
        gpu_type = assign_types(world, capacity) if admitted.gpu_type is None else admitted.gpu_type
    cap, reach = within_reach(world, admitted.cap, gpu_type, admitted.wishes)
    fixed, eligible = who_may_change(world, now_s, cap, freeze)
    retiered: list[tuple[JobId, int]] = []
    if gpu_type is None:
        if eligible is None:
            if jobs.total_max <= capacity[0] and _is_generous(policy):
                return Allocation(jobs.i("max"), None, capacity, (), reach, all_at_max=True)
            gpus = _ask(policy, pool_view(world, now_s, None, capacity[0], cap), retiered)
        else:
            gpus, rows = kept(world, fixed), np.flatnonzero(eligible)
            view = pool_view(world, now_s, rows, capacity[0] - int(gpus.sum()), cap)
            gpus[rows] = _ask(policy, view, retiered)
        return Allocation(gpus, None, capacity, tuple(retiered), reach)

    gpus = kept(world, fixed)
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


def _across_types(
    world: World, now_s: float, admitted: Admitted, policy: Any, freeze: bool, capacity: list[int]
) -> Allocation:
    """Asks a policy that chooses types itself, once."""
    jobs = world.jobs
    options = open_types(world, admitted, capacity)
    cap: IntArray = options.most.max(axis=1)
    fixed, eligible = who_may_change(world, now_s, cap, freeze)
    assert eligible is not None
    gpus, gpu_type = kept(world, fixed), options.preferred
    if fixed is None:
        fixed = np.zeros(jobs.n, dtype=bool)
    bundles = bundle_shares(world, gpu_type, eligible, fixed)
    room = [total - bundles.cards_held(gpu_type, kind, fixed) for kind, total in enumerate(capacity)]
    _let_the_best_stand(world, now_s, policy, cap, bundles, gpu_type, eligible)
    rows = np.flatnonzero(eligible & ~bundles.hidden)
    retiered: list[tuple[JobId, int]] = []
    view = _in_tiers(policy, pool_view(world, now_s, rows, sum(room), cap), retiered)
    node_gpus = [pool_view(world, now_s, rows, 0, None, kind).node_gpus for kind in range(len(capacity))]
    choice: Choice = policy.allocate_types(_typed(world, view, options, rows, room, node_gpus))
    gpus[rows] = choice.gpus
    served = choice.gpus > 0
    gpu_type[rows[served]] = choice.gpu_type[served]
    bundles.spread(gpus)
    _, reach = within_reach(world, admitted.cap, gpu_type, admitted.wishes)
    return Allocation(gpus, gpu_type, capacity, tuple(retiered), reach, exchanges=True)


def _typed(
    world: World,
    view: PoolView,
    options: OpenTypes,
    rows: IntArray,
    room: list[int],
    node_gpus: list[int],
) -> TypedView:
    return TypedView(
        jobs=view,
        types=tuple(world.nodes.types),
        capacity=frozen(np.maximum(np.array(room, dtype=np.int64), 0)),
        speed=frozen(options.speed[rows]),
        most=frozen(options.most[rows]),
        gpu_type=frozen(world.jobs.i("gpu_type")[rows]),
        node_gpus=tuple(node_gpus),
    )


def _let_the_best_stand(
    world: World,
    now_s: float,
    policy: Policy,
    cap: IntArray,
    bundles: Bundles,
    gpu_type: IntArray,
    eligible: BoolArray,
) -> None:
    """Lets the policy say who stands for each bundle of shares; the type of a share is settled already."""
    if not bundles.hidden.any():
        return
    for kind in range(len(world.nodes.types)):
        here = (gpu_type == kind) & eligible
        bundles.put_best_first(here, partial(_fight_for_one, world, now_s, policy, cap, kind))


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
    return policy.allocate(_in_tiers(policy, view, retiered))


def _in_tiers(policy: Policy, view: PoolView, retiered: list[tuple[JobId, int]]) -> PoolView:
    """The view after a policy with queue levels has moved jobs between them."""
    tiers: Any = getattr(policy, "tiers", None)
    if tiers is None or not len(view):
        return view
    tier: IntArray = tiers(view)
    moved = np.flatnonzero(tier != view.tier)
    if not moved.size:
        return view
    since_s = view.tier_since_s.copy()
    since_s[moved] = view.now_s
    retiered.extend((view.ids[row], int(tier[row])) for row in moved.tolist())
    return view.in_tiers(frozen(tier), frozen(since_s))
