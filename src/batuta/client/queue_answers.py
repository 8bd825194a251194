"""What a server answers about queues. docs/reference/queues-view.md says what each number means."""

from __future__ import annotations

from dataclasses import dataclass, field

from batuta.client.answers import QuotaReserved, Reason


@dataclass(frozen=True, slots=True)
class QuotaCell:
    """Quota in one resource of one flavor, and what is made of it: GPUs, CPUs, bytes, pods."""

    flavor: str
    resource: str
    nominal: float = 0.0
    borrowing_limit: float | None = None
    lending_limit: float | None = None
    total: float = 0.0
    """The nominal quota, in a cohort with that of all below it."""
    used: float = 0.0
    reserved: float = 0.0
    """The part of `used` that the minimums of jobs take."""
    growth: float = 0.0
    """The rest of `used`: the first thing that is given back."""
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
    message: str = ""
    """Why nothing starts in it; empty when all is well."""
    quota: dict[str, float] = field(default_factory=dict)
    cohort: str = ""
    weight: float = 1.0
    held: bool = False
    used: dict[str, float] = field(default_factory=dict)
    borrowed: dict[str, float] = field(default_factory=dict)
    """What it uses beyond its quota."""
    lent: dict[str, float] = field(default_factory=dict)
    """What others of its cohort use of its quota."""
    running: int = 0
    pending: int = 0
    suspended: int = 0
    """Jobs that are parked: they wait, but not for quota."""
    needs: dict[str, float] = field(default_factory=dict)
    """By resource: what those that wait need at least."""
    share: float | None = 0.0
    """What it borrows, in thousandths of what its cohort could lend, by weight; None for a weight of 0."""
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
class QueueTree:
    """All queues and cohorts, at one moment."""

    queues: tuple[Queue, ...] = ()
    cohorts: tuple[Cohort, ...] = ()
    fair_sharing: bool = False


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits, its place in line, and why it waits."""

    place: int
    id: str
    name: str = ""
    user: str = ""
    priority: int = 0
    submitted_s: float | None = None
    gpus: int = 0
    """That it needs at least."""
    reason: Reason | None = None
    quota_reserved: QuotaReserved | None = None


@dataclass(frozen=True, slots=True)
class HoldingJob:
    """A job that has quota; `reserved` are the GPUs of its minimum."""

    id: str
    name: str = ""
    user: str = ""
    priority: int = 0
    submitted_s: float | None = None
    gpus: int = 0
    reserved: int = 0
    flavors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueDetail(Queue):
    """A queue, those that wait in it in their order, and those that have its quota."""

    waiting: tuple[WaitingJob, ...] = ()
    holding: tuple[HoldingJob, ...] = ()
