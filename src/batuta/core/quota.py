"""Quota as administrators declare it: Kueue's objects as plain values, and the quota that follows from them.

Amounts are whole thousandths, so that `500m` of a CPU is exact; a GPU is 1000, a byte of memory 1000.

Jobs that name no queue are in `default`. Once queues have quota for GPUs, `default` may use the GPUs of the
cluster less the nominal quota of all queues and cohorts, by GPU type, unless it has a quota of its own. It
is a cluster queue like any other then: it lends nothing and borrows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias

from batuta.core.node_table import TYPE_LABEL, NodeTable


class IdleAction(Enum):
    """What is done about a job that leaves its GPUs idle, beside telling so."""

    REPORT = "report"
    SHRINK = "shrink"  # it is made as small as it may be
    PARK = "park"  # it makes a checkpoint and waits until a user starts it again


class IdleWish(NamedTuple):
    """What a queue says of it; None: nothing."""

    action: IdleAction | None = None
    after_s: float | None = None

    def or_else(self, other: IdleWish) -> IdleWish:
        """What this one says, and the other where this says nothing."""
        return IdleWish(self.action or other.action, self.after_s or other.after_s)


NO_WISH = IdleWish()


MILLI = 1000
NO_LIMIT = 10_000_000 * MILLI  # a nominal quota of so much stands for no limit: more than any cluster has
ALL_GPUS = "batuta.dev/gpus"  # a resource that counts every GPU of a job, whatever else counts it too


def counts_gpus(resource: str) -> bool:
    """Whether quota in this resource is counted in GPUs."""
    return resource in (ALL_GPUS, "gpu") or resource.endswith("/gpu")


class FlavorResource(NamedTuple):
    """What quota is counted in: a resource of one flavor."""

    flavor: str
    resource: str


Flavors: TypeAlias = tuple[tuple[str, str], ...]  # by resource: the flavor that a job takes it from


class Strategy(Enum):
    """Whether a job that does not fit lets those behind it pass."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class StopPolicy(Enum):
    """Whether a queue starts jobs, and whether those that run may stay."""

    NONE = "None"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"


class Within(Enum):
    """Which jobs of its own queue a job may push aside."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"


class Reclaim(Enum):
    """Which jobs of queues that borrow a job may push aside to get its queue's own quota back."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    ANY = "Any"


class Search(Enum):
    """What to do with a flavor in which a job could borrow, or push others aside."""

    MAY_STOP_SEARCH = "MayStopSearch"
    TRY_NEXT_FLAVOR = "TryNextFlavor"


class Preference(Enum):
    """Which of two flavors is better when in one the job borrows and in the other it pushes others aside."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


@dataclass(frozen=True, slots=True)
class Taint:
    """A mark on nodes that keeps away who does not tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"

    @property
    def keeps_out(self) -> bool:
        return self.effect in ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Toleration:
    """A mark that does not matter. An empty key with `Exists` tolerates all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Flavor:
    """A kind of hardware that quota is given in: the nodes that have its labels."""

    name: str
    node_labels: tuple[tuple[str, str], ...] = ()
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()  # added to what each job of this flavor tolerates


class Limits(NamedTuple):
    """The quota of one cell."""

    nominal: int = 0
    borrowing: int | None = None  # the most that may be borrowed above nominal; None for as much as there is
    lending: int | None = None  # the most that may be lent; None for all of it


@dataclass(frozen=True, slots=True)
class FlavorQuota:
    """The quota in one flavor, one entry for each resource of the group and in its order."""

    flavor: str
    limits: tuple[Limits, ...]


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that a job takes from one flavor together; flavors are tried in order."""

    resources: tuple[str, ...]
    flavors: tuple[FlavorQuota, ...]


@dataclass(frozen=True, slots=True)
class Preemption:
    """Whom the jobs of a queue may push aside."""

    within: Within = Within.NEVER
    reclaim: Reclaim = Reclaim.NEVER
    while_borrowing: bool = False
    """Kueue's borrowWithinCohort with policy LowerPriority: also jobs that borrow may push others aside."""
    max_priority: int | None = None  # … of those with at most this priority; None for any lower than their own


