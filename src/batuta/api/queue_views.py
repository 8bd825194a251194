"""Queues and cohorts as the JSON objects that the API returns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from batuta.api.snapshot import WorldSnapshot
from batuta.api.views import JsonObject, filled, view_decision
from batuta.apitypes import queues as q
from batuta.core.job import Job
from batuta.core.quota import ALL_GPUS, MILLI, NO_LIMIT, ClusterQueue, StopPolicy, counts_gpus, rest_of, tell_rest
from batuta.quota.reasons import quota_reserved
from batuta.quota.usage import FlavorUsage, JobUse, QueueUse
from batuta.spec.task_job import DEFAULT_QUEUE

ALL = "*"
_STOPPED = {
    StopPolicy.HOLD: ("held", "it is stopped: nothing starts, what runs goes on"),
    StopPolicy.HOLD_AND_DRAIN: ("draining", "it is stopped: nothing starts, and what runs leaves"),
}


def view_queues(snapshot: WorldSnapshot) -> JsonObject:
    return {
        "queues": [view_queue(snapshot, one) for one in queues_of(snapshot)],
        "cohorts": [filled(q.Cohort, one, cells=_view_cells(one.flavors)) for one in snapshot.use.cohorts],
        "fair_sharing": snapshot.quota.fair_sharing,
    }


def queues_of(snapshot: WorldSnapshot) -> list[QueueUse]:
    """Return the queues that were set up, those that jobs name, and always the default one."""
    use = snapshot.use
    found = [*use.queues, *use.strangers]
    if rest_of(snapshot.quota):
        found.sort(key=lambda one: one.queue.name != DEFAULT_QUEUE)
    if not any(one.queue.name == DEFAULT_QUEUE for one in found):
        found.insert(0, QueueUse(ClusterQueue(DEFAULT_QUEUE), set_up=False))
    return found


def find_queue(snapshot: WorldSnapshot, name: str) -> QueueUse | None:
    """Return a queue by its name, or by that of its local queue if no other has that name."""
    found = next((one for one in queues_of(snapshot) if one.queue.name == name), None)
    if found is None:
        reached = [one for one in snapshot.use.queues if any(local.door.name == name for local in one.doors)]
        found = reached[0] if len(reached) == 1 else None
    return found


def view_queue(snapshot: WorldSnapshot, use: QueueUse) -> JsonObject:
    queue = use.queue
    state, message = _state(snapshot, use)
    gpus = [one for one in use.flavors if counts_gpus(one.flavor_resource.resource) and not _is_open(one)]
    return filled(
        q.Queue,
        use,
        name=queue.name,
        state=state,
        message=message,
        quota={_kind(one): whole(one.limits.nominal) for one in gpus},
        cohort=queue.cohort,
        weight=queue.weight,
        held=queue.stop is not StopPolicy.NONE,
        max_priority=queue.max_priority,
        used={_kind(one): whole(one.used) for one in gpus} | {ALL: use.gpus},
        borrowed={_kind(one): whole(one.borrowed) for one in gpus if one.borrowed},
        lent={_kind(one): whole(one.lent) for one in gpus if one.lent},
        pending=len(use.waiting),
        needs={resource: whole(amount) for resource, amount in use.needs},
        strategy=queue.strategy.value,
        stop_policy=queue.stop.value,
        cells=_view_cells(use.flavors),
        local_queues=[
            filled(q.LocalQueue, one, name=one.door.name, namespace=one.door.namespace, stop_policy=one.door.stop.value)
            for one in use.doors
        ],
    )


def view_detail(snapshot: WorldSnapshot, use: QueueUse, limit: int) -> JsonObject:
    """Return a queue with its first pending jobs and the first jobs that hold its quota."""
    return {
        **view_queue(snapshot, use),
        "waiting": [_view_waiting(snapshot, job, k) for k, job in enumerate(use.waiting[:limit], 1)],
        "holding": [_view_holding(one) for one in use.holders[:limit]],
    }


def view_reserved(snapshot: WorldSnapshot, job: str) -> JsonObject | None:
    """Return whether a living job has quota, and if not, why; None for a past job."""
    row = snapshot.row_of(job)
    if row is None:
        return None
    return quota_reserved(snapshot.placements[row] is not None, snapshot.decisions.on(job, row))._asdict()


def ahead_of(snapshot: WorldSnapshot, job: str) -> int | None:
    """Return how many jobs of its queue are ahead of a job; None when it does not wait."""
    row = snapshot.row_of(job)
    if row is None or not snapshot.is_queued.item(row):
        return None
    numbers, of_number = np.unique(snapshot.columns.queue, return_index=True)
    own = _line_of(snapshot, row)
    same = [
        number for number, k in zip(numbers.tolist(), of_number.tolist(), strict=True) if _line_of(snapshot, k) == own
    ]
    rivals = snapshot.is_queued & np.isin(snapshot.columns.queue, same)
    priority, mine = snapshot.columns.priority, snapshot.columns.priority.item(row)
    # Rows are by submit time, as a line is among equals.
    return int(np.count_nonzero(rivals & (priority > mine)) + np.count_nonzero((rivals & (priority == mine))[:row]))


def _line_of(snapshot: WorldSnapshot, row: int) -> tuple[bool, str]:
    """Return the line in which a job waits: that of its cluster queue, or of a name that is not set up."""
    job = snapshot.jobs[row]
    found = snapshot.quota.way(job.namespace, job.queue)
    is_set_up = found is not None and found.cluster_queue in snapshot.quota.queue_of
    return is_set_up, found.cluster_queue if found is not None and is_set_up else job.queue


def whole(milli: int) -> float:
    """Return thousandths as a number, whole where possible."""
    return milli // MILLI if milli % MILLI == 0 else milli / MILLI


def _state(snapshot: WorldSnapshot, use: QueueUse) -> tuple[str, str]:
    queue = use.queue
    if not use.set_up:
        is_open = not snapshot.quota or queue.name == DEFAULT_QUEUE
        return ("open", "") if is_open else ("unknown", "it is not set up, so its jobs wait")
    if use.leaving:
        return "leaving", "it was removed, and goes when its last job has ended"
    if queue.stop is not StopPolicy.NONE:
        return _STOPPED[queue.stop]
    if use.misconfigured:
        return "misconfigured", use.misconfigured
    return "active", tell_rest(snapshot.quota) if queue.name == DEFAULT_QUEUE else ""


def _kind(use: FlavorUsage) -> str:
    return ALL if use.flavor_resource.resource == ALL_GPUS else use.flavor_resource.flavor


def _view_cells(uses: Iterable[FlavorUsage]) -> list[JsonObject]:
    return [_view_cell(one) for one in uses if one.used or not _is_open(one)]


def _is_open(use: FlavorUsage) -> bool:
    """Return whether it has no limit, as the short form has for flavors that it does not name."""
    return counts_gpus(use.flavor_resource.resource) and use.total >= NO_LIMIT


def _view_cell(use: FlavorUsage) -> JsonObject:
    limits = use.limits
    return {
        "flavor": use.flavor_resource.flavor,
        "resource": use.flavor_resource.resource,
        "nominal": whole(limits.nominal),
        "borrowing_limit": None if limits.borrowing is None else whole(limits.borrowing),
        "lending_limit": None if limits.lending is None else whole(limits.lending),
        **{name: whole(getattr(use, name)) for name in ("total", "used", "reserved", "growth", "borrowed", "lent")},
    }


def _view_waiting(snapshot: WorldSnapshot, job: Job, place: int) -> JsonObject:
    return filled(
        q.WaitingJob,
        job,
        place=place,
        submitted_s=job.submit_s,
        gpus=0 if job.cpu_only else job.min,
        reason=view_decision(snapshot.decisions.on(job.id, snapshot.row_of(job.id))),
        quota_reserved=view_reserved(snapshot, job.id),
    )


def _view_holding(use: JobUse) -> JsonObject:
    gpus = 0 if use.job.cpu_only else use.gpus
    reserved, flavors = min(use.job.min, gpus), dict(use.flavors)
    return filled(q.HoldingJob, use.job, submitted_s=use.job.submit_s, gpus=gpus, reserved=reserved, flavors=flavors)
