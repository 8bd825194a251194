"""Quota tried out: workloads come and go, quota changes, and after each step it is told who has what.

No time: a workload that has quota keeps it until it ends or is pushed aside, and jobs are rigid. Nodes only
say what quotas leave to the queue `default`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from batuta.core.cluster import Node
from batuta.core.node_table import NodeTable
from batuta.core.quota import (
    DEFAULT_QUEUE,
    Cell,
    EffectiveQuota,
    LocalQueue,
    Quota,
    StopPolicy,
    cells_of,
    counts_gpus,
    effective_quota,
    rest_of,
)
from batuta.quota.claim import Claim, PodSet
from batuta.quota.doors import open_door
from batuta.quota.ledger import Ledger
from batuta.quota.lines import Lines, Pushed
from batuta.quota.refusal import Refusal, Why

_NAME_LABEL = "kubernetes.io/metadata.name"
"""The label that every namespace has; others are not known here."""
_DEFAULT_NAMESPACE = "default"
_BEHIND = Refusal(Why.PENDING_EVALUATION, "stands behind another one that cannot start yet")


@dataclass(slots=True)
class _Work:
    """A workload. While it has quota, `queue` and `usage` say where and how much."""

    name: str
    namespace: str
    door: str
    pod_sets: tuple[PodSet, ...]
    priority: int
    active: bool
    place: tuple[float, int]
    queue: str = ""
    usage: dict[Cell, int] = field(default_factory=dict)
    flavors: tuple[tuple[str, str], ...] = ()
    since: int = 0


@dataclass(frozen=True, slots=True)
class Evicted:
    """A workload that lost its quota, by Kueue's words for the reason."""

    workload: str
    reason: str
    preemption: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a workload has no quota, by Kueue's name and in numbers."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Who has quota in which flavors, who lost it in this step, and who waits."""

    admitted: Mapping[str, Mapping[str, str]]
    preempted: tuple[Evicted, ...]
    pending: Mapping[str, Waiting]


