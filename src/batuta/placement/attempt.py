"""The answer of a placer while it is being made: where a new job is packed, and what a resized one keeps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from batuta.core.arrays import bits, mask_of
from batuta.core.cluster import Placement, Span
from batuta.core.job import Job, JobId, Spread
from batuta.core.node_table import NodeTable
from batuta.core.placer import EVERYWHERE, Failure, Move, Placed, Target
from batuta.core.reason import Reason
from batuta.core.weigh import Costs
from batuta.core.world import World, speed_at
from batuta.placement.cluster_state import ClusterState, Part, RackProfiles, choose_gpus, crossings
from batuta.placement.utilisation import BUSIEST

ARRANGEMENT = (Reason.FRAGMENTED, Reason.TOPOLOGY_UNMET)  # enough GPUs are free, in the wrong places: moves may help
NOWHERE = -1
NO_GPUS = Placement(())  # what a job holds that has not started
SNUG_TRIES = 8  # how many equally full nodes are compared for the one where the job stays within an NVLink group
COMPARED = 16  # how many equally full nodes are compared for the one where the fewest GPUs are stranded
PROFILES_KEPT = 64  # for how many sets of nodes it is remembered how full the racks are


@dataclass(frozen=True, slots=True)
class PlacerOptions:
    """What a placer may do beyond placing what changes. Each number bounds the work of one cycle.

    Every placer takes them and heeds those about shares; the rest is for the one that moves running jobs.
    """

    repack: Literal["when-needed", "never"] = "when-needed"  # whether many jobs may move for one that fits nowhere
    shares: Literal["bin-pack", "spread"] = "bin-pack"  # to the fullest card with room, or to the emptiest
    busiest: float = BUSIEST  # a card gets no further sharer if it would be busier, while there is another place
    moves: int = 8  # running jobs that are brought closer together in one cycle
    tries: int = 32  # running jobs that are looked at for that
    rescues: int = 4  # jobs for which others are moved in one cycle
    repack_nodes: int = 64  # nodes that are repacked at once: those with the most free GPUs
    scattered: float = 1.0  # speed factor of a job on too many nodes, when its curve does not say; 1 is no loss

    def room(self, world: World, within: Mapping[JobId, int] = EVERYWHERE) -> ClusterState:
        """What there is to place on, with shares of GPUs treated as these options say."""
        return ClusterState.of(world, within, busiest=self.busiest, spreads=self.shares == "spread")


@dataclass(slots=True)
class PlacementAttempt:
    """What has been decided so far, and the room that is left."""

    world: World
    now_s: float
    costs: Costs
    options: PlacerOptions
    room: ClusterState
    targets: Sequence[Target] = ()
    placements: dict[int, Placement] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    moves: dict[int, Move] = field(default_factory=dict)

    def done(self) -> Placed:
        return Placed(self.placements, self.failures, self.moves, self.room.layout)

    def minds_spread(self, job: Job) -> bool:
        """Whether it matters to the job how many nodes or racks it lies on."""
        curve = job.curve
        return curve.minds_spread or self.options.scattered < 1.0 or job.topology.within is not Spread.ANY

    def speed(self, job: Job, placement: Placement) -> float:
        """Predicted speed on these GPUs; a job on needlessly many nodes is taken to be slower."""
        speed = speed_at(self.world, job, placement)
        if self.options.scattered < 1.0 and job.curve.across_nodes == 1.0 and len(placement.spans) > 1:
            table = self.room.table
            kind = table.type_of[table.index[placement.spans[0].node]]
            if len(placement.nodes) > self.fewest_nodes(job, placement.size, kind):
                speed *= self.options.scattered
        return speed

    def fewest_nodes(self, job: Job, gpus: int, gpu_type: int) -> int:
        """On how few nodes the job could lie if they were all free."""
        widest = self.room.widest(self.room.suited(job, gpu_type))
        whole = widest - widest % job.gpus_per_replica
        return -(-gpus // whole) if whole else 1

    def is_tight(self, job: Job, placement: Placement) -> bool:
        """Whether no place on the cluster could be closer together, as far as a quick look can tell."""
        table = self.room.table
        fewest = -(-placement.size // table.largest)
        return len(placement.spans) <= fewest and (len(table.by_rack) < 2 or table.racks(placement) < 2)

    def closer(self, job: Job, first: Placement, second: Placement) -> bool:
        """Whether the first place suits the job better: by what it prefers, then by speed."""
        table = self.room.table
        unmet = _unmet(table, job, second) - _unmet(table, job, first)
        return unmet > 0 or (unmet == 0 and self.speed(job, first) > self.speed(job, second) * (1 + 1e-9))


def _unmet(table: NodeTable, job: Job, placement: Placement) -> bool:
    """Whether the place is wider than the job wants."""
    if job.topology.within is Spread.NODE:
        return len(placement.nodes) > 1
    return job.topology.within is Spread.RACK and table.racks(placement) > 1


def why(room: ClusterState, job: Job, needs: int, gpu_type: int, held: int = 0) -> Failure:
    """The first thing that stands in the way of `needs` GPUs for a job that holds `held` of them."""
    table, extra = room.table, needs - held
    if not table.by_type[gpu_type] & table.matching(job):
        return Failure(Reason.NO_MATCHING_NODE, ())
    nodes = room.suited(job, gpu_type)
    capacity, free = room.total(nodes), room.layout.free_gpus(nodes)
    if needs > capacity and not held:
        return Failure(Reason.EXCEEDS_CLUSTER, (("needs", needs), ("capacity", capacity)))
    if extra > free:
        return Failure(Reason.WAITING_FOR_GPUS, (("needs", extra), ("free", free), ("capacity", capacity)))
    bare = replace(job, cpus_milli_per_gpu=0, memory_mib_per_gpu=0)
    best = most(room, bare, nodes)
    if best >= extra and bare != job:
        return Failure(Reason.SHORT_OF_CPU_OR_MEMORY, (("needs", extra), ("free", free)))
    topology = job.topology
    if topology.single_numa or (topology.required and topology.within is not Spread.ANY):
        return Failure(Reason.TOPOLOGY_UNMET, (("needs", needs), ("best", best)))
    return Failure(Reason.FRAGMENTED, (("needs", extra), ("free", free)))


def pack(room: ClusterState, job: Job, gpus: int, nodes: int, home: Sequence[int] = ()) -> list[Part] | None:
    """Chooses nodes for a job, `home` in this order before others that are as good. None: no room."""
    for i in home:
        if nodes >> i & 1 and room.capacity(i, job) >= gpus:
            return [(i, gpus)]
    i = fullest(room, job, gpus, nodes)
    if i >= 0:
        return [(i, gpus)]
    within, required = job.topology.within, job.topology.required
    if required and within is Spread.NODE:
        return None
    if len(room.table.by_rack) < 2:
        return few_nodes(room, job, gpus, nodes, home)
    if at_best(room, job, nodes) < gpus:
        # On a busy cluster this is the usual answer, and no rack has to be looked at.
        return None
    for rack in racks_by_fit(room, job, gpus, nodes):
        parts = few_nodes(room, job, gpus, nodes & rack, home)
        if parts is not None:
            return parts
    if required and within is Spread.RACK:
        return None
    return few_nodes(room, job, gpus, nodes, home, widest_rack(room, job, nodes))


def fullest(room: ClusterState, job: Job, gpus: int, nodes: int) -> int:
    """The fullest node on which the whole job fits; NOWHERE without one.

    Among equally full ones the one where it strands the fewest GPUs, then the least used, then the lowest number.
    """
    if room.levels(job) is room.layout.buckets:
        for k in range(gpus, len(room.layout.buckets)):
            if fit := room.layout.buckets[k] & nodes:
                first = next(room.calm_first(fit, gpus))
                return _snuggest(room, gpus, fit, first) if gpus > 1 and room.table.nodes[first].nvlink else first
        return NOWHERE
    for k in range(gpus, len(room.layout.buckets)):
        if found := fitting_at(room, job, gpus, nodes, k):
            return found[0] if len(found) == 1 else room.stranding.least(found, gpus, job)
    return NOWHERE


def fitting_at(room: ClusterState, job: Job, gpus: int, nodes: int, k: int) -> list[int]:
    """The first few nodes of level `k` on which the whole job fits, with what it wants beside its GPUs."""
    levels, found = room.levels(job), list[int]()
    fit = levels[k] & nodes
    for i in room.calm_first(fit, gpus) if fit else ():
        low, capacity = 1 << i, room.capacity(i, job)
        if capacity < k and levels is not room.layout.buckets:
            levels[k] ^= low
            levels[capacity] |= low
        if capacity >= gpus:
            found.append(i)
            if len(found) == COMPARED:
                break
    return found


def _snuggest(room: ClusterState, gpus: int, fit: int, first: int) -> int:
    """Of some equally full nodes the first one with the fewest NVLink groups for the job."""
    best, fewest = first, len(room.layout.buckets)
    for tries, i in enumerate(room.calm_first(fit, gpus)):
        if tries == SNUG_TRIES or fewest == 1:
            break
        node = room.table.nodes[i]
        chosen = choose_gpus(node.nvlink, node.numa, room.layout.free[i], gpus)
        groups = crossings(node.nvlink, chosen.mask) if node.nvlink else 1
        if groups < fewest:
            best, fewest = i, groups
    return best


def few_nodes(
    room: ClusterState, job: Job, gpus: int, nodes: int, home: Sequence[int] = (), near: int = 0
) -> list[Part] | None:
    """As few nodes as possible: the emptiest ones whole, then the fullest one that has room for the rest.

    Among nodes that are as good, `home` goes first, then those `near`, then those in racks that it is in.
    """
    shared, step = room.levels(job), job.gpus_per_replica
    exact = shared is room.layout.buckets
    if at_best(room, job, nodes) < gpus:
        return None
    levels = [level & nodes for level in shared]
    by_rack, rack_of = room.table.by_rack, room.table.rack_of
    several = len(by_rack) > 1
    parts: list[Part] = []
    left, top = gpus, len(levels) - 1
    while left:
        rest = [(k, left) for k in range(left, top + 1) if levels[k]]
        while top and not levels[top]:
            top -= 1
        whole = top - top % step
        if not whole:
            return None
        k, count = rest[0] if rest else (top, whole)
        i = next((i for i in home if levels[k] >> i & 1), NOWHERE)
        if i < 0:
            i = next(room.calm_first(levels[k] & near or levels[k], count))
        low = 1 << i
        levels[k] ^= low
        if not exact and (capacity := room.capacity(i, job)) < k:
            # It has GPUs, but not what the job wants beside them: it comes up again at its true level.
            levels[capacity] |= low
            if shared[k] & low:
                shared[k] ^= low
                shared[capacity] |= low
            continue
        parts.append((i, count))
        left -= count
        if several:
            near |= by_rack[rack_of[i]]
    return parts


def at_best(room: ClusterState, job: Job, nodes: int) -> int:
    """The most GPUs that these nodes could have for a job, if none of them lacks anything beside GPUs."""
    free, step = 0, job.gpus_per_replica
    for k, level in enumerate(room.levels(job)):
        if k >= step and (here := level & nodes):
            free += (k - k % step) * here.bit_count()
    return free


def racks_by_fit(room: ClusterState, job: Job, gpus: int, nodes: int) -> Iterator[int]:
    """The racks that could hold the whole job, as sets of nodes: fewest nodes first, then the fullest."""
    profiles = room.racks.get(nodes)
    if profiles is None:
        if len(room.racks) >= PROFILES_KEPT:
            room.racks.clear()
        profiles = room.racks[nodes] = RackProfiles(room.table, nodes)
    return profiles.by_fit(room.levels(job), gpus, job.gpus_per_replica)


def widest_rack(room: ClusterState, job: Job, nodes: int) -> int:
    """The rack with the most room for a job that fits in none."""
    racks, levels, step = room.table.by_rack.values(), room.levels(job), job.gpus_per_replica
    if levels is not room.layout.buckets:
        return max(racks, key=lambda rack: most(room, job, nodes & rack, Spread.ANY))
    sizes = [(k - k % step, here) for k, level in enumerate(levels) if k >= step and (here := level & nodes)]
    return max(racks, key=lambda rack: sum([whole * (here & rack).bit_count() for whole, here in sizes]))


def most(room: ClusterState, job: Job, nodes: int, within: Spread | None = None) -> int:
    """The most GPUs that the job could have on these nodes, by what it requires of their closeness."""
    if within is None:
        within = job.topology.within if job.topology.required else Spread.ANY
    if within is Spread.RACK:
        racks = room.table.by_rack.values()
        return max((most(room, job, nodes & rack, Spread.ANY) for rack in racks), default=0)
    levels, step = room.levels(job), job.gpus_per_replica
    if levels is room.layout.buckets:
        sizes = [(k - k % step, (level & nodes).bit_count()) for k, level in enumerate(levels)]
        if within is Spread.NODE:
            return max((size for size, count in sizes if count), default=0)
        return sum(size * count for size, count in sizes)
    capacities = [room.capacity(i, job) for i in bits(nodes & ~levels[0])]
    return max(capacities, default=0) if within is Spread.NODE else sum(capacities)


def legal_floor(job: Job, gpus: int) -> int:
    """The largest legal size that is at most `gpus`; 0 without one."""
    if gpus < job.min:
        return 0
    if job.sizes is not None:
        return job.sizes[bisect_right(job.sizes, gpus) - 1]
    return job.min + (min(gpus, job.max) - job.min) // job.gpus_per_replica * job.gpus_per_replica


def legal_above(job: Job, gpus: int) -> int:
    """The next legal size above `gpus`; `gpus` itself when there is none."""
    if job.sizes is not None:
        above = bisect_right(job.sizes, gpus)
        return job.sizes[above] if above < len(job.sizes) else gpus
    size = max(job.min, legal_floor(job, gpus) + job.gpus_per_replica)
    return size if size <= job.max else gpus


def keep_order(table: NodeTable, held: Placement, chosen: Mapping[int, int], step: int) -> Placement:
    """The chosen GPUs (a set per node) in worker order: who stays keeps its order, if possible its index."""
    index, left = table.index, dict(chosen)
    if step == 1 and (rest := _rest_of(table, held, chosen)) is not None:
        return rest
    slots: list[Span | None] = []
    for worker in held.workers(step):
        i, mask = index[worker.node], mask_of(worker.gpus)
        stays = len(worker.gpus) == step and not mask & ~left.get(i, 0)
        slots.append(worker if stays else None)
        if stays:
            left[i] &= ~mask
    fresh = [span for i, mask in left.items() if mask for span in _replicas(table, i, mask, step)]
    fresh.reverse()
    order = [slot or fresh.pop() for slot in slots if slot or fresh]
    return joined([*order, *reversed(fresh)])


def _rest_of(table: NodeTable, held: Placement, chosen: Mapping[int, int]) -> Placement | None:
    """What is left of a job that only gives up GPUs; None if it also gets some. Most spans stay whole."""
    index, spans, gpus = table.index, list[Span](), 0
    for span in held.spans:
        mask = mask_of(span.gpus)
        kept = mask & chosen.get(index[span.node], 0)
        gpus += kept.bit_count()
        if kept == mask:
            spans.append(span)
        elif kept:
            spans.append(Span(span.node, tuple([gpu for gpu in span.gpus if kept >> gpu & 1])))
    return joined(spans) if gpus == sum(mask.bit_count() for mask in chosen.values()) else None


def _replicas(table: NodeTable, i: int, mask: int, step: int) -> tuple[Span, ...]:
    node = table.nodes[i]
    gpus = choose_gpus(node.nvlink, node.numa, mask, mask.bit_count()).gpus
    return tuple(Span(node.name, gpus[k : k + step]) for k in range(0, len(gpus), step))


def joined(spans: list[Span]) -> Placement:
    """A placement of these spans; neighbours on the same node become one."""
    result: list[Span] = []
    for span in spans:
        if result and result[-1][0] == span[0]:
            span = Span(span.node, result.pop().gpus + span.gpus)
        result.append(span)
    return Placement(tuple(result))


def begins_with(placement: Placement, held: Placement) -> bool:
    """Whether all workers that a job had are where they were, and new ones come after them."""
    *first, last = held.spans
    end = len(first)
    node, gpus = placement.spans[end] if end < len(placement.spans) else ("", ())
    return placement.spans[:end] == tuple(first) and node == last.node and gpus[: len(last.gpus)] == last.gpus


def whole_replicas(held: Placement, step: int) -> Placement:
    """What a job that lost GPUs can still use: the rest of a replica that is no longer whole is left out."""
    if step == 1 or all(len(span.gpus) % step == 0 for span in held.spans):
        return held
    return joined([worker for worker in held.workers(step) if len(worker.gpus) == step])


def enlarge(draft: PlacementAttempt, job: Job, held: Placement, gpus: int, nodes: int) -> Placement | None:
    """More GPUs for a job: where it is, or elsewhere, since a resize restarts it anyway. None: no room."""
    room = draft.room
    if draft.minds_spread(job) and (i := fullest(room, job, gpus, nodes)) >= 0:
        placement = room.seat(job, [(i, gpus)])
        room.vacate(held, job)
        return placement
    grown = _append(room, job, held, gpus, nodes)
    if grown is None:
        room.vacate(held, job)
        grown = resettle(room, job, held, gpus, nodes)
        if grown is None:
            room.occupy(held, job)
    return grown


def grow_at_home(room: ClusterState, job: Job, held: Placement, gpus: int, nodes: int) -> Placement | None:
    """Appends GPUs on the nodes that the job has; None when they do not suffice."""
    if len(held.spans) == 1:
        node, mine = held.spans[0]
        i, own, extra = room.table.index[node], mask_of(mine), gpus - len(mine)
        if not nodes >> i & 1 or room.capacity(i, job, own) < extra:
            return None
        return Placement((Span(node, mine + room.take(i, extra, job, own).gpus),))
    masks, extra = room.masks(held), gpus - held.size
    here = [(room.capacity(i, job, own), i) for i, own in masks.items() if nodes >> i & 1]
    if sum(capacity for capacity, _ in here) < extra or not _within_reach(room, job, masks, nodes):
        return None
    parts, _ = _fill(here, extra)
    return joined([*held.spans, *(room.take(i, count, job, masks[i]) for i, count in parts)])


def tighten(draft: PlacementAttempt, job: Job, held: Placement, placement: Placement, nodes: int) -> Placement:
    """A closer place for a job that is resized, if there is one that it would gain by; it restarts anyway."""
    if len(placement.spans) == 1 or not draft.minds_spread(job) or draft.is_tight(job, placement):
        return placement
    room = draft.room
    room.vacate(placement, job)
    better = resettle(room, job, held, placement.size, nodes)
    if better is not None:
        if draft.closer(job, better, placement):
            return better
        room.vacate(better, job)
    room.occupy(placement, job)
    return placement


def _append(room: ClusterState, job: Job, held: Placement, gpus: int, nodes: int) -> Placement | None:
    """GPUs after those that a job has: on its nodes, then in its racks, then elsewhere."""
    own = room.masks(held)
    parts = _extend(room, job, own, gpus - held.size, _within_reach(room, job, own, nodes))
    if parts is None:
        return None
    return joined([*held.spans, *(room.take(i, count, job, own.get(i, 0)) for i, count in parts)])


def resettle(room: ClusterState, job: Job, held: Placement, gpus: int, nodes: int) -> Placement | None:
    """Places a job that has just given back what it held; workers that get the same GPUs keep their index."""
    own = room.masks(held)
    home = sorted(own, key=lambda i: (-own[i].bit_count(), i))
    parts = pack(room, job, gpus, nodes, home)
    if parts is None:
        return None
    chosen = {i: room.retake(i, count, job, own.get(i, 0)) for i, count in parts}
    return keep_order(room.table, held, chosen, job.gpus_per_replica)


def largest_grown(room: ClusterState, job: Job, held: Placement, nodes: int) -> int:
    """The largest size that the job could have, where it is or elsewhere."""
    own = room.masks(held)
    open_nodes = _within_reach(room, job, own, nodes)
    inside = sum(room.capacity(i, job, mask) for i, mask in own.items() if open_nodes >> i & 1)
    size = held.size + inside + most(room, job, open_nodes & ~_set_of(own), Spread.ANY)
    if job.topology.required or job.topology.single_numa:
        room.vacate(held, job)
        size = max(size, most(room, job, nodes))
        room.occupy(held, job)
    return size


def _within_reach(room: ClusterState, job: Job, own: dict[int, int], nodes: int) -> int:
    """The nodes that may be added without breaking what the job requires; none if it is broken already."""
    if not job.topology.required or job.topology.within is Spread.ANY:
        return nodes
    if job.topology.within is Spread.NODE:
        return nodes & _set_of(own) if len(own) == 1 else 0
    racks = {room.table.rack_of[i] for i in own}
    return nodes & room.table.by_rack[racks.pop()] if len(racks) == 1 else 0


def _extend(room: ClusterState, job: Job, own: dict[int, int], extra: int, nodes: int) -> list[Part] | None:
    here = [(room.capacity(i, job, mask), i) for i, mask in own.items() if nodes >> i & 1]
    parts, extra = _fill(here, extra) if any(capacity for capacity, _ in here) else ([], extra)
    if not extra:
        return parts
    table, others, racks = room.table, nodes & ~_set_of(own), 0
    if len(table.by_rack) > 1:
        for i in own:
            racks |= table.by_rack[table.rack_of[i]]
    added = (pack(room, job, extra, others & racks) if racks else None) or pack(room, job, extra, others)
    return None if added is None else parts + added


def _fill(here: list[tuple[int, int]], extra: int) -> tuple[list[Part], int]:
    """Growth on a job's own nodes, given as (capacity, node): on few of them, the last the fullest."""
    parts: list[Part] = []
    while extra and here:
        fitting = [part for part in here if part[0] >= extra]
        capacity, i = min(fitting) if fitting else max(here, key=lambda part: (part[0], -part[1]))
        here.remove((capacity, i))
        if count := min(capacity, extra):
            parts.append((i, count))
            extra -= count
    return parts, extra


