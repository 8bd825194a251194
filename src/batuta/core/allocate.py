"""Step 2 of a cycle: how many GPUs, of which type, each admitted job should have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.arrays import BoolArray, FloatArray, IntArray, frozen
from batuta.core.job import JobId
from batuta.core.policy import Policy
from batuta.core.pools import assign_types, bundle_shares
from batuta.core.sizes import LegalSizes
from batuta.core.view import PoolView
from batuta.core.world import World


@dataclass(frozen=True, slots=True)
class Allocation:
    """What each row should have, and what is left."""

    gpus: IntArray
    gpu_type: IntArray
    """The type that a row competes for; -1 where it accepts none."""
    capacity: list[int]
    """GPUs by type."""
    spare: list[int]
    """GPUs by type that the policy gave to nobody."""
    retiered: tuple[tuple[JobId, int], ...]


def allocate(world: World, now_s: float, admitted: Admitted, policy: Policy, freeze: bool) -> Allocation:
    """Asks the policy, once for every GPU type.

    Jobs in transition are left out when `freeze` is set: they keep what they have, the others share the rest.
    """
    jobs = world.jobs
    capacity = world.capacity()
    fixed, eligible = _who_may_change(world, admitted, freeze)
    gpus = np.where(fixed, jobs.i("gpus"), 0) if fixed is not None else np.zeros(jobs.n, dtype=np.int64)
    retiered: list[tuple[JobId, int]] = []
    if len(capacity) == 1 and not jobs.picky:
        room = capacity[0] - int(gpus.sum())
        rows = None if eligible is None else np.flatnonzero(eligible)
        given = _ask(policy, pool_view(world, now_s, rows, room, admitted.cap), retiered)
        spare = [room - int(given.sum())]
        if rows is None:
            gpus = given
        else:
            gpus[rows] = given
        return Allocation(gpus, np.zeros(jobs.n, dtype=np.int64), capacity, spare, tuple(retiered))

    if fixed is None:
        fixed = np.zeros(jobs.n, dtype=bool)
    if eligible is None:
        eligible = ~fixed
    gpu_type = assign_types(world, capacity) if admitted.gpu_type is None else admitted.gpu_type
    bundles = bundle_shares(world, gpu_type, eligible, fixed)
    spare = []
    for kind, total in enumerate(capacity):
        room = total - bundles.cards_held(gpu_type, kind, fixed)
        rows = np.flatnonzero((gpu_type == kind) & eligible & ~bundles.hidden)
        view = pool_view(world, now_s, rows, room, admitted.cap, kind)
        given = _ask(policy, view, retiered)
        gpus[rows] = given
        spare.append(room - int(given.sum()))
    bundles.spread(gpus)
    return Allocation(gpus, gpu_type, capacity, spare, tuple(retiered))


def _who_may_change(
    world: World, admitted: Admitted, freeze: bool
) -> tuple[BoolArray | None, BoolArray | None]:
    """Rows that keep what they have, and rows that the policy is asked about; None for none, and for all."""
    jobs = world.jobs
    fixed = jobs.in_motion() if freeze else None
    if admitted.cap is None:
        return fixed, None if fixed is None else ~fixed
    return fixed, (admitted.cap > 0) if fixed is None else ~fixed & (admitted.cap > 0)


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


def pool_view(
    world: World,
    now_s: float,
    rows: IntArray | None,
    capacity: int,
    cap: IntArray | None,
    kind: int | None = None,
) -> PoolView:
    """The rows as a policy sees them; all of them, without copying, when `rows` is None."""
    jobs = world.jobs
    floats, ints = jobs.block()
    speed = jobs.speed()
    ids: Sequence[JobId] = jobs.ids
    if rows is not None:
        floats, ints = frozen(floats[:, rows]), frozen(ints[:, rows])
        speed = speed.subset(rows)
        ids = [ids[row] for row in rows.tolist()]
    submit_s, first_start_s, last_start_s, last_stop_s, last_resize_s, tier_since_s = floats[:6]
    remaining_s, rate, anchor_s, attained_gpu_s, service_gpu_s, restart_s = floats[6:]
    gpus, _, size, low, high, step, size_set, priority, _, _, _, tier, _, _, _ = ints
    elapsed_s = now_s - anchor_s
    remaining_s = np.maximum(remaining_s - rate * elapsed_s, 0.0)
    served = gpus * elapsed_s
    sizes = LegalSizes(low, high, step, size_set, jobs.size_sets.matrix, not jobs.irregular)
    if cap is not None:
        size, sizes = _capped(size, sizes, cap if rows is None else cap[rows])
    if kind is not None:
        remaining_s = remaining_s / _relative_speed(world, rows, kind)
    return PoolView(
        now_s=now_s,
        capacity=max(capacity, 0),
        ids=ids,
        submit_s=submit_s,
        first_start_s=first_start_s,
        tier=tier,
        tier_since_s=tier_since_s,
        size=size,
        min=sizes.min,
        max=sizes.max,
        sizes=sizes,
        remaining_s=remaining_s,
        speed=speed,
        gpus=gpus,
        attained_gpu_s=attained_gpu_s + served,
        service_gpu_s=service_gpu_s + served,
        last_start_s=last_start_s,
        last_stop_s=last_stop_s,
        last_resize_s=last_resize_s,
        restart_s=restart_s,
        priority=priority,
    )


def _capped(size: IntArray, sizes: LegalSizes, cap: IntArray) -> tuple[IntArray, LegalSizes]:
    """Lowers `max`, and `size` with it, to the largest legal size within the cap."""
    top = sizes.floor(np.minimum(cap, sizes.max))
    return np.minimum(size, top), replace(sizes, max=top)


def _relative_speed(world: World, rows: IntArray | None, kind: int) -> FloatArray:
    jobs, name = world.jobs.jobs, world.nodes.types[kind]
    chosen = jobs if rows is None else [jobs[row] for row in rows]
    return np.array([dict(job.gpu_types).get(name, 1.0) if job.gpu_types else 1.0 for job in chosen])
