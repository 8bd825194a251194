"""Room for a job that fits nowhere, or only far apart: other jobs move away, if that pays for all together.

A repack packs all jobs onto logical nodes and matches these to physical ones so that most jobs stay. Running
jobs that lie on more nodes or racks than they need move closer together, if that pays.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray, bits, mask_of
from batuta.core.cluster import Placement, Span
from batuta.core.job import Job, Spread
from batuta.core.job_table import Phase
from batuta.core.placer import Move, Target
from batuta.core.reason import Evidence, Reason
from batuta.core.weigh import Worth, lost_work_s, worth_of_change
from batuta.placement.attempt import (
    ARRANGEMENT,
    NO_GPUS,
    NOWHERE,
    PlacementAttempt,
    fullest,
    keep_order,
    legal_floor,
    pack,
    resettle,
)
from batuta.placement.cluster_state import ClusterState, choose_gpus

FORBIDDEN = -1e9
NODES_TRIED = 8  # how many nodes, those with the most free GPUs, are considered for clearing
# NumPy takes three times as long to compare with a member of an enumeration.
RUNNING = int(Phase.RUNNING)


@dataclass(frozen=True, slots=True)
class Item:
    """A job that takes part, with the GPUs that it holds and the nodes that suit it."""

    row: int
    job: Job
    gpus: int
    held: Placement
    suited: int

    @property
    def bound(self) -> int:
        """The GPUs that have to lie on one node."""
        if self.job.topology.required and self.job.topology.within is Spread.NODE:
            return self.gpus
        return self.job.gpus_per_replica


@dataclass(slots=True)
class LogicalNode:
    """What shall lie together on one node; `origin` is a physical node on which it would fit."""

    origin: int
    masks: dict[int, int]  # by item: its GPUs, as if this were `origin`

    def count(self, item: int) -> int:
        return self.masks[item].bit_count()


def repack(room: ClusterState, items: Sequence[Item], nodes: int) -> dict[int, Placement] | None:
    """By row a new place for every item, which has given back what it holds; None if they cannot be packed."""
    held = [room.masks(item.held) for item in items]
    logical = _pack_all(room.fork(), items)
    if logical is None:
        return None
    physical = match(room, items, held, logical, list(bits(nodes)))
    chosen: list[dict[int, int]] = [{} for _ in items]
    for node, i in zip(logical, physical, strict=True):
        for item, mask in _seat(room, items, held, node, i).items():
            chosen[item][i] = mask
    return {
        item.row: keep_order(room.table, item.held, chosen[k], item.job.gpus_per_replica)
        for k, item in enumerate(items)
    }


def _pack_all(room: ClusterState, items: Sequence[Item]) -> list[LogicalNode] | None:
    """First fit decreasing. What must not be split goes first; if that fails, simply the largest first."""
    rows = range(len(items))
    for order in (
        sorted(rows, key=lambda k: (-items[k].bound, -items[k].gpus, items[k].row)),
        sorted(rows, key=lambda k: (-items[k].gpus, items[k].row)),
    ):
        trial = room.fork()
        packed: dict[int, LogicalNode] = {}
        for k in order:
            item = items[k]
            parts = pack(trial, item.job, item.gpus, item.suited)
            if parts is None:
                break
            for i, count in parts:
                node = packed.setdefault(i, LogicalNode(i, {}))
                node.masks[k] = mask_of(trial.take(i, count, item.job).gpus)
        else:
            return [packed[i] for i in sorted(packed)]
    return None


def match(
    room: ClusterState,
    items: Sequence[Item],
    held: Sequence[dict[int, int]],
    logical: Sequence[LogicalNode],
    physical: Sequence[int],
) -> list[int]:
    """For every logical node a physical one, so that most GPUs stay with their job: the assignment problem."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (0.2 s that most runs never need)

    column = {i: c for c, i in enumerate(physical)}
    stay: FloatArray = np.zeros((len(logical), len(physical)))
    for r, node in enumerate(logical):
        for item in node.masks:
            for i, mask in held[item].items():
                if i in column:
                    stay[r, column[i]] += min(node.count(item), mask.bit_count())
        # Between equally good ones, staying where it was packed keeps the answer the same on every machine.
        stay[r, column[node.origin]] += 1e-3
    stay[~_allowed(room, items, logical, physical)] = FORBIDDEN
    _, columns = linear_sum_assignment(stay, maximize=True)
    return [physical[c] for c in columns.tolist()]


