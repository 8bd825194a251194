"""Everything anew: jobs are packed onto logical nodes, and these matched to physical ones so most stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.bitsets import bits, mask_of
from batuta.core.cluster import Placement
from batuta.core.job import Job, Spread
from batuta.placement.choose_gpus import choose_gpus
from batuta.placement.packing import pack
from batuta.placement.room import Room
from batuta.placement.workers import keep_order

FORBIDDEN = -1e9


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
    masks: dict[int, int]
    """By item: its GPUs, as if this were `origin`."""

    def count(self, item: int) -> int:
        return self.masks[item].bit_count()


def repack(room: Room, items: Sequence[Item], nodes: int) -> dict[int, Placement] | None:
    """By row a new place for every item on these nodes; None if they cannot be packed.

    In `room` the items have given back what they hold, and nothing is taken by this call.
    """
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


def _pack_all(room: Room, items: Sequence[Item]) -> list[LogicalNode] | None:
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
    room: Room,
    items: Sequence[Item],
    held: Sequence[dict[int, int]],
    logical: Sequence[LogicalNode],
    physical: Sequence[int],
) -> list[int]:
    """For every logical node a physical one, so that as many GPUs as possible stay with their job.

    This is the assignment problem, solved by the Hungarian method.
    """
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
    room: Room, items: Sequence[Item], logical: Sequence[LogicalNode], physical: Sequence[int]
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
    room: Room, items: Sequence[Item], held: Sequence[dict[int, int]], node: LogicalNode, i: int
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
