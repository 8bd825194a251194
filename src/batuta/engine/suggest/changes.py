"""Changes that could start a waiting job: in the cluster, in what its user asks for, in quota."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from batuta.core.arrays import bits
from batuta.core.cluster import Node
from batuta.core.event import Event, JobChanged, JobEnded, NodeAdded, NodeReturned, NodeUncordoned, QuotaSet
from batuta.core.job import ANY_TYPE, ANYWHERE, Job, JobState
from batuta.core.node_table import OFFERS_SHARES
from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    FlavorResource,
    LocalQueue,
    Quota,
    StopPolicy,
    counts_gpus,
    flavor_resources_of,
)
from batuta.engine.suggest.suggestion import Facts, Remedy, Suggestion, Trials, first_that_works
from batuta.quota.workload import demand

_NEXT = 8
"""So many of those that end next are tried one by one."""
_NODES = 4
_MOST_NODES = 64


def jobs_that_end(trials: Trials) -> Iterator[Suggestion]:
    """The next job whose end makes enough room; if that of none does, as many of the next as it takes."""
    jobs, now_s = trials.world.jobs, trials.now_s
    rows = np.flatnonzero(jobs.held > 0)
    if not rows.size:
        return
    rate = jobs.rate[rows]
    elapsed_s = now_s - jobs.anchor_s[rows]
    left_s = np.maximum(jobs.remaining_s[rows] - rate * elapsed_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends_s = np.where(rate > 0, left_s / rate, np.inf)
    order = np.argsort(ends_s, kind="stable")
    ids = [jobs.ids[row] for row in rows[order].tolist()]
    within_s = [float(s) if np.isfinite(s) else None for s in ends_s[order]]
    ended: list[Event] = [JobEnded(now_s, one, JobState.SUCCEEDED, cause="suggestion") for one in ids]
    for n in range(min(_NEXT, len(ids))):
        alone = trials.suggestion(Remedy.JOB_ENDS, (("job", ids[n]),), [ended[n]], within_s[n])
        if alone is not None:
            yield alone
            return

    def try_nth(n: int) -> Suggestion | None:
        facts: Facts = (("jobs", n), ("last", ids[n - 1]))
        return trials.suggestion(Remedy.JOBS_END, facts, ended[:n], within_s[n - 1])

    found = first_that_works(len(ids), try_nth)
    if found is not None:
        yield found


def nodes_back(trials: Trials) -> Iterator[Suggestion]:
    """Nodes that are out of service."""
    world, now_s = trials.world, trials.now_s
    for i in list(bits(world.cordoned | world.lost))[:_NODES]:
        name = world.nodes.nodes[i].name
        events: list[Event] = []
        if world.lost >> i & 1:
            events.append(NodeReturned(now_s, name, cause="suggestion"))
        if world.cordoned >> i & 1:
            events.append(NodeUncordoned(now_s, name, cause="suggestion"))
        found = trials.suggestion(Remedy.NODE_BACK, (("node", name),), events)
        if found is not None:
            yield found


def more_nodes(trials: Trials) -> Iterator[Suggestion]:
    """Nodes like the usual ones; of the type that needs the fewest."""
    kinds = Counter(_kind(node) for node in trials.world.nodes.nodes)
    best: Suggestion | None = None
    for kind, _ in kinds.most_common(_NODES):
        like = next(node for node in trials.world.nodes.nodes if _kind(node) == kind)
        if not like.gpus and not trials.job.cpu_only:
            continue
        # A node takes one replica of a CPU-only job at least.
        each = 1 if trials.job.cpu_only else like.gpus
        most = min(_MOST_NODES, -(-trials.job.min // each))
        found = first_that_works(most, lambda n, like=like: _with_nodes(trials, like, n))  # type: ignore[misc]
        if found is not None and (best is None or len(found.events) < len(best.events)):
            best = found
    if best is not None:
        yield best


def _kind(node: Node) -> tuple[str, int, tuple[tuple[str, str], ...], tuple[str, ...]]:
    own = {"kubernetes.io/hostname", node.name}
    labels = tuple((key, value) for key, value in node.labels if key not in own and value not in own)
    return node.gpu_type, node.gpus, labels, node.taints


def _with_nodes(trials: Trials, like: Node, count: int) -> Suggestion | None:
    facts: Facts = (("nodes", count), ("like", like.name))
    events = [
        NodeAdded(trials.now_s, replace(like, name=f"{like.name}+{n}"), cause="suggestion") for n in range(1, count + 1)
    ]
    return trials.suggestion(Remedy.MORE_NODES, facts, events)


def fewer_gpus(trials: Trials) -> Iterator[Suggestion]:
    """The largest size below what was asked for with which it starts."""
    job = trials.job
    if job.cpu_only:
        return
    below = sorted({*range(job.gpus_per_replica, job.min, job.gpus_per_replica), *_legal_below_size(job)})
    below.reverse()

    def try_nth(n: int) -> Suggestion | None:
        gpus = below[n - 1]
        facts: Facts = (("gpus", gpus), ("asked", job.size))
        return trials.suggestion(Remedy.FEWER_GPUS, facts, [_changed(trials, resized(job, gpus))])

    found = first_that_works(len(below), try_nth)
    if found is not None:
        yield found


def resized(job: Job, gpus: int) -> Job:
    """The same request for this size, and for fewer at least if that is below its `min`."""
    if gpus >= job.min:
        return replace(job, size=gpus)
    sizes = None if job.sizes is None else (gpus, *job.sizes)
    return replace(job, min=gpus, size=gpus, sizes=sizes)


def _legal_below_size(job: Job) -> list[int]:
    legal = job.sizes or range(job.min, job.max + 1, job.gpus_per_replica)
    return [gpus for gpus in legal if gpus < job.size]


def other_types(trials: Trials) -> Iterator[Suggestion]:
    """GPU types that it does not accept; one at a time."""
    job = trials.job
    if job.gpu_types == ANY_TYPE:
        return
    accepted = dict(job.gpu_types)
    for name in trials.world.nodes.types:
        if name in accepted:
            continue
        changed = replace(job, gpu_types=(*job.gpu_types, (name, 1.0)))
        found = trials.suggestion(Remedy.ANOTHER_TYPE, (("gpu_type", name),), [_changed(trials, changed)])
        if found is not None:
            yield found


def without_wishes(trials: Trials) -> Iterator[Suggestion]:
    """Without wishes for where its GPUs are."""
    job = trials.job
    ways: list[tuple[Remedy, Job]] = []
    if job.topology != ANYWHERE:
        ways.append((Remedy.WITHOUT_TOPOLOGY, replace(job, topology=ANYWHERE)))
    needed = tuple(label for label in job.node_labels if label == OFFERS_SHARES)
    if job.node_labels != needed or job.node_terms:
        ways.append((Remedy.WITHOUT_NODE_WISHES, replace(job, node_labels=needed, node_terms=())))
    for remedy, changed in ways:
        found = trials.suggestion(remedy, (), [_changed(trials, changed)])
        if found is not None:
            yield found


def _changed(trials: Trials, job: Job) -> JobChanged:
    return JobChanged(trials.now_s, job, cause="suggestion")


_QUEUES = 8
_GIB = MILLI * (1 << 30)


def other_queues(trials: Trials) -> Iterator[Suggestion]:
    """Queues that its user could have named instead."""
    quota, job = trials.world.effective_quota, trials.job
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
    quota, way = trials.world.effective_quota, _way_of(trials)
    if way is None:
        return
    door, queue = way
    if queue.stop is door.stop is StopPolicy.NONE:
        return
    released = replace(
        quota,
        cluster_queues=tuple(
            replace(one, stop=StopPolicy.NONE) if one.name == queue.name else one for one in quota.cluster_queues
        ),
        local_queues=tuple(replace(one, stop=StopPolicy.NONE) if one == door else one for one in quota.local_queues),
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
    quota, way = trials.world.effective_quota, _way_of(trials)
    if way is None:
        return
    _, queue = way
    for cell, _ in flavor_resources_of(queue.groups):
        whole = demand(trials.job, cell.resource, trials.job.min)
        unit, name = _unit(cell.resource)
        steps = -(-whole // unit)

        def try_nth(n: int, cell: FlavorResource = cell, unit: int = unit, name: str = name) -> Suggestion | None:
            facts: Facts = (("queue", queue.name), ("amount", n), ("unit", name), ("flavor", cell.flavor))
            richer = QuotaSet(trials.now_s, _with_more(quota, queue, cell, n * unit), cause="suggestion")
            return trials.suggestion(Remedy.MORE_QUOTA, facts, [richer])

        found = first_that_works(steps, try_nth)
        if found is not None:
            yield found


def _way_of(trials: Trials) -> tuple[LocalQueue, ClusterQueue] | None:
    """The queue that the job waits in, and the one that has quota for it; None if it leads to none."""
    quota, job = trials.world.effective_quota, trials.job
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


def _with_more(quota: Quota, queue: ClusterQueue, cell: FlavorResource, amount: int) -> Quota:
    """The same quota, but for a larger nominal amount in one cell of one queue."""
    groups = tuple(
        replace(
            group,
            flavors=tuple(
                replace(
                    own,
                    limits=tuple(
                        limits._replace(nominal=limits.nominal + amount) if (own.flavor, resource) == cell else limits
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