def _allowed(
    room: ClusterState, items: Sequence[Item], logical: Sequence[LogicalNode], physical: Sequence[int]
) -> BoolArray:
    """Which physical node could be which logical one: it has what the jobs want, and suits all of them."""
    layout, table = room.layout, room.table
    parts = [0] * len(items)
    for node in logical:
        for k in node.masks:
            parts[k] += 1
    free: IntArray = np.array([layout.free[i].bit_count() for i in physical])
    cpus: IntArray = np.array([layout.cpus_milli[i] for i in physical])
    memory: IntArray = np.array([layout.memory_mib[i] for i in physical])
    allowed: BoolArray = np.zeros((len(logical), len(physical)), dtype=bool)
    for r, node in enumerate(logical):
        on = [(items[k], node.count(k)) for k in node.masks]
        suited = -1
        for item, _ in on:
            suited &= item.suited
        if any(item.job.topology.single_numa for item, _ in on):
            suited &= 1 << node.origin
        elif any(parts[k] > 1 for k in node.masks):
            # The parts of one job were packed into a rack together; they stay together.
            suited &= table.by_rack[table.rack_of[node.origin]]
        allowed[r] = (
            (free >= sum(count for _, count in on))
            & (cpus >= sum(item.job.cpus_milli_per_gpu * count for item, count in on))
            & (memory >= sum(item.job.memory_mib_per_gpu * count for item, count in on))
            & np.array([bool(suited >> i & 1) for i in physical])
        )
    return allowed


