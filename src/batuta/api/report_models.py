"""The account of GPU time, as the OpenAPI document has it."""

from __future__ import annotations

from pydantic import BaseModel


class Spent(BaseModel):
    """What jobs did with GPU time, in GPU-seconds."""

    used_gpu_s: float
    """Held by jobs that made progress, and kept it."""
    restarting_gpu_s: float
    """Held by jobs that were starting, being resized, or had lost a part of their GPUs."""
    lost_gpu_s: float
    """Held by jobs whose progress was lost with what came after the last checkpoint."""
    waiting_gpu_s: float
    """Asked for and not had. It is no part of the capacity."""


class QueueSpent(Spent):
    """The same of one queue."""

    queue: str


class Account(Spent):
    """All GPU time: used, restarting, lost, idle, fragmented and unavailable are the capacity."""

    capacity_gpu_s: float
    """GPUs of all nodes that were there."""
    idle_gpu_s: float
    """Free, and nobody waited who could have used it, or it was about to be given."""
    fragmented_gpu_s: float
    """Free, and of no use to the smallest job that waited for such GPUs."""
    unavailable_gpu_s: float
    """Ill, cordoned, or used by others."""


class DayAccount(Account):
    """The account of one day, UTC."""

    day: str
    queues: list[QueueSpent]


class Report(BaseModel):
    """Where the GPU time went."""

    from_s: float
    to_s: float
    total: Account
    queues: list[QueueSpent]
    days: list[DayAccount]
    notes: list[str]
    """What is missing from it."""