@dataclass(frozen=True, slots=True)
class Fungibility:
    """How a flavor is chosen when there are several."""

    when_can_borrow: Search = Search.MAY_STOP_SEARCH
    when_can_preempt: Search = Search.TRY_NEXT_FLAVOR
    preference: Preference = Preference.BORROWING_OVER_PREEMPTION


class Expression(NamedTuple):
    """One term of a selector: In, NotIn, Exists, DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Selector:
    """Labels that something must have; an empty one selects everything."""

    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[Expression, ...] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.labels) and all(
            _holds(term, labels) for term in self.expressions
        )


def _holds(term: Expression, labels: Mapping[str, str]) -> bool:
    match term.operator:
        case "In":
            return labels.get(term.key) in term.values
        case "NotIn":
            return labels.get(term.key) not in term.values
        case "Exists":
            return term.key in labels
    return term.key not in labels


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """Quota that jobs wait for."""

    name: str
    cohort: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    strategy: Strategy = Strategy.BEST_EFFORT_FIFO
    preemption: Preemption = Preemption()
    fungibility: Fungibility = Fungibility()
    namespaces: Selector | None = Selector()  # whose jobs it takes; None: it takes no jobs
    weight: float = 1.0
    stop: StopPolicy = StopPolicy.NONE
    idle: IdleWish = NO_WISH
    trial: bool | None = None  # whether its jobs are tried out before they wait; None: it does not say
    max_priority: int | None = None  # the highest priority that users may give its jobs; None: it does not say


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """A name under which the jobs of one namespace reach a cluster queue; empty namespace: of every one."""

    name: str
    cluster_queue: str
    namespace: str = ""
    stop: StopPolicy = StopPolicy.NONE
    idle: IdleWish = NO_WISH  # goes before that of its cluster queue
    trial: bool | None = None  # the same
    max_priority: int | None = None  # the same


@dataclass(frozen=True, slots=True)
class Cohort:
    """Queues, and cohorts of them, that lend to each other; with quota of its own if it likes."""

    name: str
    parent: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A name for a priority."""

    name: str
    value: int
    description: str = ""


