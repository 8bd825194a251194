"""Step 2 of a cycle: how many GPUs, of which type, each admitted job should have.

First the GPU type that each job competes for, then the jobs that may change at all, then the policy's
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.arrays import BoolArray, FloatArray, IntArray, frozen
from batuta.core.eligibility import left_alone, room_for_starts, rows_to_shrink, unsaved_rows, withheld
from batuta.core.job import NO_RESTART_S, Job, JobId
from batuta.core.job_table import Phase
from batuta.core.node_table import Reach, within_reach
from batuta.core.policy import Policy, TypedPolicy, as_tiered, as_typed
from batuta.core.shared_gpus import bundle_shares
from batuta.core.view import PoolView, TypedView
from batuta.core.world import World
from batuta.core.world_view import pool_view


def who_may_change(
    world: World, now_s: float, cap: IntArray | None, freeze: bool, resizable: IntArray
) -> tuple[BoolArray | None, BoolArray | None]:
    """Rows that keep what they have, and rows that the policy is asked about; None for none, and for all.

    `resizable` are rows that it is asked about though no checkpoint of them was seen. CPU-only jobs are
    neither: a policy divides GPUs, and they hold none.
    """
    jobs = world.jobs
    fixed = jobs.in_motion() if freeze else None
    unmoved = _cannot_be_stopped(world, cap, resizable)
    if unmoved is not None:
        fixed = unmoved if fixed is None else fixed | unmoved
    if jobs.held_back:
        alone = left_alone(jobs, now_s)
        # A cancelled job does not have to finish its start first.
        fixed = alone if fixed is None else fixed & ~withheld(jobs, now_s) | alone
    eligible = None if fixed is None else ~fixed
    if cap is not None:
        # Below its `min` a job has no legal size, and policies rely on `min`.
        eligible = cap >= jobs.min if eligible is None else eligible & (cap >= jobs.min)
    if (cpu_only := jobs.without_gpus()) is not None:
        fixed = None if fixed is None else fixed & ~cpu_only
        eligible = ~cpu_only if eligible is None else eligible & ~cpu_only
    return fixed, eligible


def _cannot_be_stopped(world: World, cap: IntArray | None, resizable: IntArray) -> BoolArray | None:
    """Rows that run, may have what they have, and would lose all they have done by a stop; None for none."""
    jobs = world.jobs
    lasting: BoolArray = jobs.restart_s >= NO_RESTART_S
    gpus = jobs.held
    runs: BoolArray = (gpus > 0) & (jobs.phase == Phase.RUNNING)
    lasting &= runs
    if cap is not None:
        lasting &= cap >= gpus
    if jobs.unsaved:
        lasting[unsaved_rows(jobs, cap)] = True
        lasting[resizable] = False
    return lasting if lasting.any() else None


def kept(world: World, fixed: BoolArray | None) -> IntArray:
    """What the rows have that keep it; nothing for the others."""
    jobs = world.jobs
    return np.zeros(jobs.n, dtype=np.int64) if fixed is None else np.where(fixed, jobs.held, 0)


def assign_types(
    world: World, capacity: list[int], possible: Mapping[int, Set[int]] | None = None, idle: Set[int] = frozenset()
) -> IntArray:
    """One GPU type per row: what a job has, else the fastest accepted one with room for its `min`.

    Policies that see one type at a time need this. Room is counted in row order: an early job has its choice.
    `possible` has the types of rows that cannot have all; `idle` are rows that do not start whatever is free,
    so they take no room. If they did, others would be sent to other types whenever it comes and goes.
    """
    jobs, types = world.jobs, world.nodes.types
    if len(types) == 1 and all(_accepts(named, types[0]) for named in jobs.type_lists):
        # Nothing to choose: thousands of jobs need not be asked one by one.
        return np.where(jobs.is_cpu_only, jobs.gpu_type, 0)
    # A list while it is filled: to write to an array one by one takes several times as long.
    chosen: list[int] = jobs.gpu_type.tolist()
    low: list[int] = jobs.min.tolist()
    skipped = set(np.flatnonzero(jobs.is_cpu_only).tolist()) if jobs.cpu_only else ()
    room = list(capacity)
    for kind, need in zip(chosen, low, strict=True):
        if kind >= 0:
            room[kind] -= need
    # What those before have or wait for. It does not change when a later job is started or stopped for a
    # job that waits: if it did, the job would be sent to another type, and all would go round in circles.
    ahead = [0] * len(types)
    order = sorted(range(len(types)), key=lambda kind: (-capacity[kind], kind))
    # By what jobs accept: thousands of them name the same types.
    known: dict[tuple[tuple[str, float], ...], list[int]] = {}
    for row, need in enumerate(low):
        kind = chosen[row]
        if row in skipped:
            continue
        if kind < 0:
            named = jobs.jobs[row].gpu_types
            accepted = known.get(named)
            if accepted is None:
                accepted = known[named] = _accepted(jobs.jobs[row], types, order)
            if not accepted:
                continue
            if jobs.narrow or possible:
                most = world.most_for(row)
                allowed = possible.get(row) if possible else None
                within = (
                    [k for k in accepted if most[k] >= need]
                    if allowed is None
                    else [k for k in accepted if k in allowed]
                )
                if not within:
                    # It cannot run, so it takes no room from others.
                    chosen[row] = accepted[0]
                    continue
                accepted = within
            # With no room anywhere the job queues where the queue is shortest for the size of the pool.
            kind = (
                accepted[0]
                if len(accepted) == 1
                else next(
                    (k for k in accepted if room[k] >= need),
                    next(
                        (k for k in accepted if capacity[k] - ahead[k] >= need),
                        min(accepted, key=lambda k: (ahead[k] / max(capacity[k], 1), k)),
                    ),
                )
            )
            chosen[row] = kind
            if row in idle:
                continue
            room[kind] -= need
        ahead[kind] += need
    return np.array(chosen, dtype=np.int64)


def _accepts(named: tuple[tuple[str, float], ...], gpu_type: str) -> bool:
    return not named or any(name == gpu_type for name, _ in named)


def _accepted(job: Job, types: list[str], order: list[int]) -> list[int]:
    if not job.gpu_types:
        return order
    speeds = dict(job.gpu_types)
    known = [kind for kind in order if types[kind] in speeds]
    return sorted(known, key=lambda kind: -speeds[types[kind]])


class OpenTypes(NamedTuple):
    """What each row could have, by GPU type."""

    speed: FloatArray  # speed of one GPU relative to the reference type; 0 where the row may have none of the type
    most: IntArray  # the largest legal size; 0 where the row may have none of the type
    preferred: IntArray  # the type that it has, else the one that it would like best; -1 where it accepts none


def open_types(world: World, admitted: Admitted, capacity: list[int]) -> OpenTypes:
    """What each row could have of every type: by its own list, by quota, and by what nodes could give.

    A part of a GPU is not worth a choice: its type is that of `assign_types`, so that parts which lie
    together are known before any policy runs.
    """
    speed = _relative_speeds(world)
    if admitted.gpu_type is not None:
        _keep_one(speed, np.arange(world.jobs.n), admitted.gpu_type)
    elif shares := _shares(world):
        rows = np.array(shares, dtype=np.int64)
        _keep_one(speed, rows, assign_types(world, capacity)[rows])
    # By speed, then by the size of the pool: what a job would compete for if it had to choose one.
    score = speed + 1e-9 * np.array(capacity) / max(sum(capacity), 1) * (speed > 0)
    low, most = world.jobs.min, _most(world, admitted)
    fits = (speed > 0) & (most >= low[:, None])
    reachable = np.where(fits, score, 0.0)
    preferred: IntArray = np.where(fits.any(axis=1), reachable.argmax(axis=1), score.argmax(axis=1))
    held = world.jobs.gpu_type
    preferred = np.where(held >= 0, held, np.where((speed > 0).any(axis=1), preferred, -1))
    return OpenTypes(np.where(fits, speed, 0.0), np.where(fits, most, 0), preferred)


def _relative_speeds(world: World) -> FloatArray:
    jobs, types = world.jobs, world.nodes.types
    table: FloatArray = np.ones((jobs.n, len(types)))
    if jobs.picky:
        known: dict[tuple[tuple[str, float], ...], list[float]] = {}
        for row, job in enumerate(jobs.jobs):
            if job.gpu_types:
                own = known.get(job.gpu_types)
                if own is None:
                    speeds = dict(job.gpu_types)
                    own = known[job.gpu_types] = [speeds.get(name, 0.0) for name in types]
                table[row] = own
    return table


def _keep_one(speed: FloatArray, rows: IntArray, kinds: IntArray) -> None:
    """Leaves one type to each of these rows, and none to those whose type is -1."""
    left = np.where(kinds >= 0, speed[rows, kinds], 0.0)
    speed[rows] = 0.0
    speed[rows, np.maximum(kinds, 0)] = left


def _shares(world: World) -> list[int]:
    """Rows that take a part of a GPU."""
    jobs = world.jobs
    return [row for row, job in enumerate(jobs.jobs) if job.share is not None] if jobs.sharing else []


def _most(world: World, admitted: Admitted) -> IntArray:
    """The largest legal size by row and type."""
    jobs, sizes = world.jobs, world.jobs.legal_sizes()
    columns: list[IntArray] = []
    for kind in range(len(world.nodes.types)):
        kinds = np.full(jobs.n, kind, dtype=np.int64)
        cap, reach = within_reach(world, admitted.cap, kinds, admitted.wishes)
        if cap is not None and reach is not None:
            # What a job has stays its own on the type that it has; of another it gets what nodes could give.
            away = jobs.gpu_type[reach.rows] != kind
            rows = reach.rows[away]
            cap[rows] = np.minimum(cap[rows], reach.most[away])
        columns.append(sizes.max if cap is None else sizes.floor(cap))
    return np.stack(columns, axis=1)


_NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What each row should have."""

    gpus: IntArray
    gpu_type: IntArray | None  # the type that a row competes for, -1 where it accepts none; None when there is only one
    capacity: list[int]  # GPUs by type
    retiered: tuple[tuple[JobId, int], ...]
    reach: Reach | None
    """The most GPUs that their wishes leave to jobs, where that is less than they want; None for none."""
    all_at_max: bool = False  # it is known without looking that every job gets its `max`
    exchanges: bool = False  # the policy chose the types too: who runs may be sent from one to another


