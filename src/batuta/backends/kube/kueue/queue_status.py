"""Write the status of ClusterQueues and LocalQueues in a cluster where Kueue itself does not run."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.kueue.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, ConditionUpdate, KueueObject, truths, updated
from batuta.backends.kube.kueue.quota_controller import QuotaObjects
from batuta.backends.kube.kueue.workload_cache import patch_object
from batuta.backends.kube.operator.workqueue import AskFn, Changed, Written
from batuta.core.quota import LocalQueue, StopPolicy
from batuta.quota.usage import DoorUse, JobUse, QueueUse, QuotaUse
from batuta.quota.workload import demand
from batuta.spec.quantity import show_milli

ACTIVE: Final = "Active"
_MEMORY: Final = "memory"
LocalQueueKey = tuple[str, str]
EVERY_S: Final = 1.0  # queues are not looked at more often than this, …
SPARING: Final = 20  # … and no more than this fraction of the time goes into it
REPAIR_S: Final = 10.0  # a status that another client has overwritten is not written again sooner than this
PREFIX: Final = "kueue//queue/"
Place: TypeAlias = tuple[Kind[KueueObject], str]
Wanted: TypeAlias = tuple[dict[str, Any], ConditionUpdate]
MeasureUsage: TypeAlias = Callable[[], tuple[QuotaUse, Mapping[LocalQueueKey, Mapping[tuple[str, str], int]]]]
"""What is used now, also by each local queue."""


def cluster_queue_status(use: QueueUse) -> dict[str, Any]:
    by_flavor: dict[str, list[dict[str, str]]] = {}
    for cell in use.flavors:
        flavor, resource = cell.flavor_resource
        borrowed = _show(resource, max(cell.used - cell.limits.nominal, 0))
        shown = {"name": resource, "total": _show(resource, cell.used), "borrowed": borrowed}
        by_flavor.setdefault(flavor, []).append(shown)
    return _status(len(use.waiting), use.running, by_flavor, "flavorsUsage")


def local_queue_status(
    door: DoorUse, queue: QueueUse, used: Mapping[tuple[str, str], int], version: str
) -> dict[str, Any]:
    """Without its conditions. `used`: thousandths by flavor and resource."""
    by_flavor: dict[str, list[dict[str, str]]] = {}
    for cell in queue.flavors:
        flavor, resource = cell.flavor_resource
        total = _show(resource, used.get((flavor, resource), 0))
        by_flavor.setdefault(flavor, []).append({"name": resource, "total": total})
    return _status(door.pending, door.running, by_flavor, "flavorUsage" if version == "v1beta1" else "flavorsUsage")


def _status(pending: int, running: int, by_flavor: Mapping[str, list[dict[str, str]]], key: str) -> dict[str, Any]:
    usage = [{"name": flavor, "resources": resources} for flavor, resources in by_flavor.items()]
    counts = {"pendingWorkloads": pending, "reservingWorkloads": running, "admittedWorkloads": running}
    return {**counts, "flavorsReservation": usage, key: usage}


def cluster_queue_condition(use: QueueUse) -> ConditionUpdate:
    if use.queue.stop is not StopPolicy.NONE:
        return ConditionUpdate(ACTIVE, False, "Stopped", "Can't admit new workloads: is stopped")
    if use.misconfigured:
        return ConditionUpdate(ACTIVE, False, "FlavorNotFound", f"Can't admit new workloads: {use.misconfigured}")
    return ConditionUpdate(ACTIVE, True, "Ready", "Can admit new workloads")


def local_queue_condition(door: LocalQueue, queue: QueueUse | None) -> ConditionUpdate:
    if door.stop is not StopPolicy.NONE:
        return ConditionUpdate(ACTIVE, False, "Stopped", "LocalQueue is stopped")
    if queue is None:
        text = f"Can't submit new workloads to clusterQueue {door.cluster_queue}: it is not there"
        return ConditionUpdate(ACTIVE, False, "ClusterQueueDoesNotExist", text)
    if not cluster_queue_condition(queue).is_true:
        return ConditionUpdate(ACTIVE, False, "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")
    return ConditionUpdate(ACTIVE, True, "Ready", "Can submit new workloads to localQueue")


def usage_by_local_queue(jobs: Iterable[JobUse]) -> dict[LocalQueueKey, Counter[tuple[str, str]]]:
    found: dict[LocalQueueKey, Counter[tuple[str, str]]] = {}
    for one in jobs:
        if one.gpus:
            used = found.setdefault((one.job.namespace, one.job.queue), Counter())
            for resource, flavor in one.flavors:
                used[flavor, resource] += demand(one.job, resource, one.gpus)
    return found


def _show(resource: str, milli: int) -> str:
    return show_milli(milli, is_bytes=resource == _MEMORY)


@dataclass(slots=True, eq=False)
class QueueStatusController:
    """Told when something may be used otherwise; looks from time to time. For the engine's thread."""

    _ask: AskFn
    _objects: QuotaObjects
    _look: MeasureUsage
    _is_stale: bool = False
    _look_s: float = -math.inf
    _kinds: dict[Any, Kind[KueueObject]] = field(default_factory=dict)
    _wanted: dict[Place, Wanted] = field(default_factory=dict)
    _written: dict[Place, tuple[Wanted, float]] = field(default_factory=dict)
    _is_dirty: bool = False
    _due_s: float = math.inf

    def doubt(self) -> None:
        self._is_stale = True

    def _measure(self) -> None:
        queues, doors = self._kinds.get(CLUSTER_QUEUE), self._kinds.get(LOCAL_QUEUE)
        if queues is None or doors is None:
            return
        use, used = self._look()
        wanted: dict[Place, Wanted] = {}
        for queue in use.queues:
            wanted[queues, queue.queue.name] = cluster_queue_status(queue), cluster_queue_condition(queue)
            for one in queue.doors:
                door = one.door
                said = local_queue_condition(door, queue)
                status = local_queue_status(one, queue, used.get((door.namespace, door.name), {}), doors.version)
                wanted[doors, f"{door.namespace}/{door.name}"] = status, said
        self._is_dirty = self._is_dirty or wanted != self._wanted
        self._wanted = wanted

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind in (CLUSTER_QUEUE, LOCAL_QUEUE):
            self._is_dirty = True
            if changed.version:
                self._kinds[changed.kind] = replace(changed.kind, version=changed.version)

    def heard(self, written: Written, now_s: float) -> None:
        if written.key.startswith(PREFIX):
            self._is_dirty = True
            if written.error is not None:
                self._written.clear()

    def next_s(self) -> float:
        return min(self._due_s, self._look_s if self._is_stale else math.inf)

    def drive(self, now_s: float) -> None:
        if self._is_stale and now_s >= self._look_s:
            self._is_stale, began_s = False, time.perf_counter()
            self._measure()
            self._look_s = now_s + max(EVERY_S, SPARING * (time.perf_counter() - began_s))
        if self._is_dirty or now_s >= self._due_s:
            self._is_dirty, self._due_s = False, math.inf
            for place, wanted in self._wanted.items():
                if not self._is_shown(place, *wanted):
                    self._write(place, wanted, now_s)

    def _there(self, place: Place) -> KueueObject | None:
        kind, key = place
        return self._objects.all_of(CLUSTER_QUEUE if not kind.namespaced else LOCAL_QUEUE).get(key)

    def _is_shown(self, place: Place, status: Mapping[str, Any], said: ConditionUpdate) -> bool:
        there = self._there(place)
        if there is None:
            return True
        if (ACTIVE, str(said.is_true), said.reason) not in truths(there.status.get("conditions")):
            return False
        # The API server leaves zeros and empty lists out of a status.
        return all((there.status.get(key) or type(value)()) == value for key, value in status.items())

    def _write(self, place: Place, wanted: Wanted, now_s: float) -> None:
        there, (status, said) = self._there(place), wanted
        assert there is not None
        before, at_s = self._written.get(place, (None, -math.inf))
        if before == wanted and now_s < at_s + REPAIR_S:
            self._due_s = min(self._due_s, at_s + REPAIR_S)
            return
        meta, kind = there.metadata, place[0]
        body = {"status": {**status, "conditions": updated(there, (said,), now_s)}}
        do = partial(patch_object, kind, meta.name, meta.namespace, body, "status")
        if self._ask(f"{PREFIX}{kind.plural}/{place[1]}", do, now_s):
            self._written[place] = wanted, now_s
        else:
            self._due_s = min(self._due_s, now_s + EVERY_S)
