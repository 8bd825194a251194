"""Room for a job that fits nowhere, or only far apart: others move away, if that pays for all together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from batuta.core.bitsets import bits
from batuta.core.cluster import Placement, Span
from batuta.core.job import Job, Spread
from batuta.core.placer import Move, Target
from batuta.core.reason import Reason
from batuta.placement.draft import Draft
from batuta.placement.packing import NOWHERE, fullest, legal_floor
from batuta.placement.repack import Item, repack
from batuta.placement.resizing import resettle
from batuta.placement.room import Room
from batuta.placement.shortage import ARRANGEMENT
from batuta.placement.tenants import Tenant, Tenants
from batuta.placement.workers import NO_GPUS, keep_order
from batuta.placement.worth import evidence_of, gain_of_place, worth_of_move

NODES_TRIED = 8
"""How many nodes, those with the most free GPUs, are considered for clearing."""


def make_room(draft: Draft, targets: Sequence[Target]) -> None:
    """Helps jobs that found no place, then those that start on more nodes than they need."""
    stuck = [target for target in targets if _is_stuck(draft, target)] if draft.failures else []
    spread = [target for target in targets if _is_spread(draft, target)]
    may_repack = draft.options.repack == "when-needed"
    tenants: Tenants | None = None
    for target in (stuck + spread)[: draft.options.rescues]:
        tenants = tenants or Tenants(draft)
        helped = _clear_nodes(draft, target, tenants)
        if not helped and may_repack and target.row in draft.failures:
            helped, may_repack = _repack_nodes(draft, target, tenants), False
        if helped:
            tenants = None


def _is_stuck(draft: Draft, target: Target) -> bool:
    failure = draft.failures.get(target.row)
    return failure is not None and failure.reason in ARRANGEMENT


def _is_spread(draft: Draft, target: Target) -> bool:
    placement = draft.placements.get(target.row)
    if placement is None or len(placement.spans) < 2:
        return False
    job = draft.world.jobs.jobs[target.row]
    if job.curve.across_nodes == 1.0 and draft.options.scattered == 1.0:
        return False
    return len(placement.nodes) > draft.fewest_nodes(job, placement.size, target.gpu_type)


def _clear_nodes(draft: Draft, target: Target, tenants: Tenants) -> bool:
    """Clears as few nodes as the job needs of as little as is in its way; what was there goes elsewhere."""
    row, job, trial = target.row, draft.world.jobs.jobs[target.row], draft.room.fork()
    if job.share is not None:
        return False
    now, nodes = draft.placements.get(row), _reach(trial, job, target)
    if now is not None:
        trial.vacate(now, job)
    gpus = _size_at_best(trial, job, target, nodes) if now is None else now.size
    if not gpus:
        return False
    spans: list[Span] = []
    moved: dict[int, Tenant] = {}
    for part in _wanted_parts(trial, job, gpus, nodes):
        i = fullest(trial, job, part, nodes)
        if i < 0:
            i, leaving = _cheapest_to_clear(trial, job, part, nodes, tenants, {row, *moved})
            moved.update((tenant.row, tenant) for tenant in leaving)
        if i < 0:
            return False
        spans.append(trial.take(i, part, job))
        nodes &= ~(1 << i)
    if not moved:
        return False
    after: dict[int, Placement] = {}
    for tenant in sorted(moved.values(), key=lambda tenant: (-tenant.placement.size, tenant.row)):
        suited = trial.suited(tenant.job, tenant.gpu_type)
        found = resettle(trial, tenant.job, tenant.held, tenant.placement.size, suited)
        if found is None:
            return False
        after[tenant.row] = found
    return _agree(draft, trial, row, Placement(tuple(spans)), after, tenants)


def _reach(room: Room, job: Job, target: Target) -> int:
    """The nodes to choose from: of a job that must stay within a rack, the rack with the most free GPUs."""
    nodes = room.suited(job, target.gpu_type)
    if job.topology.within is Spread.RACK and job.topology.required:
        racks = (nodes & rack for rack in room.table.by_rack.values())
        return max(racks, key=room.layout.free_gpus, default=0)
    return nodes


def _size_at_best(room: Room, job: Job, target: Target, nodes: int) -> int:
    """The size that a stuck job could have if all free GPUs lay in the right places; 0 if too few."""
    return legal_floor(job, min(target.gpus, room.layout.free_gpus(nodes)))


def _wanted_parts(room: Room, job: Job, gpus: int, nodes: int) -> list[int]:
    """Whole nodes and a rest: the fewest nodes on which the job could lie."""
    widest = room.widest(nodes)
    whole = widest - widest % job.gpus_per_replica
    if gpus <= whole or not whole or (job.topology.within is Spread.NODE and job.topology.required):
        return [gpus]
    return [whole] * (gpus // whole) + ([gpus % whole] if gpus % whole else [])


def _cheapest_to_clear(
    room: Room, job: Job, part: int, nodes: int, tenants: Tenants, but: set[int]
) -> tuple[int, list[Tenant]]:
    """The node where `part` GPUs cost least, and who leaves it: they have left `room` then. NOWHERE: none."""
    offers = []
    for i in islice(_emptiest(room, nodes, part), NODES_TRIED):
        leaving = _cheapest_set(room, i, tenants.on(i, but), part - room.capacity(i, job))
        if leaving:
            offers.append((sum(tenant.cost_s for tenant in leaving), i, leaving))
    for _, i, leaving in sorted(offers, key=lambda offer: offer[:2]):
        for tenant in leaving:
            room.vacate(tenant.placement, tenant.job)
        if room.capacity(i, job) >= part:
            return i, leaving
        for tenant in leaving:
            room.occupy(tenant.placement, tenant.job)
    return NOWHERE, []


def _emptiest(room: Room, nodes: int, part: int) -> Iterator[int]:
    for level in reversed(room.layout.buckets):
        for i in bits(level & nodes):
            if room.layout.healthy[i].bit_count() >= part:
                yield i


def _cheapest_set(room: Room, i: int, there: list[Tenant], missing: int) -> list[Tenant]:
    """The tenants of a node that free so many GPUs at least cost: one who suffices, or several cheap ones."""
    freed = {tenant.row: room.masks(tenant.placement)[i].bit_count() for tenant in there}
    if sum(freed.values()) < missing:
        return []
    single = min((t for t in there if freed[t.row] >= missing), key=lambda t: (t.cost_s, t.row), default=None)
    several: list[Tenant] = []
    for tenant in sorted(there, key=lambda t: (t.cost_s / freed[t.row], t.row)):
        if missing > 0:
            several.append(tenant)
            missing -= freed[tenant.row]
    for tenant in sorted(several, key=lambda t: (-t.cost_s, t.row)):
        if freed[tenant.row] <= -missing:
            several.remove(tenant)
            missing += freed[tenant.row]
    if single is not None and single.cost_s <= sum(tenant.cost_s for tenant in several):
        return [single]
    return several


def _repack_nodes(draft: Draft, target: Target, tenants: Tenants) -> bool:
    """Arranges all jobs anew on the nodes with the most free GPUs, the stuck one among them."""
    job, trial = draft.world.jobs.jobs[target.row], draft.room.fork()
    if job.share is not None:
        return False
    nodes, scope = _reach(trial, job, target), 0
    for i in islice(_emptiest(trial, nodes, 0), draft.options.repack_nodes):
        scope |= 1 << i
    gpus = _size_at_best(trial, job, target, scope)
    if not gpus:
        return False
    items = [Item(target.row, job, gpus, NO_GPUS, scope)]
    for tenant in tenants.inside(scope, {target.row}):
        suited = trial.suited(tenant.job, tenant.gpu_type) & scope
        items.append(Item(tenant.row, tenant.job, tenant.placement.size, tenant.held, suited))
        trial.vacate(tenant.placement, tenant.job)
    after = repack(trial, items, scope) if len(items) > 1 else None
    if after is None:
        return False
    for item in items:
        trial.occupy(after[item.row], item.job)
    return _agree(draft, trial, target.row, after.pop(target.row), after, tenants)


def _agree(
    draft: Draft, trial: Room, row: int, place: Placement, after: dict[int, Placement], tenants: Tenants
) -> bool:
    """Takes over the trial if what the job gains exceeds what the moves cost."""
    job, now = draft.world.jobs.jobs[row], draft.placements.get(row)
    gain_s = gain_of_place(draft, row, 0.0 if now is None else draft.speed(job, now), place)
    cost_s = 0.0
    moved = {other: new for other, new in after.items() if new != tenants.placements[other]}
    for other, new in moved.items():
        worth = worth_of_move(draft, other, tenants.placements[other], new)
        gain_s += worth.gain_s
        cost_s += worth.cost_s
    if gain_s <= cost_s:
        return False
    evidence = evidence_of(gain_s, cost_s)
    for other, new in moved.items():
        if other in draft.placements:
            draft.placements[other] = new
        else:
            draft.moves[other] = Move(new, Reason.MADE_ROOM, evidence)
    draft.room = trial
    held = draft.world.jobs.placements[row] or NO_GPUS
    draft.placements[row] = keep_order(trial.table, held, trial.masks(place), job.gpus_per_replica)
    draft.failures.pop(row, None)
    return True
