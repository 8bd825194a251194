"""What jobs may have above their `min`: idle quota, own before borrowed, by weight where queues compete."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    rows: list[int]
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


def grow(
    world: World, ledger: Ledger, growers: Iterable[Growers], cap: IntArray
) -> list[tuple[Node, Budget]]:
    """Budgets for those that cannot all have what they may have alone, with their queues.

    The books are changed.
    """
    wants: list[int] = (cap - world.jobs.i("min")).tolist()
    groups = [group for one in growers for group in _grouped(world, ledger, one, wants)]
    # 1. What belongs to a queue is its own to grow into, …
    for group in groups:
        group.take(group.room(may_borrow=False))
    # 2. … and what is idle goes to whoever borrows the least for its weight.
    _lend(ledger, [group for group in groups if group.granted < group.wants])
    low: list[int] = world.jobs.i("min").tolist()
    return [
        (group.queue, _budget(world, ledger, group, low)) for group in groups if group.granted < group.wants
    ]


def _grouped(world: World, ledger: Ledger, growers: Growers, wants: Sequence[int]) -> Iterator[_Group]:
    """Those of a queue that want more than their `min`, by flavors."""
    rows_of: dict[Flavors, list[int]] = {}
    last: Flavors | None = None
    alike: list[int] = []
    for row, flavors in growers.flavors.items():
        if flavors is not last:
            # Those that are alike mostly have the very same, which is seen sooner than that it is equal.
            alike, last = rows_of.setdefault(flavors, []), flavors
        if wants[row] > 0:
            alike.append(row)
    for flavors, rows in rows_of.items():
        if rows:
            total = sum(wants[row] for row in rows)
            yield _Group(growers.queue, rows, total, 0, _average(world, ledger, rows, wants, flavors))


def _average(
    world: World, ledger: Ledger, rows: list[int], wants: Sequence[int], flavors: Flavors
) -> Amounts:
    """What a GPU more takes of each cell, on average over all that are wanted, rounded up."""
    jobs, found = world.jobs.jobs, Amounts()
    for resource, flavor in flavors:
        cell = ledger.tree.number(Cell(flavor, resource))
        if counts_gpus(resource):
            found[cell] = MILLI
            continue
        total = sum(wants[row] for row in rows)
        amount = -(-sum(per_gpu(jobs[row], resource) * wants[row] for row in rows) // total)
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
    if not any(group.room(may_borrow=True) for group in competing):
        return

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


def _budget(world: World, ledger: Ledger, group: _Group, low: Sequence[int]) -> Budget:
    jobs, rows = world.jobs.jobs, sorted(group.rows)
    beside = []
    for cell, average in group.per_gpu.items():
        resource = ledger.tree.cells[cell].resource
        if counts_gpus(resource):
            continue
        each = [per_gpu(jobs[row], resource) for row in rows]
        needed = sum(one * low[row] for one, row in zip(each, rows, strict=True))
        beside.append((np.array(each, dtype=np.int64), needed + average * group.granted))
    gpus = sum(low[row] for row in rows) + group.granted
    return Budget(np.array(rows, dtype=np.int64), gpus, tuple(beside))
