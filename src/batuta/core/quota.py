"""Who may use how much, as administrators say it: Kueue's objects as plain values.

Amounts are whole thousandths, so that `500m` of a CPU is exact; a GPU is 1000, a byte of memory 1000.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias

from batuta.core.idle_wish import NO_WISH, IdleWish

MILLI = 1000


class Cell(NamedTuple):
    """What quota is counted in: a resource of one flavor."""

    flavor: str
    resource: str


Flavors: TypeAlias = tuple[tuple[str, str], ...]
"""By resource: the flavor that a job takes it from."""


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
    tolerations: tuple[Toleration, ...] = ()
    """Added to what each job of this flavor tolerates."""


class Limits(NamedTuple):
    """The quota of one cell."""

    nominal: int = 0
    borrowing: int | None = None
    """The most that may be borrowed above nominal; None for as much as there is."""
    lending: int | None = None
    """The most that may be lent; None for all of it."""


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
    max_priority: int | None = None
    """… of those with at most this priority; None for any lower than their own."""


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
    namespaces: Selector | None = Selector()
    """Whose jobs it takes; None for nobody's."""
    weight: float = 1.0
    stop: StopPolicy = StopPolicy.NONE
    idle: IdleWish = NO_WISH
    trial: bool | None = None
    """Whether its jobs are tried out before they wait; None: it does not say."""


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """A name under which the jobs of one namespace reach a cluster queue; empty namespace: of every one."""

    name: str
    cluster_queue: str
    namespace: str = ""
    stop: StopPolicy = StopPolicy.NONE
    idle: IdleWish = NO_WISH
    """Goes before that of its cluster queue."""
    trial: bool | None = None
    """The same."""


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

    def idle_wish(self, namespace: str, queue: str) -> IdleWish:
        """What is wanted of jobs of a queue that leave their GPUs idle."""
        door = self.way(namespace, queue)
        if door is None or door.cluster_queue not in self.queue_of:
            return NO_WISH
        return door.idle.or_else(self.queue_of[door.cluster_queue].idle)

    def wants_trial(self, namespace: str, queue: str) -> bool:
        """Whether jobs of a queue are tried out before they wait, where they do not say so themselves."""
        door = self.way(namespace, queue)
        if door is None or door.cluster_queue not in self.queue_of:
            return False
        return bool(self.queue_of[door.cluster_queue].trial if door.trial is None else door.trial)


def cells_of(groups: tuple[ResourceGroup, ...]) -> Iterator[tuple[Cell, Limits]]:
    """Each cell that a queue or cohort has quota in, with its limits."""
    for group in groups:
        for flavor in group.flavors:
            for resource, limits in zip(group.resources, flavor.limits, strict=True):
                yield Cell(flavor.flavor, resource), limits
