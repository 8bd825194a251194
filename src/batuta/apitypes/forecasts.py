"""Forecasts, what-if comparisons, the shadow policy and the report of GPU time as the API returns them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Expected:
    """A moment that comes with a probability of a half by `p50_s`, of nine tenths by `p90_s` (Unix time)."""

    p50_s: float | None = None
    p90_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobEta:
    """When a job starts and finishes; `why` says why there is no answer."""

    id: str
    name: str = ""
    state: str = ""
    start: Expected = field(default_factory=Expected)
    finish: Expected = field(default_factory=Expected)
    why: str = ""
    coarse: bool = False  # by the order of the jobs alone: there was no time to simulate


@dataclass(frozen=True, slots=True)
class EtaAnswer:
    """When all jobs start and finish, if what is assumed is true."""

    now_s: float
    policy: str = ""
    runs: int = 0  # so many futures were looked at
    precision: float = 0.0  # times ahead are good to this share of them; 0: as good as what is known of the jobs
    assumes: tuple[str, ...] = ()
    jobs: tuple[JobEta, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """As things are, and changed; null for what does not come about in every run."""

    before: float | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True)
class JobChange:
    """What becomes of one job."""

    id: str
    name: str = ""
    jct_s: Change = field(default_factory=Change)
    wait_s: Change = field(default_factory=Change)  # without GPUs, from now on
    fairness: Change = field(default_factory=Change)
    """Finish-time fairness from now on: time taken over that of a fair share of the cluster."""


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """The difference that it makes; means over jobs that end either way, and over all runs."""

    now_s: float
    policy: str = ""
    changed_policy: str = ""
    runs: int = 0
    assumes: tuple[str, ...] = ()
    jct_s: Change = field(default_factory=Change)
    wait_s: Change = field(default_factory=Change)
    fairness: Change = field(default_factory=Change)
    worst_fairness: Change = field(default_factory=Change)
    utilisation: Change = field(default_factory=Change)
    makespan_s: Change = field(default_factory=Change)
    restarts: Change = field(default_factory=Change)
    preemptions: Change = field(default_factory=Change)
    unfinished: Change = field(default_factory=Change)
    jobs: tuple[JobChange, ...] = ()


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """A job that has other GPUs than the shadow would have given it."""

    id: str
    has: int = 0
    would_have: int = 0
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShadowAnswer:
    """What the shadow would have done in the cycles that it has looked at; an empty policy: there is none."""

    policy: str = ""
    active_policy: str = ""
    since_s: float = 0.0
    cycles: int = 0
    skipped: int = 0
    agreed: int = 0
    failed: int = 0
    trouble: str = ""
    would: dict[str, int] = field(default_factory=dict)
    did: dict[str, int] = field(default_factory=dict)
    differences: tuple[ShadowDifference, ...] = ()


@dataclass(frozen=True, slots=True)
class Spent:
    """GPU time of jobs."""

    used_gpu_s: float = 0.0  # held by jobs that ran and kept their progress, as far as the GPUs were busy
    unused_gpu_s: float = 0.0
    """Held by the same jobs while the GPUs were not busy, as measured; 0 where it is not measured."""
    restarting_gpu_s: float = 0.0  # held by jobs that were starting, being resized, or had lost a part of their GPUs
    lost_gpu_s: float = 0.0  # held by jobs whose progress was lost with what came after the last checkpoint
    waiting_gpu_s: float = 0.0  # asked for and not had. It is no part of the capacity.


@dataclass(frozen=True, slots=True)
class QueueSpent(Spent):
    """The same of one queue."""

    queue: str = ""


@dataclass(frozen=True, slots=True)
class UserSpent(Spent):
    """The same of one user."""

    user: str = ""  # empty for jobs that have none


@dataclass(frozen=True, slots=True)
class Account(Spent):
    """All GPU time: used, unused, restarting, lost, idle, fragmented and unavailable are the capacity."""

    capacity_gpu_s: float = 0.0  # GPUs of all nodes that were there
    idle_gpu_s: float = 0.0  # free, and no waiting job could have used it, or it was about to be given
    fragmented_gpu_s: float = 0.0  # free, and of no use to the smallest job that waited for such GPUs
    unavailable_gpu_s: float = 0.0  # ill, cordoned, or used by others


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
