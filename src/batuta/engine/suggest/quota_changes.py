"""What administrators could change: another queue, more quota, a queue that is not held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from batuta.core.event import JobChanged, QuotaSet
from batuta.core.quota import MILLI, Cell, ClusterQueue, LocalQueue, Quota, StopPolicy, cells_of
from batuta.engine.suggest.suggestion import Facts, Remedy, Suggestion
from batuta.engine.suggest.trials import Trials, first_that_works
from batuta.quota.demand import counts_gpus, demand

_QUEUES = 8
_GIB = MILLI * (1 << 30)


def other_queues(trials: Trials) -> Iterator[Suggestion]:
    """Queues that its user could have named instead."""
    quota, job = trials.world.quota, trials.job
    names = [door.name for door in quota.local_queues if door.namespace in ("", job.namespace)]
    if not job.namespace:
        names += [queue.name for queue in quota.cluster_queues]
    own = quota.way(job.namespace, job.queue)
    tried = {own.cluster_queue} if own else set()
    for name in [name for name in dict.fromkeys(names) if name != job.queue][:_QUEUES]:
        way = quota.way(job.namespace, name)
        if way is None or way.cluster_queue in tried:
            continue
        tried.add(way.cluster_queue)
        event = JobChanged(trials.now_s, replace(job, queue=name), cause="suggestion")
        facts: Facts = (("queue", name), ("own", job.queue))
        found = trials.suggestion(Remedy.ANOTHER_QUEUE, facts, [event])
        if found is not None:
            yield found


def queue_released(trials: Trials) -> Iterator[Suggestion]:
    """For a queue that is held."""
    quota, way = trials.world.quota, _way_of(trials)
    if way is None:
        return
    door, queue = way
    if queue.stop is door.stop is StopPolicy.NONE:
        return
    released = replace(
        quota,
        cluster_queues=tuple(
            replace(one, stop=StopPolicy.NONE) if one.name == queue.name else one
            for one in quota.cluster_queues
        ),
        local_queues=tuple(
            replace(one, stop=StopPolicy.NONE) if one == door else one for one in quota.local_queues
        ),
    )
    found = trials.suggestion(
        Remedy.QUEUE_RELEASED,
        (("queue", queue.name),),
        [QuotaSet(trials.now_s, released, cause="suggestion")],
    )
    if found is not None:
        yield found


def more_quota(trials: Trials) -> Iterator[Suggestion]:
    """The least that a flavor of its queue lacks, of the one resource that it lacks."""
    quota, way = trials.world.quota, _way_of(trials)
    if way is None:
        return
    _, queue = way
    for cell, _ in cells_of(queue.groups):
        whole = demand(trials.job, cell.resource, trials.job.min)
        unit, name = _unit(cell.resource)
        steps = -(-whole // unit)

        def try_nth(n: int, cell: Cell = cell, unit: int = unit, name: str = name) -> Suggestion | None:
            facts: Facts = (("queue", queue.name), ("amount", n), ("unit", name), ("flavor", cell.flavor))
            richer = QuotaSet(trials.now_s, _with_more(quota, queue, cell, n * unit), cause="suggestion")
            return trials.suggestion(Remedy.MORE_QUOTA, facts, [richer])

        found = first_that_works(steps, try_nth)
        if found is not None:
            yield found


def _way_of(trials: Trials) -> tuple[LocalQueue, ClusterQueue] | None:
    """The queue that the job waits in, and the one that has quota for it; None if it leads to none."""
    quota, job = trials.world.quota, trials.job
    door = quota.way(job.namespace, job.queue)
    queue = quota.queue_of.get(door.cluster_queue) if door else None
    return (door, queue) if door and queue else None


def _unit(resource: str) -> tuple[int, str]:
    """What more quota is counted in, and its name."""
    if counts_gpus(resource):
        return MILLI, "GPUs"
    if resource == "memory":
        return _GIB, "GiB of memory"
    return MILLI, {"cpu": "CPUs"}.get(resource, resource)


def _with_more(quota: Quota, queue: ClusterQueue, cell: Cell, amount: int) -> Quota:
    """The same quota, but for a larger nominal amount in one cell of one queue."""
    groups = tuple(
        replace(
            group,
            flavors=tuple(
                replace(
                    own,
                    limits=tuple(
                        limits._replace(nominal=limits.nominal + amount)
                        if (own.flavor, resource) == cell
                        else limits
                        for resource, limits in zip(group.resources, own.limits, strict=True)
                    ),
                )
                for own in group.flavors
            ),
        )
        for group in queue.groups
    )
    richer = replace(queue, groups=groups)
    return replace(
        quota,
        cluster_queues=tuple(richer if one.name == queue.name else one for one in quota.cluster_queues),
    )
