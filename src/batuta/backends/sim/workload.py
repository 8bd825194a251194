"""What a simulation runs: jobs with the truth about them that the scheduler does not see."""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core.curve import SpeedCurve
from batuta.core.job import Job


@dataclass(frozen=True, slots=True)
class GoodputRequest:
    """A job of the Pollux model: what it trains, and the rigid request that came with it."""

    application: str
    num_replicas: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job as the scheduler is told of it, and as it really is."""

    job: Job
    work_s: float
    """True seconds of work on one GPU of the reference type."""
    curve: SpeedCurve
    """True speed by GPU count; `job.curve` is what the scheduler believes."""
    goodput: GoodputRequest | None = None
    """Set for the goodput replay, which then ignores `work_s` and `curve`."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in submit order (ties in the order of the source)."""

    name: str
    format: str
    jobs: tuple[SimJob, ...]
    notes: tuple[str, ...] = ()
    """What the reader left out or assumed, for people to read."""