@dataclass(frozen=True)
class Quota:
    """Everything that administrators said, as one value: it changes as a whole or not at all."""

    flavors: tuple[Flavor, ...] = ()
    cohorts: tuple[Cohort, ...] = ()
    cluster_queues: tuple[ClusterQueue, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    fair_sharing: bool = False
    """Whether a queue may push aside borrowers of another one that borrows more for its weight."""
    leaving: tuple[str, ...] = field(default=())
    """Cluster queues that were removed while jobs ran in them: they start nothing more."""

    def __bool__(self) -> bool:
        return bool(self.cluster_queues)

    @cached_property
    def flavor_of(self) -> dict[str, Flavor]:
        return {flavor.name: flavor for flavor in self.flavors}

    @cached_property
    def queue_of(self) -> dict[str, ClusterQueue]:
        return {queue.name: queue for queue in self.cluster_queues}

    @cached_property
    def _doors(self) -> dict[tuple[str, str], LocalQueue]:
        return {(queue.namespace, queue.name): queue for queue in self.local_queues}

    def door(self, namespace: str, queue: str) -> LocalQueue | None:
        """The local queue by which the jobs of a namespace reach their quota."""
        doors = self._doors
        found = doors.get((namespace, queue)) or doors.get(("", queue))
        if found is None and not namespace:
            # Where there are no namespaces, a local queue is known by its name alone.
            same = [door for door in self.local_queues if door.name == queue]
            found = same[0] if len(same) == 1 else None
        return found

    def way(self, namespace: str, queue: str) -> LocalQueue | None:
        """The same; where there are no namespaces a job may also name a cluster queue itself."""
        found = self.door(namespace, queue)
        if found is None and not namespace and queue in self.queue_of:
            return LocalQueue(queue, queue)
        return found

    def _both(self, namespace: str, queue: str) -> tuple[LocalQueue, ClusterQueue]:
        """The queues that say something of the jobs of a queue; empty ones where the queue is not there."""
        door = self.way(namespace, queue)
        if door is None or door.cluster_queue not in self.queue_of:
            return LocalQueue(queue, ""), ClusterQueue("")
        return door, self.queue_of[door.cluster_queue]

    def idle_wish(self, namespace: str, queue: str) -> IdleWish:
        """What is wanted of jobs of a queue that leave their GPUs idle."""
        door, cluster_queue = self._both(namespace, queue)
        return door.idle.or_else(cluster_queue.idle)

    def wants_trial(self, namespace: str, queue: str) -> bool:
        """Whether jobs of a queue are tried out before they wait, where they do not say so themselves."""
        door, cluster_queue = self._both(namespace, queue)
        return bool(cluster_queue.trial if door.trial is None else door.trial)

    def max_priority(self, namespace: str, queue: str) -> int | None:
        """The highest priority that users may give jobs of a queue; None where the queue does not say."""
        door, cluster_queue = self._both(namespace, queue)
        return cluster_queue.max_priority if door.max_priority is None else door.max_priority


def flavor_resources_of(groups: tuple[ResourceGroup, ...]) -> Iterator[tuple[FlavorResource, Limits]]:
    """Each cell that a queue or cohort has quota in, with its limits."""
    for group in groups:
        for flavor in group.flavors:
            for resource, limits in zip(group.resources, flavor.limits, strict=True):
                yield FlavorResource(flavor.flavor, resource), limits


DEFAULT_QUEUE = "default"
REST_LABEL = (TYPE_LABEL, "*")  # the label of a flavor for all GPU types that a queue has no other flavor for
_GPU = "nvidia.com/gpu"


class RestOfType(NamedTuple):
    """GPUs of one type: those of the cluster, and those that no queue or cohort has nominal quota for."""

    gpu_type: str
    gpus: int
    left: int


@dataclass(frozen=True)
class EffectiveQuota(Quota):
    """Declared quota, and the cluster queue `default` for jobs that name no queue."""

    rest: tuple[RestOfType, ...] = ()  # what `default` may use, by GPU type; empty where it was declared itself

    def way(self, namespace: str, queue: str) -> LocalQueue | None:
        found = super().way(namespace, queue)
        if found is None and queue == DEFAULT_QUEUE and self.queue_of[queue].namespaces == Selector():
            return LocalQueue(queue, queue)
        return found


def effective_quota(quota: Quota, nodes: NodeTable, lost: int = 0, resource: str = _GPU) -> Quota:
    """Return the quota that holds on these nodes, of which some are lost; itself where it limits no GPUs.

    `resource` is what GPUs of `default` are counted in.
    """
    given = [claim for groups in _declared(quota) for claim in _claims(quota, groups)]
    if not given:
        return quota
    declared = {one.name: getattr(quota, one.name) for one in fields(Quota)}
    if DEFAULT_QUEUE in quota.queue_of and DEFAULT_QUEUE not in quota.leaving:
        return EffectiveQuota(**declared)
    rest = _rest(given, nodes, nodes.all & ~lost)
    flavors = [_flavor_of_type(quota, one.gpu_type) for one in rest]
    own = tuple(
        FlavorQuota(flavor.name, (Limits(one.left * MILLI),)) for flavor, one in zip(flavors, rest, strict=True)
    )
    queue = ClusterQueue(
        DEFAULT_QUEUE,
        groups=(ResourceGroup((resource,), own),) if own else (),
        preemption=Preemption(Within.LOWER_PRIORITY),
    )
    declared["flavors"] += tuple(flavor for flavor in flavors if flavor.name not in quota.flavor_of)
    others = tuple(one for one in quota.cluster_queues if one.name != DEFAULT_QUEUE)
    declared["cluster_queues"] = (*others, queue)
    declared["leaving"] = tuple(name for name in quota.leaving if name != DEFAULT_QUEUE)
    return EffectiveQuota(**declared, rest=rest)


def rest_of(quota: Quota) -> tuple[RestOfType, ...]:
    """Return what `default` may use by GPU type; nothing where it has quota of its own, or needs none."""
    return quota.rest if isinstance(quota, EffectiveQuota) else ()


def tell_rest(quota: Quota) -> str:
    """Return a sentence on what `default` may use; an empty one where `rest_of` is."""
    rest = rest_of(quota)
    if not rest:
        return ""
    gpus, left = sum(one.gpus for one in rest), sum(one.left for one in rest)
    own = f"queue {DEFAULT_QUEUE} (jobs that name no queue) has no quota of its own"
    fix = 'to give it some: queues: [{name: default, quota: {"*": N}}]'
    if not left:
        return f"{own}, and quotas leave it none of the {gpus} GPUs: its jobs wait; {fix}"
    by_type = f" ({', '.join(f'{one.left} {one.gpu_type}' for one in rest)})" if len(rest) > 1 else ""
    return f"{own}: it may use the {left} of {gpus} GPUs that quotas leave{by_type}; {fix}"


class _Claim(NamedTuple):
    """So many thousandths of GPUs of the nodes with these labels belong to a queue or a cohort."""

    labels: tuple[tuple[str, str], ...]
    amount: int


def _declared(quota: Quota) -> Iterator[tuple[ResourceGroup, ...]]:
    for queue in quota.cluster_queues:
        if queue.name != DEFAULT_QUEUE or queue.name not in quota.leaving:
            yield queue.groups
    for cohort in quota.cohorts:
        yield cohort.groups


def _claims(quota: Quota, groups: tuple[ResourceGroup, ...]) -> Iterator[_Claim]:
    """What one queue or cohort was given. A limit on GPUs of all types includes those by type."""
    by_type, of_all = list[_Claim](), list[_Claim]()
    for cell, limits in flavor_resources_of(groups):
        flavor = quota.flavor_of.get(cell.flavor)
        if flavor is None or not counts_gpus(cell.resource) or limits.nominal >= NO_LIMIT:
            continue
        claim = _Claim(tuple(label for label in flavor.node_labels if label != REST_LABEL), limits.nominal)
        (of_all if cell.resource == ALL_GPUS else by_type).append(claim)
    yield from by_type
    counted = sum(claim.amount for claim in by_type)
    for claim in of_all:
        yield claim._replace(amount=max(0, claim.amount - counted))


def _rest(given: list[_Claim], nodes: NodeTable, there: int) -> tuple[RestOfType, ...]:
    """What all claims leave of each GPU type.

    Claims on the fewest GPUs are met first; a claim on several types takes from the one that has most left.
    """
    total = _gpus_by_type(nodes, there)
    left = list(total)
    known = {claim.labels: _gpus_by_type(nodes, _with_labels(nodes, there, claim.labels)) for claim in given}
    for claim in sorted(given, key=lambda one: sum(known[one.labels])):
        wants = claim.amount
        own = known[claim.labels]
        for kind in sorted(range(len(left)), key=lambda kind: -left[kind]):
            taken = min(wants, left[kind], own[kind])
            left[kind] -= taken
            wants -= taken
    return tuple(
        RestOfType(name, total[kind] // MILLI, left[kind] // MILLI)
        for kind, name in enumerate(nodes.types)
        if nodes.by_type[kind]
    )


def _with_labels(nodes: NodeTable, there: int, labels: tuple[tuple[str, str], ...]) -> int:
    for label in labels:
        there &= nodes.by_label.get(label, 0)
    return there


def _gpus_by_type(nodes: NodeTable, chosen: int) -> list[int]:
    """The GPUs of these nodes by type, in thousandths."""
    return [
        sum(gpus * MILLI * (own & chosen & sized).bit_count() for gpus, sized in nodes.by_size.items())
        for own in nodes.by_type
    ]


def _flavor_of_type(quota: Quota, gpu_type: str) -> Flavor:
    """A flavor of the type's own name, whatever is declared: what jobs hold keeps its flavor."""
    flavor = Flavor(gpu_type, ((TYPE_LABEL, gpu_type),))
    while quota.flavor_of.get(flavor.name, flavor) != flavor:
        flavor = replace(flavor, name=f"{flavor.name}-type")
    return flavor
