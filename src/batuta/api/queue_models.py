"""What is answered about queues and cohorts; docs/reference/queues-view.md says what each number means."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from batuta.api.models import QuotaReserved, ReasonGiven
from batuta.core.quota import StopPolicy, Strategy

QueueState = Literal["active", "held", "draining", "leaving", "misconfigured", "open", "unknown"]


class QuotaCell(BaseModel):
    """The quota in one resource of one flavor: GPUs, CPUs, bytes, pods."""

    flavor: str
    resource: str
    nominal: float
    borrowing_limit: float | None
    """The most that may be borrowed; null for as much as there is."""
    lending_limit: float | None
    """The most that may be lent; null for all of it."""
    total: float
    """The nominal quota, in a cohort with that of all below it."""
    used: float
    reserved: float
    """The part of `used` that the minimums of its jobs take."""
    growth: float
    """The rest of `used`: the first thing that is given back."""
    borrowed: float
    lent: float


class LocalQueue(BaseModel):
    """How the jobs of a namespace reach a queue."""

    name: str
    namespace: str
    stop_policy: StopPolicy
    running: int
    pending: int


class Queue(BaseModel):
    """A queue. `quota`, `used`, `borrowed` and `lent` are GPUs by flavor, `*` for all; see `cells`."""

    name: str
    state: QueueState
    message: str
    """Why nothing starts in it; empty when all is well."""
    quota: dict[str, float]
    cohort: str
    weight: float
    held: bool
    used: dict[str, float]
    borrowed: dict[str, float]
    """What it uses beyond its quota."""
    lent: dict[str, float]
    """What others of its cohort use of its quota."""
    pending: int
    running: int
    suspended: int
    """Jobs that are parked: they wait, but not for quota."""
    needs: dict[str, float]
    """By resource: what those that wait need at least."""
    share: float | None
    """What it borrows, in thousandths of what its cohort could lend, by weight; null for a weight of 0."""
    strategy: Strategy
    stop_policy: StopPolicy
    cells: list[QuotaCell]
    local_queues: list[LocalQueue]


class Cohort(BaseModel):
    """Queues, and cohorts of them, that lend to each other. Its numbers are those of all below it."""

    name: str
    parent: str
    """The cohort that it is part of; empty for none."""
    weight: float
    share: float | None
    pending: int
    running: int
    cells: list[QuotaCell]


class Queues(BaseModel):
    """All queues and cohorts, at one moment."""

    queues: list[Queue]
    cohorts: list[Cohort]
    fair_sharing: bool


class WaitingJob(BaseModel):
    """A job that waits, and why."""

    place: int
    """How many are ahead of it in its queue, and one."""
    id: str
    name: str
    user: str
    priority: int
    submitted_s: float
    gpus: int
    """That it needs at least."""
    reason: ReasonGiven | None
    quota_reserved: QuotaReserved


class HoldingJob(BaseModel):
    """A job that has quota."""

    id: str
    name: str
    user: str
    priority: int
    submitted_s: float
    gpus: int
    reserved: int
    """GPUs of its minimum."""
    flavors: dict[str, str]
    """By resource."""


class QueueDetail(Queue):
    """A queue, those that wait in it in their order, and those that have its quota, the newest last."""

    waiting: list[WaitingJob]
    holding: list[HoldingJob]
