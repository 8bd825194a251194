"""Workloads as quota sees them: what they request, which flavors have nodes for them, where they wait."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import IntArray, mask_of
from batuta.core.cluster import tolerates
from batuta.core.job import Job
from batuta.core.node_table import TYPE_LABEL, NodeRequirements, most_gpus, wishes_of
from batuta.core.quota import (
    DEFAULT_QUEUE,
    MILLI,
    REST_LABEL,
    ClusterQueue,
    EffectiveQuota,
    Flavor,
    FlavorResource,
    Flavors,
    LocalQueue,
    Quota,
    StopPolicy,
    Toleration,
    counts_gpus,
)
from batuta.core.world import World
from batuta.quota.reasons import Refusal, Why
from batuta.quota.tree import Amounts, Node, QuotaTree

PODS = "pods"
_CPU, _MEMORY = "cpu", "memory"
_BYTES_PER_MIB = 1 << 20


def demand(job: Job, resource: str, gpus: int) -> int:
    """What a job of so many GPUs (or CPU-only replicas) takes of a resource, in thousandths."""
    if counts_gpus(resource):
        return 0 if job.cpu_only else gpus * MILLI
    if resource == _CPU:
        return job.cpus_milli_per_gpu * gpus
    if resource == _MEMORY:
        return job.memory_mib_per_gpu * gpus * _BYTES_PER_MIB * MILLI
    if resource == PODS:
        return -(-gpus // (job.gpus_per_replica or 1)) * MILLI
    return 0


@dataclass(frozen=True, slots=True)
class PodSet:
    """Replicas that are alike."""

    requests: tuple[tuple[str, int], ...]  # by resource, for one replica, in thousandths
    count: int = 1
    min_count: int | None = None  # fewer will do, down to this; None for all or nothing
    name: str = "main"
    node_labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class FlavorChoice(NamedTuple):
    """So much of one resource in one flavor, for one replica."""

    resource: str
    flavor: str
    fr: int
    amount: int


@dataclass(slots=True, eq=False)
class Workload:
    """A job as quota sees it. While it holds quota, `usage` says how much and `flavors` of what."""

    key: Hashable
    queue: Node
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    place: int = 0  # its place in the queue among equal priorities: the oldest has the smallest number
    lost_s: float = 0.0  # GPU seconds that would be lost by preempting it
    only: Container[str] | None = None  # flavors that it can run in; None for all that its labels and tolerations allow
    usage: Amounts = field(default_factory=dict)
    flavors: tuple[tuple[str, str], ...] = ()  # by resource, of the last pod set that asks for it
    counts: tuple[int, ...] = ()
    since: float = 0.0  # when it got its quota: of two alike the newer is preempted
    stays: bool = False  # it is just starting or resizing, so it cannot be preempted now
    has_preempted: bool = False  # others were preempted for it already, and it has not got what they had
    due: bool = False  # it has waited so long that no other may delay it any more
    tried: Sequence[Mapping[str, int]] = ()
    """By pod set and resource: the flavor at which the last search ended, for the next one to go on there."""
    resumed: int = 0  # how often in a row it was
    flavor_choice: FlavorChoice | None = None  # what it gets if it gets anything, where it has no choice
    shape: Hashable = None  # Workloads of equal shape in one queue are answered alike
    request: QuotaRequest | None = None  # what the job asks for, where it is one of a World

    def __post_init__(self) -> None:
        if self.shape is None:
            self.shape = (self.pod_sets, self.only)

    @property
    def row(self) -> int:
        """Its key, for workloads of jobs in a World."""
        assert isinstance(self.key, int)
        return self.key

    @property
    def resumes(self) -> bool:
        """Whether the last search did not look at all its flavors."""
        return any(at >= 0 for own in self.tried for at in own.values())

    @property
    def order(self) -> tuple[int, int]:
        """Sorts those that wait in one queue: the most important first, then the oldest."""
        return (-self.priority, self.place)

    def uses(self, frs: Amounts) -> bool:
        usage = self.usage
        return any(fr in usage for fr in frs)


class AdmittedWorkloads(dict[str, dict[Hashable, Workload]]):
    """By queue and key. Where the use of a queue is known without them, they are made when needed."""

    def __missing__(self, queue: str) -> dict[Hashable, Workload]:
        found = self[queue] = self.make(queue)
        return found

    def make(self, name: str) -> dict[Hashable, Workload]:
        """The workloads of a queue that has not been looked at yet."""
        return {}

    def lowest(self, queue: str) -> float:
        """The lowest priority among those of a queue; infinite if there is none."""
        found = self.get(queue)
        if found is None:
            return self.lowest_unseen(queue)
        return min((workload.priority for workload in found.values()), default=math.inf)

    def lowest_unseen(self, name: str) -> float:
        """The same for a queue whose workloads were not made yet."""
        return math.inf


_NO_CHOICE = 0  # what stands for the GPU type of CPU-only jobs: the nodes of all types are one to them
_ALL = (Toleration(operator="Exists"),)
"""Labels and taints are looked at here, on the nodes that there are, and not a second time."""


FlavorOptions = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""What there is to choose from in a queue: by group the resources and the flavors, without the amounts."""