class Trial:
    """A cluster of quota alone."""

    def __init__(self, quota: Quota, nodes: Iterable[Node] = ()) -> None:
        """Without nodes there is no queue `default` but a declared one."""
        self._nodes = NodeTable()
        for node in nodes:
            self._nodes.add(node)
        self._quota = self._holding(quota)
        self._works: dict[str, _Work] = {}
        self._count = 0
        self._refusals: dict[str, tuple[str, Refusal]] = {}
        self._evicted: list[Evicted] = []

    def submit(
        self,
        name: str,
        queue: str,
        pod_sets: tuple[PodSet, ...],
        priority: int = 0,
        active: bool = True,
        namespace: str = "",
    ) -> Standing:
        """A workload asks for quota. One that is not active only stands there."""
        if name in self._works:
            raise ValueError(f"there is a workload {name} already")
        self._count += 1
        work = _Work(name, namespace, queue, pod_sets, priority, active, (float(self._count), 0))
        self._works[name] = work
        if not active:
            self._evicted.append(Evicted(name, "Deactivated"))
        return self._settle()

    def finish(self, name: str) -> Standing:
        """A workload ends, or is removed."""
        del self._works[self._known(name)]
        return self._settle()

    def patch(
        self, name: str, active: bool | None = None, priority: int | None = None, queue: str | None = None
    ) -> Standing:
        """It gets another priority, is (de)activated, or goes to another queue, if it has no quota yet."""
        work = self._works[self._known(name)]
        if queue is not None and not work.queue:
            work.door = queue
        if priority is not None:
            work.priority = priority
        if active is not None and active != work.active:
            work.active = active
            if not active:
                self._evict(work, Evicted(name, "Deactivated"))
        return self._settle()

    def change(self, quota: Quota) -> Standing:
        """Quota is another one from now on; queues that are gone but have workloads start nothing."""
        busy = {work.queue for work in self._works.values() if work.queue}
        gone = [
            queue
            for queue in self._quota.cluster_queues
            if queue.name in busy and queue.name not in quota.queue_of and not self._is_rest(queue.name)
        ]
        leaving = tuple(queue.name for queue in gone)
        self._quota = self._holding(
            replace(quota, cluster_queues=(*quota.cluster_queues, *gone), leaving=leaving)
        )
        return self._settle()

    def _is_rest(self, queue: str) -> bool:
        return queue == DEFAULT_QUEUE and bool(rest_of(self._quota))

    def _holding(self, quota: Quota) -> Quota:
        if not self._nodes.nodes:
            return quota
        named = (cell.resource for queue in quota.cluster_queues for cell, _ in cells_of(queue.groups))
        resource = next(filter(counts_gpus, named), "nvidia.com/gpu")
        return effective_quota(quota, self._nodes, resource=resource)

    def _local_queue(self, work: _Work) -> LocalQueue | None:
        """The local queue that a workload names; one that names `default` may have what quotas leave."""
        found = self._quota.door(work.namespace, work.door)
        if found is None and work.door == DEFAULT_QUEUE and isinstance(self._quota, EffectiveQuota):
            return self._quota.way(work.namespace, work.door)
        return found

    def standing(self) -> Standing:
        """How things stand, without a step."""
        return self._settle()

    def _known(self, name: str) -> str:
        if name not in self._works:
            raise ValueError(f"there is no workload {name}")
        return name

    def _evict(self, work: _Work, why: Evicted) -> None:
        work.queue, work.usage, work.flavors = "", {}, ()
        self._evicted.append(why)

    def _settle(self) -> Standing:
        quota = self._quota
        self._refusals = {}
        ledger = Ledger(quota)
        lines = Lines(ledger)
        claims: dict[str, Claim] = {}
        for work in self._works.values():
            if work.queue and (why := self._stopped(work)):
                self._evict(work, Evicted(work.name, why))
            if work.queue:
                claim = claims[work.name] = self._claim(ledger, work, work.queue)
                claim.flavors = work.flavors
                usage = {ledger.tree.number(cell): amount for cell, amount in work.usage.items()}
                ledger.book(claim, usage, work.since)
            elif work.active:
                self._wait(ledger, lines, work, claims)
            else:
                self._refusals[work.name] = ("", Refusal(Why.SUSPENDED, "is not active"))

        def push(pushed: Pushed) -> None:
            work, by = self._works[str(pushed.claim.key)], str(pushed.by.key)
            self._evict(work, Evicted(work.name, "Preempted", pushed.cause.value, by))
            self._wait(ledger, lines, work, claims)

        lines.settle(lambda claim: self._admit(ledger, claim), push)
        for key, refusal in lines.refusals.items():
            self._refusals[str(key)] = (claims[str(key)].queue.name, refusal)
        evicted, self._evicted = tuple(sorted(self._evicted, key=lambda one: one.workload)), []
        return self._tell(evicted)

    def _stopped(self, work: _Work) -> str:
        """Why its queue, or the door it came through, does not let it go on; empty if both do."""
        queue = self._quota.queue_of.get(work.queue)
        door = self._local_queue(work)
        if queue is not None and queue.stop is StopPolicy.HOLD_AND_DRAIN:
            return "ClusterQueueStopped"
        return "LocalQueueStopped" if door is not None and door.stop is StopPolicy.HOLD_AND_DRAIN else ""

    def _wait(self, ledger: Ledger, lines: Lines, work: _Work, claims: dict[str, Claim]) -> None:
        """Puts a workload in line, if the way there is open: it may have been pushed out of a held queue."""
        door = open_door(self._quota, self._local_queue(work), work.door)
        refusal = door.refusal or self._refuse_namespace(door.queue, work.namespace or _DEFAULT_NAMESPACE)
        if refusal is not None:
            self._refusals[work.name] = (door.queue, refusal)
            return
        claim = claims.get(work.name)
        if claim is None or claim.queue.name != door.queue:
            claim = claims[work.name] = self._claim(ledger, work, door.queue)
        lines.put(claim)

    def _refuse_namespace(self, queue: str, namespace: str) -> Refusal | None:
        selector = self._quota.queue_of[queue].namespaces
        if selector is not None and selector.selects({_NAME_LABEL: namespace}):
            return None
        return Refusal(
            Why.MISCONFIGURED, f"cluster queue {queue} takes no workloads of namespace {namespace}"
        )

    def _claim(self, ledger: Ledger, work: _Work, queue: str) -> Claim:
        return Claim(work.name, ledger.tree.queues[queue], work.pod_sets, work.priority, work.place)

    def _admit(self, ledger: Ledger, claim: Claim) -> None:
        work = self._works[str(claim.key)]
        self._count += 1
        work.queue, work.flavors, work.since = claim.queue.name, claim.flavors, self._count
        claim.since = work.since
        work.usage = {ledger.tree.cells[cell]: amount for cell, amount in claim.usage.items()}

    def _tell(self, evicted: tuple[Evicted, ...]) -> Standing:
        admitted = {work.name: dict(work.flavors) for work in self._works.values() if work.queue}
        pending: dict[str, Waiting] = {}
        for work in self._works.values():
            if not work.queue:
                queue, refusal = self._refusals.get(work.name, ("", _BEHIND))
                pending[work.name] = Waiting(refusal.why.value, refusal.message(queue))
        return Standing(admitted, evicted, pending)
