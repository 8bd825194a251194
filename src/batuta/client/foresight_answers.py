"""What a server answers about the future."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Expected:
    """A moment (Unix time) that comes by then in five, and in nine, of ten cases; None for unknown."""

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


@dataclass(frozen=True, slots=True)
class Eta:
    """When jobs start and finish, if what is assumed is true."""

    now_s: float
    policy: str = ""
    runs: int = 0
    precision: float = 0.0
    assumes: tuple[str, ...] = ()
    jobs: tuple[JobEta, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """As things are, and changed; None for what does not come about."""

    before: float | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True)
class JobChange:
    """What becomes of one job."""

    id: str
    name: str = ""
    jct_s: Change = field(default_factory=Change)
    wait_s: Change = field(default_factory=Change)
    fairness: Change = field(default_factory=Change)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The difference that a change would make."""

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
    """A job for which the other policy would have done something else."""

    id: str
    has: int = 0
    """GPUs that it has."""
    would_have: int = 0
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Shadow:
    """What a policy that only watches would have done, since it began to watch."""

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
