"""Counts what jobs use of quota, and what that means for each queue and cohort."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from batuta.core.job import Job
from batuta.core.quota import Cell, ClusterQueue, Limits, LocalQueue, Quota, cells_of
from batuta.quota.demand import demand
from batuta.quota.lending import borrowed_by, lent_in
from batuta.quota.shares import Shares
from batuta.quota.tree import Amounts, Node, Tree
from batuta.quota.use import CellUse, CohortUse, DoorUse, JobUse, QueueUse, QuotaUse

_NO_LIMITS = Limits()


def measure(quota: Quota, jobs: Iterable[JobUse]) -> QuotaUse:
    """What there is, who uses it, and who waits for it."""
    return _Measuring(quota, jobs).report()


def in_order(waiting: Iterable[Job]) -> tuple[Job, ...]:
    """Those that wait in one queue, the first one first."""
    return tuple(sorted(waiting, key=lambda job: (-job.priority, job.submit_s, job.sequence, job.id)))


@dataclass(slots=True)
class _Tally:
    """What was counted of one queue's jobs."""

    waiting: list[Job]
    holders: list[JobUse]
    used: Amounts
    reserved: Amounts
    doors: dict[LocalQueue, Counter[bool]]
    """By whether a job waits."""
    suspended: int = 0
    gpus: int = 0

    @classmethod
    def empty(cls) -> _Tally:
        return cls([], [], defaultdict(int), defaultdict(int), {})


class _Measuring:
    """One look at everything."""

    def __init__(self, quota: Quota, jobs: Iterable[JobUse]) -> None:
        self._quota, self._tree = quota, Tree(quota)
        self._tallies = {name: _Tally.empty() for name in self._tree.queues}
        self._strangers: dict[str, _Tally] = {}
        self._ways: dict[tuple[str, str], tuple[_Tally, Counter[bool]]] = {}
        """By namespace and queue."""
        for local in quota.local_queues:
            if local.cluster_queue in self._tallies:
                self._tallies[local.cluster_queue].doors[local] = Counter()
        for one in jobs:
            self._count(one)
        for name, node in self._tree.queues.items():
            node.add(self._tallies[name].used)
        self._lent = lent_in(self._tree)
        self._shares = Shares(self._tree.cells)

    def _count(self, one: JobUse) -> None:
        job = one.job
        way = self._ways.get((job.namespace, job.queue))
        if way is None:
            way = self._ways[job.namespace, job.queue] = self._way(job)
        tally, door = way
        if one.suspended:
            tally.suspended += 1
        elif one.waits:
            tally.waiting.append(job)
            door[True] += 1
        else:
            tally.holders.append(one)
            door[False] += 1
        tally.gpus += 0 if job.cpu_only else one.gpus
        for resource, flavor in one.flavors if one.gpus else ():
            cell = self._tree.cell_of.get(Cell(flavor, resource))
            if cell is not None:
                tally.used[cell] += demand(job, resource, one.gpus)
                tally.reserved[cell] += demand(job, resource, min(job.min, one.gpus))

    def _way(self, job: Job) -> tuple[_Tally, Counter[bool]]:
        """Where the jobs of its queue are counted: in all, and at the door by which they come."""
        door = self._quota.way(job.namespace, job.queue)
        tally = self._tallies.get(door.cluster_queue) if door is not None else None
        if door is None or tally is None:
            return self._strangers.setdefault(job.queue, _Tally.empty()), Counter()
        return tally, tally.doors.get(door, Counter())

    def report(self) -> QuotaUse:
        return QuotaUse(
            queues=tuple(self._queue(queue) for queue in self._quota.cluster_queues),
            cohorts=tuple(self._cohort(node) for node in self._tree.cohorts.values()),
            strangers=tuple(
                QueueUse(
                    ClusterQueue(name),
                    waiting=in_order(tally.waiting),
                    holders=tuple(tally.holders),
                    suspended=tally.suspended,
                    gpus=tally.gpus,
                    set_up=False,
                )
                for name, tally in sorted(self._strangers.items())
            ),
        )

    def _queue(self, queue: ClusterQueue) -> QueueUse:
        node, tally = self._tree.queues[queue.name], self._tallies[queue.name]
        return QueueUse(
            queue=queue,
            cells=tuple(
                self._cell(node, self._tree.cell_of[cell], limits, limits.nominal, [tally])
                for cell, limits in cells_of(queue.groups)
            ),
            waiting=in_order(tally.waiting),
            needs=_needs(queue, tally.waiting),
            holders=tuple(tally.holders),
            suspended=tally.suspended,
            gpus=tally.gpus,
            share=self._share(node),
            doors=tuple(DoorUse(door, by[False], by[True]) for door, by in tally.doors.items()),
            leaving=queue.name in self._quota.leaving,
            misconfigured=self._misconfigured(queue),
        )

    def _cohort(self, node: Node) -> CohortUse:
        family = [node, *_below(node)]
        tallies = [self._tallies[one.name] for one in family if one.is_queue]
        cells = dict.fromkeys(cell for one in family for cell in one.limits)
        return CohortUse(
            name=node.name,
            parent="" if node.parent is None else node.parent.name,
            weight=node.weight,
            cells=tuple(
                self._cell(
                    node,
                    cell,
                    node.limits.get(cell, _NO_LIMITS),
                    sum(one.limits.get(cell, _NO_LIMITS).nominal for one in family),
                    tallies,
                )
                for cell in cells
            ),
            running=sum(len(tally.holders) for tally in tallies),
            pending=sum(len(tally.waiting) for tally in tallies),
            share=self._share(node),
        )

    def _cell(self, node: Node, cell: int, limits: Limits, total: int, tallies: list[_Tally]) -> CellUse:
        return CellUse(
            cell=self._tree.cells[cell],
            limits=limits,
            total=total,
            used=sum(tally.used.get(cell, 0) for tally in tallies),
            reserved=sum(tally.reserved.get(cell, 0) for tally in tallies),
            borrowed=borrowed_by(node, cell),
            lent=self._lent[node].get(cell, 0),
        )

    def _share(self, node: Node) -> float:
        share = self._shares.of(node)
        return math.inf if share.weightless else share.part

    def _misconfigured(self, queue: ClusterQueue) -> str:
        if queue.cohort in self._tree.broken:
            return f"cohort {queue.cohort} is its own ancestor"
        flavors = [one.flavor for group in queue.groups for one in group.flavors]
        missing = dict.fromkeys(name for name in flavors if name not in self._quota.flavor_of)
        if missing:
            return f"there is no flavor {', '.join(missing)}"
        return "" if queue.groups else "it has quota in nothing"


def _below(node: Node) -> Iterator[Node]:
    for child in node.children:
        yield child
        yield from _below(child)


def _needs(queue: ClusterQueue, waiting: Iterable[Job]) -> tuple[tuple[str, int], ...]:
    resources = [resource for group in queue.groups for resource in group.resources]
    needs = Counter[str]()
    for job in waiting:
        for resource in resources:
            needs[resource] += demand(job, resource, job.min)
    return tuple((resource, needs[resource]) for resource in resources if needs[resource])
