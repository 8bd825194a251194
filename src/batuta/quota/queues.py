"""Queue resolution, from the name in a job to its cluster queue, and the queues of pending workloads."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from batuta.core.quota import DEFAULT_QUEUE, EffectiveQuota, LocalQueue, Quota, StopPolicy
from batuta.core.world import World
from batuta.quota.reasons import Refusal, Why
from batuta.quota.workload import QuotaRequest, Workload


class ResolvedQueue(NamedTuple):
    """The cluster queue of a job; with a refusal nothing new starts there now."""

    queue: str
    refusal: Refusal | None = None
    drains: bool = False
    """What runs there has to leave."""


def resolve_queues(
    world: World, known: dict[tuple[str, str], ResolvedQueue | None]
) -> list[ResolvedQueue | None]:
    """Return, by the number of a queue that jobs name, the cluster queue that it leads to.

    None for jobs that quota does not concern: they name no queue, and quota limits no job's GPUs. What is
    found out is entered into `known`, by namespace and name.
    """
    quota = world.effective_quota
    is_limited = isinstance(quota, EffectiveQuota)
    for namespace, name in world.jobs.queues:
        if (namespace, name) not in known:
            way = quota.way(namespace, name)
            concerned = way is not None or is_limited or name != DEFAULT_QUEUE
            known[namespace, name] = resolve_queue(quota, way, name) if concerned else None
    return [known[way] for way in world.jobs.queues]


def resolve_queue(quota: Quota, way: LocalQueue | None, name: str) -> ResolvedQueue:
    """Where a job gets that names a queue, by the local queue that was found for it."""
    if way is None:
        return ResolvedQueue("", Refusal(Why.MISCONFIGURED, f"there is no queue {name}"))
    queue = quota.queue_of.get(way.cluster_queue)
    if queue is None:
        text = f"queue {name} leads to the cluster queue {way.cluster_queue}, which is not there"
        return ResolvedQueue("", Refusal(Why.MISCONFIGURED, text))
    drains = StopPolicy.HOLD_AND_DRAIN in (queue.stop, way.stop)
    missing = dict.fromkeys(
        one.flavor for group in queue.groups for one in group.flavors if one.flavor not in quota.flavor_of
    )
    if missing:
        text = f"cluster queue {queue.name} has quota in flavors that are not there: {', '.join(missing)}"
        return ResolvedQueue(queue.name, Refusal(Why.MISCONFIGURED, text), drains)
    if queue.name in quota.leaving:
        return ResolvedQueue(
            queue.name, Refusal(Why.SUSPENDED, f"cluster queue {queue.name} is being removed"), drains
        )
    if queue.stop is not StopPolicy.NONE:
        return ResolvedQueue(
            queue.name, Refusal(Why.SUSPENDED, f"cluster queue {queue.name} is held"), drains
        )
    if way.stop is not StopPolicy.NONE:
        return ResolvedQueue(queue.name, Refusal(Why.SUSPENDED, f"queue {name} is held"), drains)
    return ResolvedQueue(queue.name)


class Prechecks(Protocol):
    """Finds workloads that cannot be admitted now, where that takes no search."""

    def reset(self) -> None: ...

    def why_inadmissible(self, row: int) -> Refusal | None: ...


@dataclass(slots=True)
class PendingQueue:
    """The workloads that wait in one cluster queue; inadmissible ones stay aside until quota is released."""

    strict: bool
    prechecks: Prechecks | None = None
    waiting: list[tuple[tuple[int, float, int], int, Workload]] = field(default_factory=list)
    inadmissible: dict[Hashable, Workload] = field(default_factory=dict)
    refused: dict[Hashable, tuple[int, Refusal]] = field(default_factory=dict)
    """By shape: the priority that was refused since something was given back, and why."""
    asked: dict[QuotaRequest, tuple[int, Refusal]] = field(default_factory=dict)
    """The same by request, of those who were nominated."""
    nominated: set[Hashable] = field(default_factory=set)
    """Those who have been at the head of the queue: prechecks are for the others."""
    first: Workload | None = None
    """The workload for which others were just preempted: it goes first, before a third one takes that."""

    def put(self, workload: Workload) -> None:
        heapq.heappush(self.waiting, (workload.order, id(workload), workload))

    def __len__(self) -> int:
        return len(self.waiting)

    def pop(self) -> Workload | None:
        return heapq.heappop(self.waiting)[2] if self.waiting else None

    def refuse(self, workload: Workload, refusal: Refusal) -> None:
        """Remembers what was said to this one, for others just like it."""
        self.refused[workload.shape] = (workload.priority, refusal)
        if workload.request is not None:
            self.asked[workload.request] = workload.priority, refusal

    def why_inadmissible(self, workload: Workload) -> Refusal | None:
        """Why a workload need not be nominated: one like it, or one that asks for less, was refused."""
        known = self.refused.get(workload.shape)
        request = workload.request
        if known is None and request is not None and workload.key not in self.nominated:
            known = self._precheck(workload, request)
            if known is not None:
                self.refused[workload.shape] = known
        return known[1] if known is not None and workload.priority <= known[0] else None

    def _precheck(self, workload: Workload, request: QuotaRequest) -> tuple[int, Refusal] | None:
        found = None if self.prechecks is None else self.prechecks.why_inadmissible(workload.row)
        if found is not None:
            return workload.priority, found
        for other, (least, refusal) in self.asked.items():
            if workload.priority <= least and request.requests_no_less_than(other):
                return least, request.as_its_own(refusal)
        return None

    def wake(self) -> None:
        """Quota was released: every workload is looked at again."""
        for _, _, workload in self.waiting:
            # A flavor that its search has passed may be free now.
            workload.tried = ()
        for workload in self.inadmissible.values():
            self.put(workload)
        self.inadmissible.clear()
        self.refused.clear()
        self.asked.clear()
