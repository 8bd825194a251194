"""Who uses how much of which quota: a report that people, metrics and conditions are made from."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from batuta.core.job import Job, JobId
from batuta.core.quota import ClusterQueue, FlavorResource, Flavors, Limits, LocalQueue, Quota, flavor_resources_of
from batuta.core.world import World
from batuta.quota.fair_sharing import Shares
from batuta.quota.tree import Amounts, Node, QuotaTree, borrowed_by, lent_in
from batuta.quota.workload import QuotaRequests, demand


class JobUse(NamedTuple):
    """A living job as quota sees it."""

    job: Job
    gpus: int  # that it has; of a CPU-only job its replicas
    waits: bool  # for its first GPUs, or for new ones after it lost all
    suspended: bool = False  # its user does not want it to run now: it is ahead of no other
    flavors: Flavors = ()  # by resource, while it has GPUs


@dataclass(frozen=True, slots=True)
class FlavorUsage:
    """The quota of a queue or cohort in one flavor resource, and what is made of it."""

    flavor_resource: FlavorResource
    limits: Limits
    total: int  # its own nominal quota, and that of the queues and cohorts below it
    used: int
    reserved: int  # the part of `used` that the minimums of its jobs take
    borrowed: int  # what it uses of others: above its own, and in a cohort above what those below it may lend
    lent: int  # what others, outside of it, use of its quota

    @property
    def growth(self) -> int:
        """What its jobs have above their minimums: the first thing that is given back."""
        return self.used - self.reserved


@dataclass(frozen=True, slots=True)
class DoorUse:
    """A local queue: how the jobs of a namespace reach a cluster queue."""

    door: LocalQueue
    running: int
    pending: int


@dataclass(frozen=True, slots=True)
class QueueUse:
    """A cluster queue and its jobs."""

    queue: ClusterQueue
    flavors: tuple[FlavorUsage, ...] = ()
    waiting: tuple[Job, ...] = ()  # in the order in which they get quota: priority, then submit time
    needs: tuple[tuple[str, int], ...] = ()  # by resource: what those that wait need at least
    holders: tuple[JobUse, ...] = ()  # those that have GPUs, or are about to, as they came
    suspended: int = 0
    gpus: int = 0  # that its jobs have, whether quota counts them or not, also those that are just stopping
    share: float = 0.0  # what it borrows, in thousandths of what its cohort could lend, divided by its weight
    doors: tuple[DoorUse, ...] = ()
    set_up: bool = True  # otherwise there is no such object, and only jobs name it
    leaving: bool = False  # it was removed, and goes with its last job
    misconfigured: str = ""  # why it cannot start anything; empty when it can

    @property
    def running(self) -> int:
        return len(self.holders)


@dataclass(frozen=True, slots=True)
class CohortUse:
    """A cohort and all that is below it."""

    name: str
    parent: str
    weight: float
    flavors: tuple[FlavorUsage, ...]
    running: int
    pending: int
    share: float


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Everything. `strangers` are queues that jobs name and that are not set up."""

    queues: tuple[QueueUse, ...] = ()
    cohorts: tuple[CohortUse, ...] = ()
    strangers: tuple[QueueUse, ...] = ()


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

    waiting: list[Job] = field(default_factory=list)
    holders: list[JobUse] = field(default_factory=list)
    used: Amounts = field(default_factory=lambda: defaultdict(int))
    reserved: Amounts = field(default_factory=lambda: defaultdict(int))
    doors: dict[LocalQueue, Counter[bool]] = field(default_factory=dict)  # by whether a job waits
    suspended: int = 0
    gpus: int = 0

    def use_of(self, queue: ClusterQueue) -> QueueUse:
        waiting, holders = in_order(self.waiting), tuple(self.holders)
        return QueueUse(queue, waiting=waiting, holders=holders, suspended=self.suspended, gpus=self.gpus)