def options_of(queue: ClusterQueue) -> FlavorOptions:
    return tuple((group.resources, tuple([one.flavor for one in group.flavors])) for group in queue.groups)


@dataclass(frozen=True, slots=True, eq=False)
class QuotaRequest:
    """What jobs that are alike ask for: quota for their `min`, in a flavor whose nodes could hold it."""

    pod_sets: tuple[PodSet, ...]
    kinds: Mapping[str, frozenset[int]]  # by flavor that would do: the GPU types of its nodes that the job accepts
    ever: bool  # whether there are nodes for it at all, whatever its queue has quota for
    flavors: Flavors = ()  # what it gets if all goes well: of each group the first flavor that would do, …
    usage: Amounts = field(default_factory=dict)  # … and how much
    flavor_choice: FlavorChoice | None = None
    """All of that, where only one flavor would do and it asks for one resource."""

    @property
    def needs_no_quota(self) -> bool:
        """Whether its queue limits nothing that it takes: a CPU-only job where quota is in GPUs alone."""
        return bool(self.kinds) and not self.pod_sets[0].requests

    def requests_no_less_than(self, other: QuotaRequest) -> bool:
        """Whether the same flavors would do for both, and this one needs as much of everything."""
        if self.kinds.keys() != other.kinds.keys():
            return False
        own = dict(self.pod_sets[0].requests)
        return all(own.get(name, 0) >= amount for name, amount in other.pod_sets[0].requests)

    def as_its_own(self, refusal: Refusal) -> Refusal:
        """What was said to another one that asks for less, with the numbers of this one."""
        if refusal.fr is None:
            return refusal
        needs = dict(self.pod_sets[0].requests).get(refusal.fr.resource, refusal.needs)
        why = Why.EXCEEDS_MAX_QUOTA if needs > refusal.most else refusal.why
        return refusal._replace(needs=needs, why=why)


