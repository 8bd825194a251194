"""The report of GPU time as the API returns it (docs/reference/http-api.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spent:
    """GPU time of jobs."""

    used_gpu_s: float = 0.0
    """Held by jobs that ran and kept their progress, as far as the GPUs were busy."""
    unused_gpu_s: float = 0.0
    """Held by the same jobs while the GPUs were not busy, as measured; 0 where it is not measured."""
    restarting_gpu_s: float = 0.0
    """Held by jobs that were starting, being resized, or had lost a part of their GPUs."""
    lost_gpu_s: float = 0.0
    """Held by jobs whose progress was lost with what came after the last checkpoint."""
    waiting_gpu_s: float = 0.0
    """Asked for and not had. It is no part of the capacity."""


@dataclass(frozen=True, slots=True)
class QueueSpent(Spent):
    """The same of one queue."""

    queue: str = ""


@dataclass(frozen=True, slots=True)
class UserSpent(Spent):
    """The same of one user."""

    user: str = ""
    """Empty for jobs that have none."""


@dataclass(frozen=True, slots=True)
class Account(Spent):
    """All GPU time: used, unused, restarting, lost, idle, fragmented and unavailable are the capacity."""

    capacity_gpu_s: float = 0.0
    """GPUs of all nodes that were there."""
    idle_gpu_s: float = 0.0
    """Free, and no waiting job could have used it, or it was about to be given."""
    fragmented_gpu_s: float = 0.0
    """Free, and of no use to the smallest job that waited for such GPUs."""
    unavailable_gpu_s: float = 0.0
    """Ill, cordoned, or used by others."""


@dataclass(frozen=True, slots=True)
class DayAccount(Account):
    """The account of one day, UTC."""

    day: str = ""
    queues: tuple[QueueSpent, ...] = ()
    users: tuple[UserSpent, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Where the GPU time went."""

    from_s: float
    to_s: float
    total: Account = Account()
    queues: tuple[QueueSpent, ...] = ()
    users: tuple[UserSpent, ...] = ()
    days: tuple[DayAccount, ...] = ()
    notes: tuple[str, ...] = ()
