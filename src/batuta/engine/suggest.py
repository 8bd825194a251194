"""What would have to be otherwise for a waiting job to start now: the smallest changes, each tried out.

A change is in the cluster, in what the job's user asks for, or in quota: as words and as events, tried out on a
copy of the World. Each way to change something yields what it tried: a suggestion, or None where that does not
start the job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, TypeVar

import numpy as np

from batuta.core.apply import apply
from batuta.core.arrays import bits
from batuta.core.cluster import Node
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.event import Event, JobChanged, JobEnded, JobWished, NodeAdded, NodeReturned, NodeUncordoned, QuotaSet
from batuta.core.job import ANY_TYPE, ANYWHERE, DesiredState, Job, JobId, JobState
from batuta.core.node_table import OFFERS_SHARES
from batuta.core.plan import Plan, Preempt, Resize, Start
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
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.quota.workload import demand

T = TypeVar("T")
Facts: TypeAlias = tuple[tuple[str, str | float], ...]  # names and numbers of a suggestion, in reading order

_ONE = re.compile(r"\b1 (more )?(GPU|node|job)s\b")
MOST_TRIALS = 80  # a trial is a whole decision: in a cluster with ten thousand jobs it takes a good part of a second
_LARGE, _FEW_TRIALS = 2_000, 30
_NEXT = 8  # so many of those that end next are tried one by one
_NODES, _MOST_NODES = 4, 64
_QUEUES = 8
_GIB = MILLI * (1 << 30)
_CAUSE = "suggestion"


class Remedy(Enum):
    """The kinds of change. Each has a sentence; `{name}` in it is filled from the facts."""

    FEWER_GPUS = "if it asked for {gpus:g} GPUs instead of {asked:g}"
    ANOTHER_TYPE = "if it accepted GPUs of type {gpu_type}"
    ANOTHER_QUEUE = "in queue {queue} instead of {own}"
    MORE_QUOTA = "if cluster queue {queue} had quota for {amount:g} more {unit} of flavor {flavor}"
    QUEUE_RELEASED = "if queue {queue} was not held"
    WITHOUT_TOPOLOGY = "without the wish that its GPUs lie close together"
    WITHOUT_NODE_WISHES = "without its wishes for labels of nodes"
    NODE_BACK = "if node {node} was in service"
    MORE_NODES = "with {nodes:g} more nodes like {like}"
    JOB_ENDS = "when job {job} ends"
    JOBS_END = "when {jobs:g} of the jobs that run have ended, {last} as the last of them"
    STARTED_AGAIN = "if it was started again: it is parked, is tried out first, or waits after a failure"

    def sentence(self, facts: Facts) -> str:
        return _ONE.sub(r"1 \1\2", self.value.format(**dict(facts)))


@dataclass(frozen=True, slots=True)
class Suggestion:
    """With this change, and nothing else, the next decision starts the job. That was tried out."""

    remedy: Remedy
    facts: Facts
    gpus: int  # what the job would start with
    stops: tuple[JobId, ...]  # jobs that would lose all their GPUs for it
    shrinks: tuple[JobId, ...]  # jobs that would have fewer
    events: tuple[Event, ...]  # the change itself
    within_s: float | None = None  # when it is expected to come about by itself; None for what a user has to do

    def __str__(self) -> str:
        return self.remedy.sentence(self.facts)


class Trials:
    """A World to ask "what if" of, as often as there are trials left. It is never changed."""

    def __init__(
        self, world: World, now_s: float, job: JobId, rules_of: Callable[[], SchedulerProfile], most: int
    ) -> None:
        self.world, self.now_s = world, now_s
        self.job: Job = world.jobs.jobs[world.jobs.row(job)]
        self.left = most
        self._rules_of = rules_of

    def start_after(self, events: Iterable[Event]) -> Plan | None:
        """The plan that starts the job once these have happened; None if it does not start, or no trial is left.

        Rules are made anew, because admission remembers what it saw last.
        """
        if self.left <= 0:
            return None
        self.left -= 1
        fork = self.world.fork()
        for event in events:
            apply(fork, event)
        plan = decide(fork, self.now_s, replace(self._rules_of(), explains=False))
        return plan if _start_of(plan, self.job.id) else None

    def suggestion(
        self, remedy: Remedy, facts: Facts, events: Sequence[Event], within_s: float | None = None
    ) -> Suggestion | None:
        """The change as a suggestion if it starts the job."""
        plan = self.start_after(events)
        start = None if plan is None else _start_of(plan, self.job.id)
        if plan is None or start is None:
            return None
        return Suggestion(
            remedy,
            facts,
            start.placement.size,
            tuple(one.job for one in plan.commands if isinstance(one, Preempt)),
            tuple(one.job for one in plan.commands if isinstance(one, Resize) and one.reason is not Reason.GREW),
            tuple(events),
            within_s,
        )


def _start_of(plan: Plan, job: JobId) -> Start | None:
    return next((one for one in plan.commands if isinstance(one, Start) and one.job == job), None)


def first_that_works(count: int, try_nth: Callable[[int], T | None]) -> T | None:
    """What the smallest n up to `count` gives that gives anything, if all above it do too; else some n that does."""
    best = try_nth(count) if count >= 1 else None
    if best is None:
        return None
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        found = try_nth(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def suggest(
    world: World, now_s: float, job: JobId, rules_of: Callable[[], SchedulerProfile], most_trials: int | None = None
) -> tuple[Suggestion, ...]:
    """Return changes of which each alone starts a waiting job; what its user can do comes first.

    Nothing for a job that has GPUs, is not there, or starts anyway. It ends when `most_trials` are used up.
    """
    if job not in world.jobs or world.jobs.placements[world.jobs.row(job)] is not None:
        return ()
    if most_trials is None:
        most_trials = MOST_TRIALS if world.jobs.n <= _LARGE else _FEW_TRIALS
    trials = Trials(world, now_s, job, rules_of, most_trials)
    if trials.start_after(()) is not None:
        return ()
    ways = (
        _start_again,
        _fewer_gpus,
        _other_types,
        _other_queues,
        _without_wishes,
        _jobs_that_end,
        _queue_released,
        _more_quota,
        _nodes_back,
        _more_nodes,
    )
    return tuple(found for way in ways for found in way(trials) if found is not None)


def _start_again(trials: Trials) -> Iterator[Suggestion | None]:
    """For a job that is parked, is tried out first, or waits after a failure."""
    jobs = trials.world.jobs
    row = jobs.row(trials.job.id)
    if jobs.wish_of(row) in (DesiredState.PARK, DesiredState.TRY) or jobs.not_before_s[row] > trials.now_s:
        again = JobWished(trials.now_s, trials.job.id, DesiredState.RUN, cause=_CAUSE)
        yield trials.suggestion(Remedy.STARTED_AGAIN, (), [again])


def _fewer_gpus(trials: Trials) -> Iterator[Suggestion | None]:
    """The largest size below what was asked for with which it starts."""
    job = trials.job
    if job.cpu_only:
        return
    legal = job.sizes or range(job.min, job.max + 1, job.gpus_per_replica)
    smaller = range(job.gpus_per_replica, job.min, job.gpus_per_replica)
    below = sorted({*smaller, *(gpus for gpus in legal if gpus < job.size)}, reverse=True)

    def try_nth(n: int) -> Suggestion | None:
        gpus = below[n - 1]
        return _changed(trials, Remedy.FEWER_GPUS, (("gpus", gpus), ("asked", job.size)), resized(job, gpus))

    yield first_that_works(len(below), try_nth)


def resized(job: Job, gpus: int) -> Job:
    """The same request for this size, and for fewer at least if that is below its `min`."""
    if gpus >= job.min:
        return replace(job, size=gpus)
    sizes = None if job.sizes is None else (gpus, *job.sizes)
    return replace(job, min=gpus, size=gpus, sizes=sizes)


def _other_types(trials: Trials) -> Iterator[Suggestion | None]:
    """GPU types that it does not accept; one at a time."""
    job = trials.job
    accepted = dict(job.gpu_types)
    for name in trials.world.nodes.types if job.gpu_types != ANY_TYPE else ():
        if name not in accepted:
            other = replace(job, gpu_types=(*job.gpu_types, (name, 1.0)))
            yield _changed(trials, Remedy.ANOTHER_TYPE, (("gpu_type", name),), other)


def _without_wishes(trials: Trials) -> Iterator[Suggestion | None]:
    """Without wishes for where its GPUs are."""
    job = trials.job
    if job.topology != ANYWHERE:
        yield _changed(trials, Remedy.WITHOUT_TOPOLOGY, (), replace(job, topology=ANYWHERE))
    needed = tuple(label for label in job.node_labels if label == OFFERS_SHARES)
    if job.node_labels != needed or job.node_terms:
        yield _changed(trials, Remedy.WITHOUT_NODE_WISHES, (), replace(job, node_labels=needed, node_terms=()))


def _other_queues(trials: Trials) -> Iterator[Suggestion | None]:
    """Queues that its user could have named instead."""
    quota, job = trials.world.effective_quota, trials.job
    names = [door.name for door in quota.local_queues if door.namespace in ("", job.namespace)]
    if not job.namespace:
        names += [queue.name for queue in quota.cluster_queues]
    own = quota.way(job.namespace, job.queue)
    tried = {own.cluster_queue} if own else set()
    for name in [name for name in dict.fromkeys(names) if name != job.queue][:_QUEUES]:
        way = quota.way(job.namespace, name)
        if way is not None and way.cluster_queue not in tried:
            tried.add(way.cluster_queue)
            facts: Facts = (("queue", name), ("own", job.queue))
            yield _changed(trials, Remedy.ANOTHER_QUEUE, facts, replace(job, queue=name))


def _changed(trials: Trials, remedy: Remedy, facts: Facts, job: Job) -> Suggestion | None:
    return trials.suggestion(remedy, facts, [JobChanged(trials.now_s, job, cause=_CAUSE)])


def _jobs_that_end(trials: Trials) -> Iterator[Suggestion | None]:
    """The next job whose end makes enough room; if that of none does, as many of the next as it takes."""
    jobs, now_s = trials.world.jobs, trials.now_s
    rows = np.flatnonzero(jobs.held > 0)
    rate = jobs.rate[rows]
    left_s = np.maximum(jobs.remaining_s[rows] - rate * (now_s - jobs.anchor_s[rows]), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends_s = np.where(rate > 0, left_s / rate, np.inf)
    order = np.argsort(ends_s, kind="stable")
    ids = [jobs.ids[row] for row in rows[order].tolist()]
    within_s = [float(s) if np.isfinite(s) else None for s in ends_s[order]]
    ended: list[Event] = [JobEnded(now_s, one, JobState.SUCCEEDED, cause=_CAUSE) for one in ids]
    for n in range(min(_NEXT, len(ids))):
        alone = trials.suggestion(Remedy.JOB_ENDS, (("job", ids[n]),), [ended[n]], within_s[n])
        if alone is not None:
            yield alone
            return

    def try_nth(n: int) -> Suggestion | None:
        facts: Facts = (("jobs", n), ("last", ids[n - 1]))
        return trials.suggestion(Remedy.JOBS_END, facts, ended[:n], within_s[n - 1])

    yield first_that_works(len(ids), try_nth)


def _nodes_back(trials: Trials) -> Iterator[Suggestion | None]:
    """Nodes that are out of service."""
    world, now_s = trials.world, trials.now_s
    for i in list(bits(world.cordoned | world.lost))[:_NODES]:
        name = world.nodes.nodes[i].name
        events: list[Event] = []
        if world.lost >> i & 1:
            events.append(NodeReturned(now_s, name, cause=_CAUSE))
        if world.cordoned >> i & 1:
            events.append(NodeUncordoned(now_s, name, cause=_CAUSE))
        yield trials.suggestion(Remedy.NODE_BACK, (("node", name),), events)


def _more_nodes(trials: Trials) -> Iterator[Suggestion | None]:
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
    yield best


def _kind(node: Node) -> tuple[str, int, tuple[tuple[str, str], ...], tuple[str, ...]]:
    own = {"kubernetes.io/hostname", node.name}
    labels = tuple((key, value) for key, value in node.labels if key not in own and value not in own)
    return node.gpu_type, node.gpus, labels, node.taints


def _with_nodes(trials: Trials, like: Node, count: int) -> Suggestion | None:
    nodes = [replace(like, name=f"{like.name}+{n}") for n in range(1, count + 1)]
    events = [NodeAdded(trials.now_s, node, cause=_CAUSE) for node in nodes]
    return trials.suggestion(Remedy.MORE_NODES, (("nodes", count), ("like", like.name)), events)


def _queue_released(trials: Trials) -> Iterator[Suggestion | None]:
    """For a queue that is held."""
    quota, way = trials.world.effective_quota, _way_of(trials)
    if way is None:
        return
    door, queue = way
    if queue.stop is door.stop is StopPolicy.NONE:
        return
    released = replace(
        _with_queue(quota, replace(queue, stop=StopPolicy.NONE)),
        local_queues=tuple(replace(one, stop=StopPolicy.NONE) if one == door else one for one in quota.local_queues),
    )
    event = QuotaSet(trials.now_s, released, cause=_CAUSE)
    yield trials.suggestion(Remedy.QUEUE_RELEASED, (("queue", queue.name),), [event])


def _more_quota(trials: Trials) -> Iterator[Suggestion | None]:
    """The least that a flavor of its queue lacks, of the one resource that it lacks."""
    quota, way = trials.world.effective_quota, _way_of(trials)
    if way is None:
        return
    _, queue = way
    for cell, _ in flavor_resources_of(queue.groups):
        unit, name = _unit(cell.resource)
        steps = -(-demand(trials.job, cell.resource, trials.job.min) // unit)

        def try_nth(n: int, cell: FlavorResource = cell, unit: int = unit, name: str = name) -> Suggestion | None:
            facts: Facts = (("queue", queue.name), ("amount", n), ("unit", name), ("flavor", cell.flavor))
            richer = _with_queue(quota, _with_more(queue, cell, n * unit))
            return trials.suggestion(Remedy.MORE_QUOTA, facts, [QuotaSet(trials.now_s, richer, cause=_CAUSE)])

        yield first_that_works(steps, try_nth)


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


def _with_queue(quota: Quota, queue: ClusterQueue) -> Quota:
    """The same quota with this queue in place of the one of its name."""
    return replace(
        quota, cluster_queues=tuple(queue if one.name == queue.name else one for one in quota.cluster_queues)
    )


def _with_more(queue: ClusterQueue, cell: FlavorResource, amount: int) -> ClusterQueue:
    """The same queue with a larger nominal amount in one cell."""
    groups = []
    for group in queue.groups:
        flavors = []
        for own in group.flavors:
            limits = tuple(
                limits._replace(nominal=limits.nominal + amount) if (own.flavor, resource) == cell else limits
                for resource, limits in zip(group.resources, own.limits, strict=True)
            )
            flavors.append(replace(own, limits=limits))
        groups.append(replace(group, flavors=tuple(flavors)))
    return replace(queue, groups=tuple(groups))
