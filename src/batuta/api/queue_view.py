"""Queues as people see them: quota, what is used of it, borrowed and lent."""

from __future__ import annotations

from collections import Counter, defaultdict

from batuta.api.picture import Picture
from batuta.api.views import Shown
from batuta.core.cluster import Queue
from batuta.core.job import JobState
from batuta.spec.task_fit import ALL_TYPES
from batuta.spec.task_job import DEFAULT_QUEUE

_WAITS = frozenset((JobState.PENDING, JobState.PREEMPTED))


def view_queues(picture: Picture) -> list[Shown]:
    """Queues that were set, and those that jobs name; there is always a default one."""
    used: dict[str, Counter[str]] = defaultdict(Counter)
    pending, running = Counter[str](), Counter[str]()
    for row, (job, placement) in enumerate(zip(picture.jobs, picture.placements, strict=True)):
        waits = picture.states[row] in _WAITS
        pending[job.queue] += waits
        running[job.queue] += not waits
        if placement is not None:
            used[job.queue][picture.node_types[placement.spans[0].node]] += placement.size
            used[job.queue][ALL_TYPES] += placement.size
    names = dict.fromkeys((DEFAULT_QUEUE, *picture.queues, *sorted({job.queue for job in picture.jobs})))
    queues = [picture.queues.get(name) or Queue(name) for name in names]
    over = {queue.name: _over(queue, used[queue.name]) for queue in queues}
    return [
        {
            "name": queue.name,
            "quota": dict(queue.quota),
            "cohort": queue.cohort,
            "weight": queue.weight,
            "held": queue.held,
            "used": dict(used[queue.name]),
            "borrowed": over[queue.name],
            "lent": _lent(queue, queues, over, used[queue.name]),
            "pending": pending[queue.name],
            "running": running[queue.name],
        }
        for queue in queues
    ]


def _over(queue: Queue, used: Counter[str]) -> dict[str, int]:
    """What a queue uses beyond its quota."""
    return {kind: used[kind] - quota for kind, quota in queue.quota if used[kind] > quota}


def _lent(
    queue: Queue, queues: list[Queue], over: dict[str, dict[str, int]], used: Counter[str]
) -> dict[str, int]:
    """What others of its cohort may have of its quota: never more than it leaves unused."""
    if not queue.cohort:
        return {}
    others = [one for one in queues if one.cohort == queue.cohort and one.name != queue.name]
    found = {}
    for kind, quota in queue.quota:
        taken = min(max(0, quota - used[kind]), sum(over[one.name].get(kind, 0) for one in others))
        if taken:
            found[kind] = taken
    return found
