"""What jobs may have above their `min`: idle quota, own before borrowed, by weight where queues compete."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batuta.core.admission import Budget
from batuta.core.arrays import IntArray
from batuta.core.job import Job
from batuta.core.quota import MILLI, Cell, Flavors
from batuta.core.world import World
from batuta.quota.demand import PODS, counts_gpus, demand
from batuta.quota.ledger import Ledger
from batuta.quota.shares import Share
from batuta.quota.tree import Amounts, Node

_PARTS = 4
"""Into so many parts each competitor's share of what is idle is cut: more is fairer, and takes longer."""


class Growers(NamedTuple):
    """Jobs of one queue that may have another size, by row, and the flavors they grow in."""

    queue: Node
    flavors: Mapping[int, Flavors]


@dataclass(slots=True)
class _Group:
    """Jobs of one queue that grow in the same cells."""

    queue: Node
    rows: IntArray
    wants: int
    granted: int
    per_gpu: Amounts
    """On average, rounded up."""

    def room(self, may_borrow: bool) -> int:
        """How many more GPUs quota leaves to it."""
        queue, most = self.queue, self.wants - self.granted
        for cell, each in self.per_gpu.items():
            left = queue.left(cell)
            if not may_borrow:
                left = min(left, queue.subtree.get(cell, 0) - queue.usage.get(cell, 0))
            most = min(most, left // each)
        return max(0, most)

    def take(self, gpus: int) -> None:
        self.queue.add({cell: each * gpus for cell, each in self.per_gpu.items()})
        self.granted += gpus


def grow(world: World, ledger: Ledger, growers: Iterable[Growers], cap: IntArray) -> tuple[Budget, ...]:
    """Budgets for those that cannot all have what they may have alone. The books are changed."""
    groups = [group for one in growers for group in _grouped(world, ledger, one, cap)]
    # 1. What belongs to a queue is its own to grow into, …
    for group in groups:
        group.take(group.room(may_borrow=False))
    # 2. … and what is idle goes to whoever borrows the least for its weight.
    _lend(ledger, [group for group in groups if group.granted < group.wants])
    return tuple(_budget(world, ledger, group) for group in groups if group.granted < group.wants)


def _grouped(world: World, ledger: Ledger, growers: Growers, cap: IntArray) -> Iterator[_Group]:
    """Those of a queue that want more than their `min`, by flavors."""
    rows_of: dict[Flavors, list[int]] = {}
    for row, flavors in growers.flavors.items():
        rows_of.setdefault(flavors, []).append(row)
    low = world.jobs.i("min")
    for flavors, listed in rows_of.items():
        rows = np.array(listed, dtype=np.int64)
        wants = cap[rows] - low[rows]
        rows, wants = rows[wants > 0], wants[wants > 0]
        if rows.size:
            yield _Group(
                growers.queue, rows, int(wants.sum()), 0, _average(world, ledger, rows, wants, flavors)
            )


def _average(world: World, ledger: Ledger, rows: IntArray, wants: IntArray, flavors: Flavors) -> Amounts:
    """What a GPU more takes of each cell, on average over all that are wanted, rounded up."""
    jobs, found, total = world.jobs.jobs, Amounts(), int(wants.sum())
    for resource, flavor in flavors:
        cell = ledger.tree.number(Cell(flavor, resource))
        if counts_gpus(resource):
            found[cell] = MILLI
            continue
        each = np.array([per_gpu(jobs[row], resource) for row in rows.tolist()], dtype=object)
        amount = -(-int((each * wants).sum()) // total)
        if amount:
            found[cell] = amount
    return found


def per_gpu(job: Job, resource: str) -> int:
    """What a GPU more takes of a resource."""
    return -(-MILLI // job.gpus_per_replica) if resource == PODS else demand(job, resource, 1)


def _lend(ledger: Ledger, groups: list[_Group]) -> None:
    by_root: dict[Node, list[_Group]] = {}
    for group in groups:
        if group.queue.parent is not None:
            by_root.setdefault(group.queue.root, []).append(group)
    for competing in by_root.values():
        _lend_in_turns(ledger, competing)


def _lend_in_turns(ledger: Ledger, competing: list[_Group]) -> None:
    """A part after another to the group whose share is the smallest, at each level of the tree."""

    def key(at: int) -> tuple[tuple[Share, ...], int]:
        queue = competing[at].queue
        nodes = [*reversed(list(queue.path())), queue]
        return tuple(ledger.shares.of(node) for node in nodes[1:]), at

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


def _budget(world: World, ledger: Ledger, group: _Group) -> Budget:
    jobs, rows = world.jobs.jobs, np.sort(group.rows)
    low = world.jobs.i("min")[rows]
    beside = []
    for cell, average in group.per_gpu.items():
        resource = ledger.tree.cells[cell].resource
        if counts_gpus(resource):
            continue
        each = np.array([per_gpu(jobs[row], resource) for row in rows.tolist()], dtype=np.int64)
        beside.append((each, int((each * low).sum()) + average * group.granted))
    return Budget(rows, int(low.sum()) + group.granted, tuple(beside))