def shrink(room: ClusterState, job: Job, held: Placement, gpus: int) -> Placement:
    """Drops workers so that the job lies on few nodes and frees whole parts; the others keep their order."""
    if len(held.spans) == 1:
        node, mine = held.spans[0]
        i, own = room.table.index[node], mask_of(mine)
        kept = _keep_part(room, job, held, i, own, gpus)
        room.give_back(i, own & ~kept, job)
        return Placement((Span(node, tuple([gpu for gpu in mine if kept >> gpu & 1])),))
    masks = room.masks(held)
    left = _drop_parts(room, job, held, masks, gpus)
    for i, mask in masks.items():
        if dropped := mask & ~left.get(i, 0):
            room.give_back(i, dropped, job)
    return keep_order(room.table, held, left, job.gpus_per_replica)


def _drop_parts(room: ClusterState, job: Job, held: Placement, masks: dict[int, int], gpus: int) -> dict[int, int]:
    """What is left on each node of the GPUs that a job has."""
    own = masks.copy()
    drop = held.size - gpus
    usable = room.layout.usable
    # The smallest parts go first; where no new replicas may go, they go before all others.
    parts = sorted((usable >> i & 1, mask.bit_count(), i) for i, mask in own.items())
    dropped: list[int] = []
    while parts and parts[0][1] <= drop:
        drop -= parts[0][1]
        dropped.append(parts.pop(0)[2])
    if drop and dropped:
        # A part of the right size frees a whole node's share instead of two halves.
        last = dropped[-1]
        exact = [part for part in parts if part[1] == drop + own[last].bit_count()]
        if exact:
            dropped[-1], drop = exact[0][2], 0
            parts.append((1, own[last].bit_count(), last))
    for i in dropped:
        del own[i]
    if drop:
        i = parts[0][2]
        own[i] = _keep_part(room, job, held, i, own[i], own[i].bit_count() - drop)
    return own


def _keep_part(room: ClusterState, job: Job, held: Placement, i: int, mask: int, count: int) -> int:
    """Which GPUs of a node to keep: together in NVLink groups, else those of the first workers."""
    node, step = room.table.nodes[i], job.gpus_per_replica
    if node.nvlink and step == 1:
        return choose_gpus(node.nvlink, node.numa, mask, count).mask
    kept = 0
    for span in held.spans:
        if span.node == node.name:
            for gpu in span.gpus[: count - kept.bit_count()]:
                kept |= 1 << gpu
    return kept


def _set_of(own: dict[int, int]) -> int:
    return sum(1 << i for i in own)