def _seat(
    room: ClusterState, items: Sequence[Item], held: Sequence[dict[int, int]], node: LogicalNode, i: int
) -> dict[int, int]:
    """The GPUs of a physical node for every job on it: first each keeps what it has, then chooses more."""
    if any(items[item].job.topology.single_numa for item in node.masks):
        return dict(node.masks)
    groups = room.table.nodes[i]
    free, seats = room.layout.free[i], dict[int, int]()
    for item in node.masks:
        kept = held[item].get(i, 0) & room.layout.free[i]
        count = min(node.count(item), kept.bit_count())
        seats[item] = choose_gpus(groups.nvlink, groups.numa, kept, count).mask
        free &= ~seats[item]
    for item, kept in seats.items():
        count = node.count(item) - kept.bit_count()
        mask = choose_gpus(groups.nvlink, groups.numa, free, count, kept).mask
        seats[item] |= mask
        free &= ~mask
    return seats


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job that may be moved, and what that costs if it is as fast elsewhere."""

    row: int
    job: Job
    placement: Placement  # where it is, or where this cycle has put it
    held: Placement  # where its workers are now: nowhere if it has not started
    gpu_type: int
    cost_s: float


class Tenants:
    """Running jobs and those that this cycle places, but for shares: two moves of shares seldom free a card."""

    def __init__(self, draft: PlacementAttempt) -> None:
        jobs, index = draft.world.jobs, draft.room.table.index
        self._draft = draft
        self._kinds = {target.row: target.gpu_type for target in draft.targets}
        self.placements = {
            row: placement for row, placement in draft.placements.items() if jobs.jobs[row].share is None
        }
        # A placer that does not weigh moves no running job; the jobs of this cycle are not there yet.
        if draft.costs.enabled:
            for row in np.flatnonzero(jobs.phase == RUNNING).tolist():
                placement = jobs.placements[row]
                job = jobs.jobs[row]
                if placement is None or row in self._kinds or row in draft.moves or job.share or job.cpu_only:
                    continue
                if jobs.ids[row] in jobs.unsaved:
                    continue  # a move would cost it all that it has done
                self.placements[row] = placement
        self.by_node: dict[int, list[int]] = {}
        for row, placement in self.placements.items():
            for node in placement.nodes if len(placement.spans) > 1 else (placement.spans[0].node,):
                self.by_node.setdefault(index[node], []).append(row)

    def get(self, row: int) -> Tenant:
        jobs, placement = self._draft.world.jobs, self.placements[row]
        kind = self._kinds[row] if row in self._kinds else int(jobs.gpu_type[row])
        cost_s = worth_of_move(self._draft, row, placement, placement).cost_s
        return Tenant(row, jobs.jobs[row], placement, jobs.placements[row] or NO_GPUS, kind, cost_s)

    def on(self, i: int, but: Container[int]) -> list[Tenant]:
        return [self.get(row) for row in self.by_node.get(i, ()) if row not in but]

    def inside(self, nodes: int, but: Container[int]) -> list[Tenant]:
        """Those that lie on these nodes with all their workers."""
        inside = {row for i, rows in self.by_node.items() if nodes >> i & 1 for row in rows}
        outside = {row for i, rows in self.by_node.items() if not nodes >> i & 1 for row in rows}
        return [self.get(row) for row in sorted(inside - outside) if row not in but]


def make_room(draft: PlacementAttempt, targets: Sequence[Target]) -> None:
    """Helps jobs that found no place, then those that start on more nodes than they need."""
    failures = draft.failures
    stuck = [target for target in targets if target.row in failures and failures[target.row].reason in ARRANGEMENT]
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


def _is_spread(draft: PlacementAttempt, target: Target) -> bool:
    placement = draft.placements.get(target.row)
    if placement is None or len(placement.spans) < 2:
        return False
    job = draft.world.jobs.jobs[target.row]
    if job.curve.across_nodes == 1.0 and draft.options.scattered == 1.0:
        return False
    return len(placement.nodes) > draft.fewest_nodes(job, placement.size, target.gpu_type)


def _clear_nodes(draft: PlacementAttempt, target: Target, tenants: Tenants) -> bool:
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


def _reach(room: ClusterState, job: Job, target: Target) -> int:
    """The nodes to choose from: of a job that must stay within a rack, the rack with the most free GPUs."""
    nodes = room.suited(job, target.gpu_type)
    if job.topology.within is Spread.RACK and job.topology.required:
        racks = (nodes & rack for rack in room.table.by_rack.values())
        return max(racks, key=room.layout.free_gpus, default=0)
    return nodes


def _size_at_best(room: ClusterState, job: Job, target: Target, nodes: int) -> int:
    """The size that a stuck job could have if all free GPUs lay in the right places; 0 if too few."""
    return legal_floor(job, min(target.gpus, room.layout.free_gpus(nodes)))


def _wanted_parts(room: ClusterState, job: Job, gpus: int, nodes: int) -> list[int]:
    """Whole nodes and a rest: the fewest nodes on which the job could lie."""
    widest = room.widest(nodes)
    whole = widest - widest % job.gpus_per_replica
    if gpus <= whole or not whole or (job.topology.within is Spread.NODE and job.topology.required):
        return [gpus]
    return [whole] * (gpus // whole) + ([gpus % whole] if gpus % whole else [])


def _cheapest_to_clear(
    room: ClusterState, job: Job, part: int, nodes: int, tenants: Tenants, but: set[int]
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


def _emptiest(room: ClusterState, nodes: int, part: int) -> Iterator[int]:
    for level in reversed(room.layout.buckets):
        for i in bits(level & nodes):
            if room.layout.healthy[i].bit_count() >= part:
                yield i


def _cheapest_set(room: ClusterState, i: int, there: list[Tenant], missing: int) -> list[Tenant]:
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


def _repack_nodes(draft: PlacementAttempt, target: Target, tenants: Tenants) -> bool:
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
    draft: PlacementAttempt,
    trial: ClusterState,
    row: int,
    place: Placement,
    after: dict[int, Placement],
    tenants: Tenants,
) -> bool:
    """Takes over the trial if what the job gains exceeds what the moves cost."""
    job, now = draft.world.jobs.jobs[row], draft.placements.get(row)
    without = 0.0 if now is None else draft.speed(job, now)
    gain_s, cost_s = _worth(draft, row, without, draft.speed(job, place), 0.0).gain_s, 0.0
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


def worth_of_move(draft: PlacementAttempt, row: int, before: Placement, after: Placement) -> Worth:
    """Moving a job. One that starts or is resized in this cycle restarts anyway: only its speed counts."""
    job = draft.world.jobs.jobs[row]
    speeds = draft.speed(job, before), draft.speed(job, after)
    if row in draft.placements:
        return Worth(_worth(draft, row, *speeds, 0.0).gain_s, 0.0)
    return _worth(draft, row, *speeds, lost_work_s(draft.world, row, draft.now_s))


def evidence_of(gain_s: float, cost_s: float) -> Evidence:
    return (("gain_s", gain_s), ("cost_s", cost_s))


def _worth(draft: PlacementAttempt, row: int, before: float, after: float, lost_s: float) -> Worth:
    jobs = draft.world.jobs
    elapsed_s = draft.now_s - float(jobs.anchor_s[row])
    remaining_s = max(0.0, float(jobs.remaining_s[row]) - float(jobs.rate[row]) * elapsed_s)
    return worth_of_change(before, after, remaining_s, float(jobs.restart_s[row]), lost_s, draft.costs)


def consolidate(draft: PlacementAttempt) -> None:
    """Moves the jobs that lose most by being spread, a bounded number in each cycle."""
    layout, options = draft.room.layout, draft.options
    # Without free GPUs no job can move; on a busy cluster this ends here.
    if not draft.costs.enabled or not options.moves or not layout.usable & ~layout.buckets[0]:
        return
    found = sorted((-loss, row) for row, loss in _losses(draft))
    for _, row in found[: options.tries]:
        if _move_closer(draft, row) and len(draft.moves) >= options.moves:
            break


def _losses(draft: PlacementAttempt) -> Iterator[tuple[int, float]]:
    """Running jobs that could be faster elsewhere, with the part of their speed that they lose."""
    jobs, table, layout = draft.world.jobs, draft.room.table, draft.room.layout
    gpus, phase, placements = jobs.held, jobs.phase, jobs.placements
    # These lines see every job of several GPUs in every cycle; the others only the few that are spread.
    several = gpus > 1
    cpu_only = jobs.without_gpus()
    if cpu_only is not None:
        several &= ~cpu_only
    if len(table.by_rack) < 2 and draft.options.scattered == 1.0:
        # Within one rack, a job that is wider than a node loses nothing by lying on several.
        several &= gpus <= table.largest
    rows = several.nonzero()[0].tolist()
    spread = [row for row in rows if len(placements[row].spans) > 1]  # type: ignore[union-attr]
    if not spread:
        return
    left_alone = {target.row for target in draft.targets} | draft.moves.keys()
    widest = max(k for k, level in enumerate(layout.buckets) if level & layout.usable)
    for row in spread:
        placement, job = placements[row], jobs.jobs[row]
        if placement is None or row in left_alone or phase[row] != RUNNING or job.id in jobs.unsaved:
            continue
        if not draft.minds_spread(job) or draft.is_tight(job, placement):
            continue
        loss, size = _loss(draft, row, job, placement), int(gpus[row])
        if loss <= 0:
            continue
        # A quick look whether one node could take the whole job, before its GPUs are given back to try.
        own = draft.room.masks(placement).items()
        fits = widest >= size or any(layout.free[i].bit_count() + mask.bit_count() >= size for i, mask in own)
        if size > table.largest or fits:
            yield row, loss


def _loss(draft: PlacementAttempt, row: int, job: Job, placement: Placement) -> float:
    curve, kind = job.curve, int(draft.world.jobs.gpu_type[row])
    fewest, nodes = draft.fewest_nodes(job, placement.size, kind), len(placement.nodes)
    factor = curve.spread(nodes, draft.room.table.racks(placement))
    if curve.across_nodes == 1.0 and nodes > fewest:
        factor *= draft.options.scattered
    return curve.spread(fewest, 1) - factor


def _move_closer(draft: PlacementAttempt, row: int) -> bool:
    jobs, room = draft.world.jobs, draft.room
    job, held = jobs.jobs[row], jobs.placements[row]
    if held is None:
        return False
    room.vacate(held, job)
    nodes = room.suited(job, int(jobs.gpu_type[row]))
    placement = resettle(room, job, held, held.size, nodes)
    if placement is not None:
        worth = worth_of_move(draft, row, held, placement)
        if worth.pays:
            draft.moves[row] = Move(placement, Reason.CONSOLIDATED, evidence_of(worth.gain_s, worth.cost_s))
            return True
        room.vacate(placement, job)
    room.occupy(held, job)
    return False
