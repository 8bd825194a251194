"""More or fewer GPUs for a running job. It stays on those it has where it can, with its worker indices."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.core.arrays import mask_of
from batuta.core.cluster import Placement, Span
from batuta.core.job import Job, Spread
from batuta.core.node_table import NodeTable
from batuta.placement.attempt import PlacementAttempt, fullest, most, pack
from batuta.placement.cluster_state import ClusterState, Part, choose_gpus

NO_GPUS = Placement(())
"""What a job holds that has not started."""


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
    """More GPUs for a job: where it is, or elsewhere if it fits only there, or on one node. None: no room.

    A resize restarts the job anyway, so another place costs nothing more.
    """
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


def tighten(
    draft: PlacementAttempt, job: Job, held: Placement, placement: Placement, nodes: int
) -> Placement:
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
    size = _most_grown(room, job, held, nodes)
    if job.topology.required or job.topology.single_numa:
        room.vacate(held, job)
        size = max(size, most(room, job, nodes))
        room.occupy(held, job)
    return size


def _most_grown(room: ClusterState, job: Job, held: Placement, nodes: int) -> int:
    own = room.masks(held)
    open_nodes = _within_reach(room, job, own, nodes)
    here = _set_of(own)
    inside = sum(room.capacity(i, job, mask) for i, mask in own.items() if open_nodes >> i & 1)
    return held.size + inside + most(room, job, open_nodes & ~here, Spread.ANY)


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


def _drop_parts(
    room: ClusterState, job: Job, held: Placement, masks: dict[int, int], gpus: int
) -> dict[int, int]:
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
    nodes = 0
    for i in own:
        nodes |= 1 << i
    return nodes