class QuotaRequests:
    """Works out what each job asks for; jobs that are alike share the answer."""

    def __init__(
        self, world: World, tree: QuotaTree, known: dict[tuple[object, ...], QuotaRequest] | None = None
    ) -> None:
        """`known` is what was found before with the same quota and nodes; it grows."""
        self._world, self._tree = world, tree
        self._known: dict[tuple[object, ...], QuotaRequest] = {} if known is None else known
        self._most: dict[NodeRequirements, list[int]] = {}
        self._narrowed: dict[tuple[Flavors, NodeRequirements], NodeRequirements | None] = {}
        self._usage: dict[tuple[object, ...], Amounts] = {}

    def of_all(
        self, rows: IntArray, all_options: Sequence[FlavorOptions], options: IntArray
    ) -> tuple[list[QuotaRequest], IntArray]:
        """The different requests of these rows, and by row the number of its own; `options` has one number a row."""
        world, jobs, listed = self._world, self._world.jobs, rows.tolist()
        low = jobs.min
        key = options * (int(low.max(initial=0)) + 1) + low[rows]
        if len(world.caches.reach) > 1:
            # Jobs with equal wishes share the list of what they could have, so it tells them apart as well.
            reach = list(map(world.caches.most.get, map(jobs.ids.__getitem__, listed)))
            if None in reach:
                reach = list(map(world.most_for, listed))
            key = _combined(key, map(id, reach))
        if jobs.picky:
            key = _combined(key, (_likes(jobs.jobs[row]) for row in listed))
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return [self._of(listed[at], all_options[options[at]]) for at in first.tolist()], which

    def _of(self, row: int, options: FlavorOptions) -> QuotaRequest:
        job = self._world.jobs.jobs[row]
        key = (options, id(self._world.most_for(row)), job.min, _likes(job))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(row, options)
        return found

    def _make(self, row: int, options: FlavorOptions) -> QuotaRequest:
        world, job = self._world, self._world.jobs.jobs[row]
        covered = [resource for resources, _ in options for resource in resources]
        asked = {resource: demand(job, resource, job.min) for resource in covered}
        requests = {resource: amount for resource, amount in asked.items() if amount}
        named = dict.fromkeys(name for _, flavors in options for name in flavors)
        kinds = {name: found for name in named if (found := self._kinds(job, name, options))}
        if job.cpu_only and not requests:
            # Nothing of it counts in this queue, so its flavors do not say where it may run.
            kinds = dict.fromkeys(named, frozenset((_NO_CHOICE,)))
        flavors = _first_choice(options, requests, kinds)
        if len(flavors) < len(requests) or not (job.cpu_only or any(map(counts_gpus, covered))):
            # There is no quota for something that it needs: for GPUs, or in any flavor with nodes for it.
            kinds = {}
        most = world.most_for(row)
        ever = any(most[kind] >= job.min for kind in self._accepted(job))
        usage = {self._tree.number(FlavorResource(name, resource)): requests[resource] for resource, name in flavors}
        pods = PodSet(tuple(requests.items()), tolerations=_ALL)
        flavor_choice = None
        if len(kinds) == len(usage) == 1:
            [(resource, name)], [(fr, amount)] = flavors, usage.items()
            flavor_choice = FlavorChoice(resource, name, fr, amount)
        return QuotaRequest((pods,), kinds, ever, flavors, usage, flavor_choice)

    def _kinds(self, job: Job, name: str, options: FlavorOptions) -> frozenset[int]:
        flavor = self._world.effective_quota.flavor_of.get(name)
        if flavor is None:
            return frozenset()
        tolerations = job.tolerations + _as_text(flavor)
        if not all(tolerates(tolerations, str(taint)) for taint in flavor.node_taints if taint.keeps_out):
            return frozenset()
        most = self._most_for(_narrow(wishes_of(job), (flavor,)))
        if job.cpu_only:
            # Its nodes may have GPUs of any type, or none: there is no type to choose.
            return frozenset((_NO_CHOICE,)) if most[_NO_CHOICE] >= job.min else frozenset()
        named = self._named(options) if REST_LABEL in flavor.node_labels else ()
        types = self._world.nodes.types
        return frozenset(kind for kind in self._accepted(job) if most[kind] >= job.min and types[kind] not in named)

    def _named(self, options: FlavorOptions) -> set[str]:
        """The GPU types that a queue has flavors of their own for."""
        known = self._world.effective_quota.flavor_of
        return {
            value
            for _, flavors in options
            for name in flavors
            if name in known
            for key, value in known[name].node_labels
            if key == TYPE_LABEL
        }

    def _accepted(self, job: Job) -> list[int]:
        if job.cpu_only:
            return [_NO_CHOICE]
        types = self._world.nodes.types
        if not job.gpu_types:
            return list(range(len(types)))
        names = dict(job.gpu_types)
        return [kind for kind, name in enumerate(types) if name in names]

    def _most_for(self, wishes: NodeRequirements) -> list[int]:
        if wishes not in self._most:
            self._most[wishes] = most_gpus(self._world, wishes)
        return self._most[wishes]

    def usage(self, job: Job, flavors: Flavors, gpus: int) -> Amounts:
        """What a job with so many GPUs takes."""
        key = (flavors, gpus, job.cpus_milli_per_gpu, job.memory_mib_per_gpu, job.gpus_per_replica, job.share)
        found = self._usage.get(key)
        if found is None:
            found = self._usage[key] = {
                self._tree.number(FlavorResource(flavor, resource)): amount
                for resource, flavor in flavors
                if (amount := demand(job, resource, gpus))
            }
        return found

    def found(self, row: int, queue: str) -> Flavors:
        """The flavors of a job that has GPUs, without a record of how it got them: by its nodes."""
        world = self._world
        placement = world.jobs.placements[row]
        nodes = mask_of(tuple(world.nodes.index[node] for node in placement.nodes)) if placement is not None else 0
        wishes = wishes_of(world.jobs.jobs[row])
        found: list[tuple[str, str]] = []
        for group in world.effective_quota.queue_of[queue].groups:
            names = [one.flavor for one in group.flavors]
            known = (world.effective_quota.flavor_of.get(name) for name in names)
            # The flavor for the rest comes last by rule, so that a flavor of its own goes first.
            fitting = (
                flavor.name
                for flavor in known
                if flavor is not None
                and not nodes & ~world.nodes.matching(_narrow(wishes, (flavor,))._replace(tolerations=("*",)))
            )
            name = next(fitting, names[0] if names else "")
            found.extend((resource, name) for resource in group.resources if name)
        return tuple(found)

    def where(self, job: Job, flavors: Flavors) -> NodeRequirements | None:
        """What a job wants of nodes in these flavors; None if they add nothing but the GPU type."""
        wishes = wishes_of(job)
        key = (flavors, wishes)
        if key not in self._narrowed:
            own = [
                flavor
                for name in dict.fromkeys(name for _, name in flavors)
                if (flavor := self._world.effective_quota.flavor_of.get(name)) is not None
            ]
            narrowed = _narrow(wishes, tuple(own))
            self._narrowed[key] = None if self._is_same(wishes, narrowed) else narrowed
        return self._narrowed[key]

    def _is_same(self, wishes: NodeRequirements, narrowed: NodeRequirements) -> bool:
        """Whether, of each GPU type that is left, all nodes are left."""
        nodes = self._world.nodes
        before, after = nodes.matching(wishes), nodes.matching(narrowed)
        if not wishes.gpus_per_replica:
            return before == after
        return all(after & own in (0, before & own) for own in nodes.by_type) and not after & ~before


