"""Queues, cohorts and quota changes as the API returns them (docs/reference/queues-view.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from batuta.apitypes.resources import QuotaReserved, ReasonGiven


@dataclass(frozen=True, slots=True)
class QuotaCell:
    """The quota in one resource of one flavor: GPUs, CPUs, bytes, pods."""

    flavor: str
    resource: str
    nominal: float = 0.0
    borrowing_limit: float | None = None  # the most that may be borrowed; null for as much as there is
    lending_limit: float | None = None  # the most that may be lent; null for all of it
    total: float = 0.0  # the nominal quota, in a cohort with that of all below it
    used: float = 0.0
    reserved: float = 0.0  # the part of `used` that the minimums of its jobs take
    growth: float = 0.0  # the rest of `used`: the first thing that is given back
    borrowed: float = 0.0
    lent: float = 0.0


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """How the jobs of a namespace reach a queue."""

    name: str
    namespace: str = ""
    stop_policy: str = "None"
    running: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue. `quota`, `used`, `borrowed` and `lent` are GPUs by flavor, `*` for all; see `cells`."""

    name: str
    state: str = ""
    message: str = ""  # why nothing starts in it, or what it may use without quota of its own; empty when all is well
    quota: dict[str, float] = field(default_factory=dict)
    cohort: str = ""
    weight: float = 1.0
    held: bool = False
    max_priority: int | None = None  # the highest priority that users may give its jobs; null: what the server says
    used: dict[str, float] = field(default_factory=dict)
    borrowed: dict[str, float] = field(default_factory=dict)
    lent: dict[str, float] = field(default_factory=dict)
    running: int = 0
    pending: int = 0
    suspended: int = 0  # jobs that are parked: they wait, but not for quota
    needs: dict[str, float] = field(default_factory=dict)  # by resource: what those that wait need at least
    share: float | None = 0.0
    """What it borrows, in thousandths of what its cohort could lend, by weight; null for a weight of 0."""
    strategy: str = ""
    stop_policy: str = "None"
    cells: tuple[QuotaCell, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()


@dataclass(frozen=True, slots=True)
class Cohort:
    """Queues, and cohorts of them, that lend to each other. Its numbers are those of all below it."""

    name: str
    parent: str = ""
    weight: float = 1.0
    share: float | None = 0.0
    pending: int = 0
    running: int = 0
    cells: tuple[QuotaCell, ...] = ()


@dataclass(frozen=True, slots=True)
class Queues:
    """All queues and cohorts, at one moment."""

    queues: tuple[Queue, ...] = ()
    cohorts: tuple[Cohort, ...] = ()
    fair_sharing: bool = False


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits, and why."""

    place: int  # how many are ahead of it in its queue, and one
    id: str
    name: str = ""
    user: str = ""
    priority: int = 0
    submitted_s: float | None = None
    gpus: int = 0  # that it needs at least
    reason: ReasonGiven | None = None
    quota_reserved: QuotaReserved | None = None


@dataclass(frozen=True, slots=True)
class HoldingJob:
    """A job that has quota."""

    id: str
    name: str = ""
    user: str = ""
    priority: int = 0
    submitted_s: float | None = None
    gpus: int = 0
    reserved: int = 0  # GPUs of its minimum
    flavors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueDetail(Queue):
    """A queue, those that wait in it in their order, and those that have its quota, the newest last."""

    waiting: tuple[WaitingJob, ...] = ()
    holding: tuple[HoldingJob, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangedObject:
    """What became of one object."""

    kind: str
    name: str
    namespace: str = ""
    change: str = ""


@dataclass(frozen=True, slots=True)
class QuotaChanged:
    """What became of each object, and what one should know about them."""

    objects: tuple[ChangedObject, ...] = ()
    notes: tuple[str, ...] = ()
