"""Who uses how much of which quota: a report that people, metrics and conditions are made from.

Amounts are whole thousandths, as everywhere in quota.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from batuta.core.job import Job
from batuta.core.quota import Cell, ClusterQueue, Flavors, Limits, LocalQueue


class JobUse(NamedTuple):
    """A living job as quota sees it."""

    job: Job
    gpus: int
    """That it has; of a CPU-only job its replicas."""
    waits: bool
    """For its first GPUs, or for new ones after it lost all."""
    suspended: bool = False
    """Its user does not want it to run now: it is ahead of nobody."""
    flavors: Flavors = ()
    """By resource, while it has GPUs."""


@dataclass(frozen=True, slots=True)
class CellUse:
    """The quota of a queue or cohort in one cell, and what is made of it."""

    cell: Cell
    limits: Limits
    total: int
    """Its own nominal quota, and that of the queues and cohorts below it."""
    used: int
    reserved: int
    """The part of `used` that the minimums of its jobs take."""
    borrowed: int
    """What it uses of others: above its own, and in a cohort above what those below it may lend."""
    lent: int
    """What others, outside of it, use of its quota."""

    @property
    def growth(self) -> int:
        """What its jobs have above their minimums: the first thing that is given back."""
        return self.used - self.reserved


@dataclass(frozen=True, slots=True)
class DoorUse:
    """A local queue: how the jobs of a namespace reach a cluster queue."""

    door: LocalQueue
    running: int
    pending: int


@dataclass(frozen=True, slots=True)
class QueueUse:
    """A cluster queue and its jobs."""

    queue: ClusterQueue
    cells: tuple[CellUse, ...] = ()
    waiting: tuple[Job, ...] = ()
    """In the order in which they get quota: priority, then submit time."""
    needs: tuple[tuple[str, int], ...] = ()
    """By resource: what those that wait need at least."""
    holders: tuple[JobUse, ...] = ()
    """Those that have GPUs, or are about to, as they came."""
    suspended: int = 0
    gpus: int = 0
    """That its jobs have, whether quota counts them or not, also those that are just stopping."""
    share: float = 0.0
    """What it borrows, in thousandths of what its cohort could lend, divided by its weight."""
    doors: tuple[DoorUse, ...] = ()
    set_up: bool = True
    """Otherwise nobody has said anything about it, and only jobs name it."""
    leaving: bool = False
    """It was removed, and goes with its last job."""
    misconfigured: str = ""
    """Why it cannot start anything; empty when it can."""

    @property
    def running(self) -> int:
        return len(self.holders)


@dataclass(frozen=True, slots=True)
class CohortUse:
    """A cohort and all that is below it."""

    name: str
    parent: str
    weight: float
    cells: tuple[CellUse, ...]
    running: int
    pending: int
    share: float


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Everything. `strangers` are queues that jobs name and nobody has set up."""

    queues: tuple[QueueUse, ...] = ()
    cohorts: tuple[CohortUse, ...] = ()
    strangers: tuple[QueueUse, ...] = ()