def allocate(world: World, now_s: float, admitted: Admitted, policy: Policy, freeze: bool) -> Allocation:
    """What the policy gives; `freeze`: jobs in transition keep what they have, the others share the rest."""
    found = _allocate(world, now_s, admitted, policy, freeze, _NO_ROWS)
    jobs = world.jobs
    if not jobs.unsaved or not ((found.gpus == 0) & (jobs.held == 0)).any():
        return found
    rows = rows_to_shrink(jobs, admitted.cap)
    if not rows.size:
        return found
    # A job waits. Would the policy start it if those could be resized, too?
    cap = (jobs.max if admitted.cap is None else admitted.cap).copy()
    cap[rows] = jobs.held[rows]
    wanted = _allocate(world, now_s, replace(admitted, cap=cap), policy, freeze, rows)
    kinds = found.gpu_type
    if kinds is not None and wanted.gpu_type is not None:
        kinds = np.where(found.gpus > 0, kinds, wanted.gpu_type)
    gpus = room_for_starts(world, now_s, rows, found.gpus, wanted.gpus, kinds, found.capacity)
    return found if gpus is None else replace(found, gpus=gpus, gpu_type=kinds, all_at_max=False)


def _allocate(
    world: World, now_s: float, admitted: Admitted, policy: Policy, freeze: bool, resizable: IntArray
) -> Allocation:
    """Asks the policy: once for every GPU type, or once for all if it chooses types itself."""
    jobs = world.jobs
    capacity = world.capacity()
    if len(capacity) > 1 and (typed := as_typed(policy)) is not None:
        return _across_types(world, now_s, admitted, typed, freeze, capacity, resizable)
    gpu_type: IntArray | None = None
    if len(capacity) != 1 or jobs.picky:
        gpu_type = assign_types(world, capacity) if admitted.gpu_type is None else admitted.gpu_type
    cap, reach = within_reach(world, admitted.cap, gpu_type, admitted.wishes)
    fixed, eligible = who_may_change(world, now_s, cap, freeze, resizable)
    retiered: list[tuple[JobId, int]] = []
    if gpu_type is None:
        if eligible is None:
            # Levels of a tiered policy have to be asked for even when there is enough for all.
            if jobs.total_max <= capacity[0] and policy.traits.generous and not policy.traits.tiered:
                return Allocation(jobs.max, None, capacity, (), reach, all_at_max=True)
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
        if int(jobs.max[rows].sum()) > room:
            # Not all can have all: now it matters who stands for a bundle, and only the policy can say that.
            bundles.put_best_first(here, partial(_fight_for_one, world, now_s, policy, cap, kind))
            rows = np.flatnonzero(here & ~bundles.hidden)
        gpus[rows] = _ask(policy, pool_view(world, now_s, rows, room, cap, kind), retiered)
    bundles.spread(gpus)
    return Allocation(gpus, gpu_type, capacity, tuple(retiered), reach)


