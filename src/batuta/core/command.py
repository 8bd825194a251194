"""What a plan tells a backend to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from batuta.core.cluster import Placement
from batuta.core.job import JobId
from batuta.core.reason import Evidence, Reason


@dataclass(frozen=True, slots=True)
class Start:
    """Run a job that has no GPUs."""

    job: JobId
    placement: Placement
    reason: Reason
    evidence: Evidence = ()


@dataclass(frozen=True, slots=True)
class Resize:
    """Give a running job another number of GPUs."""

    job: JobId
    placement: Placement
    reason: Reason
    evidence: Evidence = ()


@dataclass(frozen=True, slots=True)
class Migrate:
    """Give a running job the same number of GPUs elsewhere."""

    job: JobId
    placement: Placement
    reason: Reason
    evidence: Evidence = ()


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take all GPUs from a job; it keeps its progress and waits again."""

    job: JobId
    reason: Reason
    evidence: Evidence = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """End a job for good, whether it has GPUs or not. It is over once the backend says so."""

    job: JobId
    reason: Reason
    evidence: Evidence = ()


Command: TypeAlias = Start | Resize | Migrate | Preempt | Stop
