"""The status of queues as Kueue writes it: how many wait, how many run, and what they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from batuta.backends.kube.kueue.condition import Said
from batuta.core.quota import LocalQueue, StopPolicy
from batuta.quota.demand import demand
from batuta.quota.use import DoorUse, JobUse, QueueUse
from batuta.spec.quantity import show_milli

ACTIVE: Final = "Active"
_MEMORY: Final = "memory"
Door = tuple[str, str]
"""Namespace and name of a local queue."""


def cluster_queue_status(use: QueueUse) -> dict[str, Any]:
    """Without its conditions."""
    by_flavor: dict[str, list[dict[str, str]]] = {}
    for cell in use.cells:
        shown = {"name": cell.cell.resource, "total": _show(cell.cell.resource, cell.used)}
        shown["borrowed"] = _show(cell.cell.resource, max(cell.used - cell.limits.nominal, 0))
        by_flavor.setdefault(cell.cell.flavor, []).append(shown)
    usage = [{"name": flavor, "resources": resources} for flavor, resources in by_flavor.items()]
    return {
        "pendingWorkloads": len(use.waiting),
        "reservingWorkloads": use.running,
        "admittedWorkloads": use.running,
        "flavorsReservation": usage,
        "flavorsUsage": usage,
    }


def local_queue_status(
    door: DoorUse, queue: QueueUse, used: Mapping[tuple[str, str], int], version: str
) -> dict[str, Any]:
    """Without its conditions. `used`: thousandths by flavor and resource."""
    by_flavor: dict[str, list[dict[str, str]]] = {}
    for cell in queue.cells:
        flavor, resource = cell.cell.flavor, cell.cell.resource
        total = _show(resource, used.get((flavor, resource), 0))
        by_flavor.setdefault(flavor, []).append({"name": resource, "total": total})
    usage = [{"name": flavor, "resources": resources} for flavor, resources in by_flavor.items()]
    return {
        "pendingWorkloads": door.pending,
        "reservingWorkloads": door.running,
        "admittedWorkloads": door.running,
        "flavorsReservation": usage,
        "flavorUsage" if version == "v1beta1" else "flavorsUsage": usage,
    }


def is_active(use: QueueUse) -> Said:
    """Whether a cluster queue starts jobs, and if not, why."""
    if use.queue.stop is not StopPolicy.NONE:
        return Said(ACTIVE, False, "Stopped", "Can't admit new workloads: is stopped")
    if use.misconfigured:
        return Said(ACTIVE, False, "FlavorNotFound", f"Can't admit new workloads: {use.misconfigured}")
    return Said(ACTIVE, True, "Ready", "Can admit new workloads")


def is_open(door: LocalQueue, queue: QueueUse | None) -> Said:
    """The same for a local queue."""
    if door.stop is not StopPolicy.NONE:
        return Said(ACTIVE, False, "Stopped", "LocalQueue is stopped")
    if queue is None:
        text = f"Can't submit new workloads to clusterQueue {door.cluster_queue}: it is not there"
        return Said(ACTIVE, False, "ClusterQueueDoesNotExist", text)
    if not is_active(queue).is_true:
        return Said(ACTIVE, False, "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")
    return Said(ACTIVE, True, "Ready", "Can submit new workloads to localQueue")


def used_by_door(jobs: Iterable[JobUse]) -> dict[Door, Counter[tuple[str, str]]]:
    """What the jobs of each local queue use, by flavor and resource."""
    found: dict[Door, Counter[tuple[str, str]]] = {}
    for one in jobs:
        if one.gpus:
            used = found.setdefault((one.job.namespace, one.job.queue), Counter())
            for resource, flavor in one.flavors:
                used[flavor, resource] += demand(one.job, resource, one.gpus)
    return found


def _show(resource: str, milli: int) -> str:
    return show_milli(milli, is_bytes=resource == _MEMORY)
