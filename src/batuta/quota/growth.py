"""What jobs may have above their `min`: idle quota, own before borrowed, by weight where queues compete."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

import numpy as np

from batuta.core.admission import Budget
from batuta.core.arrays import IntArray
from batuta.core.eligibility import unsaved_rows
from batuta.core.job import Job
from batuta.core.quota import MILLI, FlavorResource, Flavors, counts_gpus
from batuta.core.world import World
from batuta.quota.fair_sharing import Share
from batuta.quota.snapshot import QuotaState
from batuta.quota.tree import Amounts, Node
from batuta.quota.workload import PODS, demand

_PARTS = 4  # into so many parts each competitor's share of what is idle is cut: more is fairer, and takes longer


class Growers(NamedTuple):
    """Jobs of one queue that may have another size, by row, and the flavors they grow in."""

    queue: Node
    flavors: Mapping[int, Flavors]


@dataclass(slots=True)
class _Group:
    """Jobs of one queue that grow in the same flavor resources, the oldest first."""

    queue: Node
    rows: IntArray
    wants: int
    low: int  # what they have together without growth
    per_gpu: Amounts  # on average, rounded up
    granted: int = 0

    def room(self, may_borrow: bool) -> int:
        """How many more GPUs quota leaves to it."""
        queue, most = self.queue, self.wants - self.granted
        for fr, each in self.per_gpu.items():
            left = queue.left(fr)
            if not may_borrow:
                left = min(left, queue.subtree.get(fr, 0) - queue.usage.get(fr, 0))
            most = min(most, left // each)
        return max(0, most)

    def take(self, gpus: int) -> None:
        self.queue.add({fr: each * gpus for fr, each in self.per_gpu.items()})
        self.granted += gpus


def grow(world: World, state: QuotaState, growers: Iterable[Growers], cap: IntArray) -> list[tuple[Node, Budget]]:
    """Budgets of queues whose jobs cannot all grow to what each may have alone. Changes the usage in the tree."""
    low = world.jobs.min
    groups = _grouped(world, state, growers, cap - low, low)
    # 0. No job grows at the cost of a job that would lose its work by it, …
    unsaved = unsaved_rows(world.jobs, cap)
    if unsaved.size:
        extra = world.jobs.held - low
        for group in groups:
            held = int(extra[group.rows[np.isin(group.rows, unsaved)]].sum())
            if taken := min(held, group.room(may_borrow=True)):
                group.take(taken)
    # 1. … what belongs to a queue is its own to grow into, …
    for group in groups:
        if own := group.room(may_borrow=False):
            group.take(own)
    # 2. … and what is idle goes to the queue that borrows the least for its weight.
    _lend(state, [group for group in groups if group.granted < group.wants])
    return [(group.queue, _budget(world, state, group)) for group in groups if group.granted < group.wants]


def _grouped(
    world: World, state: QuotaState, growers: Iterable[Growers], wants: IntArray, low: IntArray
) -> list[_Group]:
    """The workloads that want more than their `min`, by queue and flavors. All are summed up at once."""
    alike = [(one.queue, flavors, rows) for one in growers for flavors, rows in _alike(one.flavors).items()]
    row = np.fromiter((row for _, _, rows in alike for row in rows), np.int64)
    number = np.repeat(np.arange(len(alike)), [len(rows) for _, _, rows in alike])
    wanting = wants[row] > 0
    row, number = row[wanting], number[wanting]
    order = np.lexsort((row, number))
    row, number = row[order], number[order]
    bounds = np.searchsorted(number, np.arange(len(alike) + 1)).tolist()
    known = {flavors: _of_gpus(state, flavors) for flavors in dict.fromkeys(own for _, own, _ in alike)}
    wanted, least = ([0, *np.cumsum(column[row]).tolist()] for column in (wants, low))
    return [
        _Group(
            queue,
            row[start:end],
            wanted[end] - wanted[start],
            least[end] - least[start],
            known[flavors] or _average(world, state, row[start:end], wants, flavors),
        )
        for (queue, flavors, _), start, end in zip(alike, bounds, bounds[1:], strict=False)
        if end > start
    ]


def _alike(flavors_of: Mapping[int, Flavors]) -> dict[Flavors, list[int]]:
    """Rows by flavors."""
    found: dict[Flavors, list[int]] = {}
    for row, flavors in flavors_of.items():
        found.setdefault(flavors, []).append(row)
    return found


def _of_gpus(state: QuotaState, flavors: Flavors) -> Amounts | None:
    """What a GPU more takes, where nothing but GPUs is counted: that is the same for all jobs."""
    if not all(counts_gpus(resource) for resource, _ in flavors):
        return None
    return {state.tree.number(FlavorResource(flavor, resource)): MILLI for resource, flavor in flavors}


def _average(world: World, state: QuotaState, rows: IntArray, wants: IntArray, flavors: Flavors) -> Amounts:
    """What a GPU more takes of each flavor resource, on average over all that are wanted, rounded up."""
    jobs, found = world.jobs.jobs, Amounts()
    for resource, flavor in flavors:
        fr = state.tree.number(FlavorResource(flavor, resource))
        if counts_gpus(resource):
            found[fr] = MILLI
            continue
        each = [per_gpu(jobs[row], resource) for row in rows.tolist()]
        wanted = wants[rows].tolist()
        amount = -(-sum(map(mul, each, wanted)) // sum(wanted))
        if amount:
            found[fr] = amount
    return found


def per_gpu(job: Job, resource: str) -> int:
    """What a GPU more takes of a resource."""
    return -(-MILLI // (job.gpus_per_replica or 1)) if resource == PODS else demand(job, resource, 1)


def _lend(state: QuotaState, groups: list[_Group]) -> None:
    by_root: dict[Node, list[_Group]] = {}
    for group in groups:
        if group.queue.parent is not None:
            by_root.setdefault(group.queue.root, []).append(group)
    for competing in by_root.values():
        _lend_in_turns(state, competing)


def _lend_in_turns(state: QuotaState, competing: list[_Group]) -> None:
    """A part after another to the group whose share is the smallest, at each level of the tree."""
    if not any(group.room(may_borrow=True) for group in competing):
        return

    def key(at: int) -> tuple[tuple[Share, ...], int]:
        queue = competing[at].queue
        nodes = [*reversed(list(queue.path())), queue]
        return tuple(state.shares.of(node) for node in nodes[1:]), at

    heap = [key(at) for at in range(len(competing))]
    heapq.heapify(heap)
    while heap:
        _, at = heapq.heappop(heap)
        now = key(at)
        if heap and now > heap[0]:
            # Others of its cohort have taken something since: it is not its turn any more.
            heapq.heappush(heap, now)
            continue
        group = competing[at]
        room = group.room(may_borrow=True)
        if room:
            group.take(max(1, room // (_PARTS * (len(heap) + 1))))
            heapq.heappush(heap, key(at))


def _budget(world: World, state: QuotaState, group: _Group) -> Budget:
    jobs, rows = world.jobs.jobs, group.rows
    beside = []
    for fr, average in group.per_gpu.items():
        resource = state.tree.frs[fr].resource
        if counts_gpus(resource):
            continue
        own = [jobs[row] for row in rows.tolist()]
        each = [per_gpu(job, resource) for job in own]
        needed = sum(one * job.min for one, job in zip(each, own, strict=True))
        beside.append((np.array(each, dtype=np.int64), needed + average * group.granted))
    return Budget(rows, group.low + group.granted, tuple(beside))