class _Measuring:
    """One look at everything."""

    def __init__(self, quota: Quota, jobs: Iterable[JobUse]) -> None:
        self._quota, self._tree = quota, QuotaTree(quota)
        self._tallies = {name: _Tally() for name in self._tree.queues}
        self._strangers: dict[str, _Tally] = {}
        self._ways: dict[tuple[str, str], tuple[_Tally, Counter[bool]]] = {}  # by namespace and queue
        for local in quota.local_queues:
            if local.cluster_queue in self._tallies:
                self._tallies[local.cluster_queue].doors[local] = Counter()
        for one in jobs:
            self._count(one)
        for name, node in self._tree.queues.items():
            node.add(self._tallies[name].used)
        self._lent = lent_in(self._tree)
        self._shares = Shares(self._tree.frs)

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
            fr = self._tree.fr_number.get(FlavorResource(flavor, resource))
            if fr is not None:
                tally.used[fr] += demand(job, resource, one.gpus)
                tally.reserved[fr] += demand(job, resource, min(job.min, one.gpus))

    def _way(self, job: Job) -> tuple[_Tally, Counter[bool]]:
        """Where the jobs of its queue are counted: in all, and at the local queue by which they come."""
        door = self._quota.way(job.namespace, job.queue)
        tally = self._tallies.get(door.cluster_queue) if door is not None else None
        if door is None or tally is None:
            return self._strangers.setdefault(job.queue, _Tally()), Counter()
        return tally, tally.doors.get(door, Counter())

    def report(self) -> QuotaUse:
        return QuotaUse(
            queues=tuple(self._queue(queue) for queue in self._quota.cluster_queues),
            cohorts=tuple(self._cohort(node) for node in self._tree.cohorts.values()),
            strangers=tuple(
                replace(tally.use_of(ClusterQueue(name)), set_up=False)
                for name, tally in sorted(self._strangers.items())
            ),
        )

    def _queue(self, queue: ClusterQueue) -> QueueUse:
        node, tally = self._tree.queues[queue.name], self._tallies[queue.name]
        return replace(
            tally.use_of(queue),
            flavors=tuple(
                self._flavor_usage(node, self._tree.fr_number[fr], limits, limits.nominal, [tally])
                for fr, limits in flavor_resources_of(queue.groups)
            ),
            needs=_needs(queue, tally.waiting),
            share=self._share(node),
            doors=tuple(DoorUse(door, by[False], by[True]) for door, by in tally.doors.items()),
            leaving=queue.name in self._quota.leaving,
            misconfigured=self._misconfigured(queue),
        )

    def _cohort(self, node: Node) -> CohortUse:
        family = list(node.below())
        tallies = [self._tallies[one.name] for one in family if one.is_queue]
        frs = dict.fromkeys(fr for one in family for fr in one.limits)
        return CohortUse(
            name=node.name,
            parent="" if node.parent is None else node.parent.name,
            weight=node.weight,
            flavors=tuple(
                self._flavor_usage(
                    node,
                    fr,
                    node.limits.get(fr, _NO_LIMITS),
                    sum(one.limits.get(fr, _NO_LIMITS).nominal for one in family),
                    tallies,
                )
                for fr in frs
            ),
            running=sum(len(tally.holders) for tally in tallies),
            pending=sum(len(tally.waiting) for tally in tallies),
            share=self._share(node),
        )

    def _flavor_usage(self, node: Node, fr: int, limits: Limits, total: int, tallies: list[_Tally]) -> FlavorUsage:
        return FlavorUsage(
            flavor_resource=self._tree.frs[fr],
            limits=limits,
            total=total,
            used=sum(tally.used.get(fr, 0) for tally in tallies),
            reserved=sum(tally.reserved.get(fr, 0) for tally in tallies),
            borrowed=borrowed_by(node, fr),
            lent=self._lent[node].get(fr, 0),
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


def _needs(queue: ClusterQueue, waiting: Iterable[Job]) -> tuple[tuple[str, int], ...]:
    resources = [resource for group in queue.groups for resource in group.resources]
    needs = Counter[str]()
    for job in waiting:
        for resource in resources:
            needs[resource] += demand(job, resource, job.min)
    return tuple((resource, needs[resource]) for resource in resources if needs[resource])


def flavors_held(world: World) -> dict[JobId, Flavors]:
    """By job that has GPUs: the flavors that it was given, or those of its nodes if it came before quota."""
    quota, jobs = world.effective_quota, world.jobs
    if not quota:
        return {}
    found, rows = dict(world.flavors), np.flatnonzero(jobs.held).tolist()
    if len(rows) <= len(found):
        return found
    asks = QuotaRequests(world, QuotaTree(quota))
    for row in rows:
        job = jobs.jobs[row]
        if job.id not in found:
            way = quota.way(job.namespace, job.queue)
            if way is not None and way.cluster_queue in quota.queue_of:
                found[job.id] = asks.found(row, way.cluster_queue)
    return found