def _likes(job: Job) -> tuple[object, ...]:
    """What a job wants of GPUs."""
    return job.gpu_types, job.share


def _combined(key: IntArray, values: Iterable[Hashable]) -> IntArray:
    """Numbers that are equal where both the key and the values are."""
    listed = list(values)
    number = {value: k for k, value in enumerate(dict.fromkeys(listed))}
    return key * len(number) + np.fromiter(map(number.__getitem__, listed), np.int64, len(listed))


def _first_choice(options: FlavorOptions, requests: Mapping[str, int], kinds: Mapping[str, frozenset[int]]) -> Flavors:
    found: list[tuple[str, str]] = []
    for resources, flavors in options:
        first = next((name for name in flavors if name in kinds), None)
        found.extend((name, first) for name in resources if name in requests and first is not None)
    # In the order in which a search would find them.
    return tuple(sorted(found))


def _narrow(wishes: NodeRequirements, flavors: tuple[Flavor, ...]) -> NodeRequirements:
    labels, tolerations = wishes.node_labels, wishes.tolerations
    for flavor in flavors:
        labels += tuple(label for label in flavor.node_labels if label != REST_LABEL and label not in labels)
        tolerations += tuple(one for one in _as_text(flavor) if one not in tolerations)
    return wishes._replace(node_labels=labels, tolerations=tolerations)


def _as_text(flavor: Flavor) -> tuple[str, ...]:
    """The tolerations of a flavor as jobs have them."""
    found = []
    for one in flavor.tolerations:
        value = "" if one.operator == "Exists" else f"={one.value}"
        found.append(f"{one.key or '*'}{value}" + (f":{one.effect}" if one.effect else ""))
    return tuple(found)


class ResolvedQueue(NamedTuple):
    """The cluster queue of a job; with a refusal nothing new starts there now."""

    queue: str
    refusal: Refusal | None = None
    drains: bool = False  # what runs there has to leave


def resolve_queues(world: World, known: dict[tuple[str, str], ResolvedQueue | None]) -> list[ResolvedQueue | None]:
    """Return, by the number of a queue that jobs name, the cluster queue that it leads to.

    None for jobs that quota does not concern: they name no queue, and quota limits no job's GPUs. What is
    found out is entered into `known`, by namespace and name.
    """
    quota = world.effective_quota
    is_limited = isinstance(quota, EffectiveQuota)
    for namespace, name in world.jobs.queues:
        if (namespace, name) not in known:
            way = quota.way(namespace, name)
            concerned = way is not None or is_limited or name != DEFAULT_QUEUE
            known[namespace, name] = resolve_queue(quota, way, name) if concerned else None
    return [known[way] for way in world.jobs.queues]


def resolve_queue(quota: Quota, way: LocalQueue | None, name: str) -> ResolvedQueue:
    """Where a job gets that names a queue, by the local queue that was found for it."""
    if way is None:
        return ResolvedQueue("", Refusal(Why.MISCONFIGURED, f"there is no queue {name}"))
    queue = quota.queue_of.get(way.cluster_queue)
    if queue is None:
        text = f"queue {name} leads to the cluster queue {way.cluster_queue}, which is not there"
        return ResolvedQueue("", Refusal(Why.MISCONFIGURED, text))
    drains = StopPolicy.HOLD_AND_DRAIN in (queue.stop, way.stop)
    missing = dict.fromkeys(
        one.flavor for group in queue.groups for one in group.flavors if one.flavor not in quota.flavor_of
    )
    if missing:
        text = f"cluster queue {queue.name} has quota in flavors that are not there: {', '.join(missing)}"
        return ResolvedQueue(queue.name, Refusal(Why.MISCONFIGURED, text), drains)
    if queue.name in quota.leaving:
        return ResolvedQueue(queue.name, Refusal(Why.SUSPENDED, f"cluster queue {queue.name} is being removed"), drains)
    if queue.stop is not StopPolicy.NONE:
        return ResolvedQueue(queue.name, Refusal(Why.SUSPENDED, f"cluster queue {queue.name} is held"), drains)
    if way.stop is not StopPolicy.NONE:
        return ResolvedQueue(queue.name, Refusal(Why.SUSPENDED, f"queue {name} is held"), drains)
    return ResolvedQueue(queue.name)
