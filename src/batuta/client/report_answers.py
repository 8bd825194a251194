"""The account of GPU time, as values. The shapes are those of docs/reference/http-api.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueSpent:
    """What the jobs of a queue did with GPU time, in GPU-seconds; `waiting` is no part of the capacity."""

    queue: str
    used_gpu_s: float = 0.0
    restarting_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    waiting_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Account:
    """All GPU time: used, restarting, lost, idle, fragmented and unavailable are the capacity."""

    capacity_gpu_s: float = 0.0
    used_gpu_s: float = 0.0
    restarting_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    idle_gpu_s: float = 0.0
    fragmented_gpu_s: float = 0.0
    unavailable_gpu_s: float = 0.0
    waiting_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DayAccount(Account):
    """The account of one day, UTC."""

    day: str = ""
    queues: tuple[QueueSpent, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Where the GPU time went."""

    from_s: float
    to_s: float
    total: Account = Account()
    queues: tuple[QueueSpent, ...] = ()
    days: tuple[DayAccount, ...] = ()
    notes: tuple[str, ...] = ()
