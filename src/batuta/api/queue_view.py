"""Queues and cohorts as people see them: quota, what is used of it, borrowed and lent, who waits and why."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.api.picture import Picture
from batuta.api.views import Shown, view_decision
from batuta.core.job import Job
from batuta.core.quota import MILLI, ClusterQueue, StopPolicy
from batuta.quota.demand import ALL_GPUS, counts_gpus
from batuta.quota.kueue_names import quota_reserved
from batuta.quota.use import CellUse, CohortUse, DoorUse, JobUse, QueueUse
from batuta.spec.kueue.short_form import MOST_GPUS
from batuta.spec.task_job import DEFAULT_QUEUE

ALL = "*"
_STOPPED = {
    StopPolicy.HOLD: ("held", "it is stopped: nothing starts, what runs goes on"),
    StopPolicy.HOLD_AND_DRAIN: ("draining", "it is stopped: nothing starts, and what runs leaves"),
}


def view_queues(picture: Picture) -> Shown:
    """All queues and cohorts of one moment."""
    return {
        "queues": [view_queue(picture, one) for one in queues_of(picture)],
        "cohorts": [_view_cohort(one) for one in picture.use.cohorts],
        "fair_sharing": picture.quota.fair_sharing,
    }


def queues_of(picture: Picture) -> list[QueueUse]:
    """Queues that were set, and those that jobs name; there is always a default one."""
    use = picture.use
    found = [*use.queues, *use.strangers]
    if not any(one.queue.name == DEFAULT_QUEUE for one in found):
        found.insert(0, QueueUse(ClusterQueue(DEFAULT_QUEUE), set_up=False))
    return found


def find_queue(picture: Picture, name: str) -> QueueUse | None:
    """A queue by its name, or by that of a local queue when only one is called so."""
    found = next((one for one in queues_of(picture) if one.queue.name == name), None)
    if found is None:
        reached = [one for one in picture.use.queues if any(door.door.name == name for door in one.doors)]
        found = reached[0] if len(reached) == 1 else None
    return found


def view_queue(picture: Picture, use: QueueUse) -> Shown:
    queue = use.queue
    state, message = _state(picture, use)
    gpus = [one for one in use.cells if counts_gpus(one.cell.resource) and not _is_open(one)]
    return {
        "name": queue.name,
        "state": state,
        "message": message,
        "quota": {_kind(one): whole(one.limits.nominal) for one in gpus},
        "cohort": queue.cohort,
        "weight": queue.weight,
        "held": queue.stop is not StopPolicy.NONE,
        "used": {_kind(one): whole(one.used) for one in gpus} | {ALL: use.gpus},
        "borrowed": {_kind(one): whole(one.borrowed) for one in gpus if one.borrowed},
        "lent": {_kind(one): whole(one.lent) for one in gpus if one.lent},
        "pending": len(use.waiting),
        "running": use.running,
        "suspended": use.suspended,
        "needs": {resource: whole(amount) for resource, amount in use.needs},
        "share": use.share,
        "strategy": queue.strategy.value,
        "stop_policy": queue.stop.value,
        "cells": _view_cells(use.cells),
        "local_queues": [_view_door(one) for one in use.doors],
    }


def view_detail(picture: Picture, use: QueueUse, limit: int) -> Shown:
    """A queue with the first of those that wait, and the first of those that have its quota."""
    return {
        **view_queue(picture, use),
        "waiting": [_view_waiting(picture, job, k) for k, job in enumerate(use.waiting[:limit], 1)],
        "holding": [_view_holding(one) for one in use.holders[:limit]],
    }


def view_reserved(picture: Picture, job: str) -> Shown | None:
    """Whether a living job has quota, and if not, why not; None for one that is over."""
    row = picture.rows.get(job)
    if row is None:
        return None
    return quota_reserved(picture.placements[row] is not None, picture.decision_on(job))._asdict()


def ahead_of(picture: Picture, job: str) -> int | None:
    """How many of its queue are ahead of a job; None when it does not wait."""
    if job not in picture.rows:
        return None
    lines = (one.waiting for one in (*picture.use.queues, *picture.use.strangers))
    return next((place for line in lines for place, one in enumerate(line) if one.id == job), None)


def whole(milli: int) -> float:
    """Thousandths as a number that people would write."""
    return milli // MILLI if milli % MILLI == 0 else milli / MILLI


def _state(picture: Picture, use: QueueUse) -> tuple[str, str]:
    queue = use.queue
    if not use.set_up:
        is_open = not picture.quota or queue.name == DEFAULT_QUEUE
        return ("open", "") if is_open else ("unknown", "nobody has set it up, so its jobs wait")
    if use.leaving:
        return "leaving", "it was removed, and goes when its last job has ended"
    if queue.stop is not StopPolicy.NONE:
        return _STOPPED[queue.stop]
    return ("misconfigured", use.misconfigured) if use.misconfigured else ("active", "")


def _kind(use: CellUse) -> str:
    return ALL if use.cell.resource == ALL_GPUS else use.cell.flavor


def _view_cohort(use: CohortUse) -> Shown:
    return {
        "name": use.name,
        "parent": use.parent,
        "weight": use.weight,
        "share": use.share,
        "pending": use.pending,
        "running": use.running,
        "cells": _view_cells(use.cells),
    }


def _view_cells(uses: Iterable[CellUse]) -> list[Shown]:
    """All of them; what has no limit only while somebody uses it."""
    return [_view_cell(one) for one in uses if one.used or not _is_open(one)]


def _is_open(use: CellUse) -> bool:
    """Whether it stands for no limit, as the short form writes it for what it does not name."""
    return counts_gpus(use.cell.resource) and use.total >= MOST_GPUS * MILLI


def _view_cell(use: CellUse) -> Shown:
    limits = use.limits
    return {
        "flavor": use.cell.flavor,
        "resource": use.cell.resource,
        "nominal": whole(limits.nominal),
        "borrowing_limit": None if limits.borrowing is None else whole(limits.borrowing),
        "lending_limit": None if limits.lending is None else whole(limits.lending),
        "total": whole(use.total),
        "used": whole(use.used),
        "reserved": whole(use.reserved),
        "growth": whole(use.growth),
        "borrowed": whole(use.borrowed),
        "lent": whole(use.lent),
    }


def _view_door(use: DoorUse) -> Shown:
    return {
        "name": use.door.name,
        "namespace": use.door.namespace,
        "stop_policy": use.door.stop.value,
        "running": use.running,
        "pending": use.pending,
    }


def _view_waiting(picture: Picture, job: Job, place: int) -> Shown:
    return {
        "place": place,
        **_view_job(job),
        "gpus": job.min,
        "reason": view_decision(picture.decision_on(job.id)),
        "quota_reserved": view_reserved(picture, job.id),
    }


def _view_holding(use: JobUse) -> Shown:
    return {
        **_view_job(use.job),
        "gpus": use.gpus,
        "reserved": min(use.job.min, use.gpus),
        "flavors": dict(use.flavors),
    }


def _view_job(job: Job) -> Shown:
    return {
        "id": job.id,
        "name": job.name,
        "user": job.user,
        "priority": job.priority,
        "submitted_s": job.submit_s,
    }