def _across_types(
    world: World,
    now_s: float,
    admitted: Admitted,
    policy: TypedPolicy,
    freeze: bool,
    capacity: list[int],
    resizable: IntArray,
) -> Allocation:
    """Asks a policy that chooses types itself, once."""
    jobs = world.jobs
    options = open_types(world, admitted, capacity)
    cap: IntArray = options.most.max(axis=1)
    fixed, eligible = who_may_change(world, now_s, cap, freeze, resizable)
    assert eligible is not None
    gpus, gpu_type = kept(world, fixed), options.preferred
    if fixed is None:
        fixed = np.zeros(jobs.n, dtype=bool)
    bundles = bundle_shares(world, gpu_type, eligible, fixed)
    room = [total - bundles.cards_held(gpu_type, kind, fixed) for kind, total in enumerate(capacity)]
    if bundles.hidden.any():
        # The type of a share is settled already; who stands for each bundle of them, only the policy can say.
        for kind in range(len(capacity)):
            here = (gpu_type == kind) & eligible
            bundles.put_best_first(here, partial(_fight_for_one, world, now_s, policy, cap, kind))
    rows = np.flatnonzero(eligible & ~bundles.hidden)
    retiered: list[tuple[JobId, int]] = []
    view = _in_tiers(policy, pool_view(world, now_s, rows, sum(room), cap), retiered)
    node_gpus = [pool_view(world, now_s, rows, 0, None, kind).node_gpus for kind in range(len(capacity))]
    typed = TypedView(
        jobs=view,
        types=tuple(world.nodes.types),
        capacity=frozen(np.maximum(np.array(room, dtype=np.int64), 0)),
        speed=frozen(options.speed[rows]),
        most=frozen(options.most[rows]),
        gpu_type=frozen(jobs.gpu_type[rows]),
        node_gpus=tuple(node_gpus),
    )
    choice = policy.allocate_types(typed)
    gpus[rows] = choice.gpus
    served = choice.gpus > 0
    gpu_type[rows[served]] = choice.gpu_type[served]
    bundles.spread(gpus)
    _, reach = within_reach(world, admitted.cap, gpu_type, admitted.wishes)
    return Allocation(gpus, gpu_type, capacity, tuple(retiered), reach, exchanges=True)


def _fight_for_one(world: World, now_s: float, policy: Policy, cap: IntArray | None, kind: int, rows: IntArray) -> int:
    """The row to which the policy would give a GPU if there were only one; the first if to none."""
    gpus = _ask(policy, pool_view(world, now_s, rows, 1, cap, kind), [])
    return int(rows[gpus.argmax()])


def _ask(policy: Policy, view: PoolView, retiered: list[tuple[JobId, int]]) -> IntArray:
    return policy.allocate(_in_tiers(policy, view, retiered))


def _in_tiers(policy: Policy, view: PoolView, retiered: list[tuple[JobId, int]]) -> PoolView:
    """The view after a policy with queue levels has moved jobs between them."""
    tiered = as_tiered(policy)
    if tiered is None or not len(view):
        return view
    tier = tiered.tiers(view)
    moved = np.flatnonzero(tier != view.tier)
    if not moved.size:
        return view
    since_s = view.tier_since_s.copy()
    since_s[moved] = view.now_s
    retiered.extend((view.ids[row], int(tier[row])) for row in moved.tolist())
    return view.in_tiers(frozen(tier), frozen(since_s))
