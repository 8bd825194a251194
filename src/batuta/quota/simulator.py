"""A simulator of quota: workloads come and go, quota changes, and each step says which workload has what.

No time: a workload that has quota keeps it until it ends or is preempted, and jobs are rigid. Nodes only
say what quotas leave to the queue `default`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from batuta.core.cluster import Node
from batuta.core.node_table import NodeTable
from batuta.core.quota import (
    DEFAULT_QUEUE,
    EffectiveQuota,
    FlavorResource,
    LocalQueue,
    Quota,
    StopPolicy,
    Strategy,
    counts_gpus,
    effective_quota,
    flavor_resources_of,
    rest_of,
)
from batuta.quota.cycle import Scheduler
from batuta.quota.nominal_quota import PendingQueue
from batuta.quota.preemption import PreemptionTarget
from batuta.quota.reasons import Refusal, Why
from batuta.quota.snapshot import QuotaState
from batuta.quota.workload import PodSet, Workload, resolve_queue

_NAME_LABEL = "kubernetes.io/metadata.name"  # the label that every namespace has; others are not known here
_DEFAULT_NAMESPACE = "default"
_BEHIND = Refusal(Why.PENDING_EVALUATION, "stands behind another one that cannot start yet")


@dataclass(slots=True)
class _Work:
    """A workload. While it has quota, `queue` and `usage` say where and how much."""

    name: str
    namespace: str
    local_queue: str
    pod_sets: tuple[PodSet, ...]
    priority: int
    active: bool
    place: int
    queue: str = ""
    usage: dict[FlavorResource, int] = field(default_factory=dict)
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
class QuotaStatus:
    """Who has quota in which flavors, who lost it in this step, and who waits."""

    admitted: Mapping[str, Mapping[str, str]]
    preempted: tuple[Evicted, ...]
    pending: Mapping[str, Waiting]


class QuotaSimulator:
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
    ) -> QuotaStatus:
        """A workload asks for quota. One that is not active only stands there."""
        if name in self._works:
            raise ValueError(f"there is a workload {name} already")
        self._count += 1
        work = _Work(name, namespace, queue, pod_sets, priority, active, self._count)
        self._works[name] = work
        if not active:
            self._evicted.append(Evicted(name, "Deactivated"))
        return self._settle()

    def finish(self, name: str) -> QuotaStatus:
        """A workload ends, or is removed."""
        del self._works[self._known(name)]
        return self._settle()

    def patch(
        self, name: str, active: bool | None = None, priority: int | None = None, queue: str | None = None
    ) -> QuotaStatus:
        """It gets another priority, is (de)activated, or goes to another queue, if it has no quota yet."""
        work = self._works[self._known(name)]
        if queue is not None and not work.queue:
            work.local_queue = queue
        if priority is not None:
            work.priority = priority
        if active is not None and active != work.active:
            work.active = active
            if not active:
                self._evict(work, Evicted(name, "Deactivated"))
        return self._settle()

    def change(self, quota: Quota) -> QuotaStatus:
        """Quota is another one from now on; queues that are gone but have workloads start nothing."""
        busy = {work.queue for work in self._works.values() if work.queue}
        stay = quota.queue_of.keys() | ({DEFAULT_QUEUE} if rest_of(self._quota) else set())
        gone = [queue for queue in self._quota.cluster_queues if queue.name in busy and queue.name not in stay]
        leaving = tuple(queue.name for queue in gone)
        self._quota = self._holding(replace(quota, cluster_queues=(*quota.cluster_queues, *gone), leaving=leaving))
        return self._settle()

    def _holding(self, quota: Quota) -> Quota:
        if not self._nodes.nodes:
            return quota
        named = (fr.resource for queue in quota.cluster_queues for fr, _ in flavor_resources_of(queue.groups))
        resource = next(filter(counts_gpus, named), "nvidia.com/gpu")
        return effective_quota(quota, self._nodes, resource=resource)

    def _local_queue(self, work: _Work) -> LocalQueue | None:
        """The local queue that a workload names; one that names `default` may have what quotas leave."""
        found = self._quota.door(work.namespace, work.local_queue)
        if found is None and work.local_queue == DEFAULT_QUEUE and isinstance(self._quota, EffectiveQuota):
            return self._quota.way(work.namespace, work.local_queue)
        return found

    def standing(self) -> QuotaStatus:
        """How things stand, without a step."""
        return self._settle()

    def _known(self, name: str) -> str:
        if name not in self._works:
            raise ValueError(f"there is no workload {name}")
        return name

    def _evict(self, work: _Work, why: Evicted) -> None:
        work.queue, work.usage, work.flavors = "", {}, ()
        self._evicted.append(why)

    def _settle(self) -> QuotaStatus:
        quota = self._quota
        self._refusals = {}
        state = QuotaState(quota)
        workloads: dict[Hashable, Workload] = {}
        pending_queues = {
            queue.name: PendingQueue(
                state.tree.queues[queue.name],
                queue.strategy is Strategy.STRICT_FIFO,
                workloads.__getitem__,
                lambda key: workloads[key].shape,
            )
            for queue in quota.cluster_queues
        }
        scheduler = Scheduler(state, pending_queues)
        for work in self._works.values():
            if work.queue and (why := self._stopped(work)):
                self._evict(work, Evicted(work.name, why))
            if work.queue:
                workload = workloads[work.name] = self._workload(state, work, work.queue)
                workload.flavors = work.flavors
                usage = {state.tree.number(fr): amount for fr, amount in work.usage.items()}
                state.book(workload, usage, work.since)
            elif work.active:
                self._wait(state, scheduler, work, workloads)
            else:
                self._refusals[work.name] = ("", Refusal(Why.SUSPENDED, "is not active"))

        def preempt(target: PreemptionTarget, by: Workload) -> None:
            work = self._works[str(target.workload.key)]
            self._evict(work, Evicted(work.name, "Preempted", target.reason.value, str(by.key)))
            self._wait(state, scheduler, work, workloads)

        scheduler.settle(lambda workload: self._admit(state, workload), preempt)
        for key, refusal in scheduler.refusals.items():
            self._refusals[str(key)] = (workloads[key].queue.name, refusal)
        evicted, self._evicted = tuple(sorted(self._evicted, key=lambda one: one.workload)), []
        return self._tell(evicted)

    def _stopped(self, work: _Work) -> str:
        """Why its queue, or the local queue it came through, does not let it go on; empty if both do."""
        queue = self._quota.queue_of.get(work.queue)
        local = self._local_queue(work)
        if queue is not None and queue.stop is StopPolicy.HOLD_AND_DRAIN:
            return "ClusterQueueStopped"
        return "LocalQueueStopped" if local is not None and local.stop is StopPolicy.HOLD_AND_DRAIN else ""

    def _wait(self, state: QuotaState, scheduler: Scheduler, work: _Work, workloads: dict[Hashable, Workload]) -> None:
        """Puts a workload in its pending queue, unless that is stopped: it may have been preempted there."""
        resolved = resolve_queue(self._quota, self._local_queue(work), work.local_queue)
        refusal = resolved.refusal or self._refuse_namespace(resolved.queue, work.namespace or _DEFAULT_NAMESPACE)
        if refusal is not None:
            self._refusals[work.name] = (resolved.queue, refusal)
            return
        workload = workloads.get(work.name)
        if workload is None or workload.queue.name != resolved.queue:
            workload = workloads[work.name] = self._workload(state, work, resolved.queue)
        scheduler.put(workload)

    def _refuse_namespace(self, queue: str, namespace: str) -> Refusal | None:
        selector = self._quota.queue_of[queue].namespaces
        if selector is not None and selector.selects({_NAME_LABEL: namespace}):
            return None
        return Refusal(Why.MISCONFIGURED, f"cluster queue {queue} takes no workloads of namespace {namespace}")

    def _workload(self, state: QuotaState, work: _Work, queue: str) -> Workload:
        return Workload(work.name, state.tree.queues[queue], work.pod_sets, work.priority, work.place)

    def _admit(self, state: QuotaState, workload: Workload) -> None:
        work = self._works[str(workload.key)]
        self._count += 1
        work.queue, work.flavors, work.since = workload.queue.name, workload.flavors, self._count
        workload.since = work.since
        work.usage = {state.tree.frs[fr]: amount for fr, amount in workload.usage.items()}

    def _tell(self, evicted: tuple[Evicted, ...]) -> QuotaStatus:
        admitted = {work.name: dict(work.flavors) for work in self._works.values() if work.queue}
        pending: dict[str, Waiting] = {}
        for work in self._works.values():
            if not work.queue:
                queue, refusal = self._refusals.get(work.name, ("", _BEHIND))
                pending[work.name] = Waiting(refusal.why.value, refusal.message(queue))
        return QuotaStatus(admitted, evicted, pending)
