"""What a server answers, as values. The shapes are those of docs/reference/http-api.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OVER = frozenset(("SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED"))
"""The states that a job never leaves."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one GPU."""

    memory_mib: int = 0
    compute_percent: int = 0


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """How many GPUs a job has and how many it could have."""

    now: int = 0
    wanted: int = 0
    min: int = 0
    max: int = 0
    per_node: int = 1
    type: str | None = None
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Some GPUs of one node."""

    node: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job says that it is; None where it does not."""

    fraction: float | None = None
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    epoch_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job has what it has."""

    code: str
    sentence: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaReserved:
    """Whether a job has quota, in Kueue's words."""

    status: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """How long earlier jobs say that one takes, in seconds on one GPU of the reference type."""

    p10_s: float
    p50_s: float
    p90_s: float
    source: str = ""
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """Why a job asks for as many GPUs as it does, where its user left that open."""

    gpus: int
    best_gpus: int = 0
    speed_share: float = 1.0
    jobs: int = 0
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was when the server was asked."""

    id: str
    name: str = ""
    user: str = ""
    queue: str = ""
    kind: str = ""
    priority: int = 0
    state: str = ""
    wish: str = "run"
    gpus: GpuRequest = GpuRequest()
    placement: tuple[Place, ...] = ()
    progress: Progress | None = None
    eta_s: float | None = None
    submitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    duration_s: float | None = None
    waited_s: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    detail: str = ""
    reason: Reason | None = None
    expected: ExpectedWork | None = None
    """What was believed of its length at its submit; None when nothing was known."""
    size_choice: SizeChoice | None = None
    """None when its user said a size."""
    quota_reserved: QuotaReserved | None = None
    """Only where one job is asked for, and it is not over."""
    task: dict[str, Any] | None = None
    """Only where one job is asked for; values of secrets are hidden."""

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def succeeded(self) -> bool:
        return self.state == "SUCCEEDED"

    @property
    def label(self) -> str:
        """`17 (resnet)`, or just the id when it has no name of its own, or ends in it: `team-a/resnet`."""
        return self.id if self.is_named_by_id else f"{self.id} ({self.name})"

    @property
    def is_named_by_id(self) -> bool:
        """Whether the id says the name too."""
        return self.name in ("", self.id, self.id.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that was accepted, and what the server wants said about its task."""

    job: Job
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job on a GPU; `share` is None when it has all of it."""

    id: str
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of the health of a GPU or node."""

    state: str
    reason: str = ""
    since_s: float = 0.0
    who: str = ""
    remedy: str = ""
    """What has to be done about it; empty: nothing, or it is done."""
    held: bool = False
    """Ill, and yet in service: too much of its pool is out already."""
    until_s: float | None = None
    """When its probation ends."""
    flaps: int = 0
    incidents: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node."""

    index: int
    healthy: bool = True
    jobs: tuple[Tenant, ...] = ()
    utilisation: float | None = None
    health: Health | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node and its GPUs."""

    name: str
    state: str = ""
    gpu_type: str = ""
    gpu_memory_mib: int = 0
    rack: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    address: str = ""
    gpus: tuple[Gpu, ...] = ()
    cordoned_by: str = ""
    health: Health | None = None
    cordoned_s: float | None = None
    """Since when, where that is known."""


@dataclass(frozen=True, slots=True)
class PolicyName:
    """A policy that could decide."""

    name: str
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy that decides now, and those that there are."""

    name: str
    policies: tuple[PolicyName, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """GPUs of the whole cluster."""

    total: int = 0
    used: int = 0
    free: int = 0
    unhealthy: int = 0
    cordoned: int = 0
    """Without a job, on a node that gets no new ones."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """How the engine is doing."""

    count: int = 0
    last_ms: float | None = None
    engine_cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The server and its cluster at a glance."""

    version: str = ""
    policy: str = ""
    virtual: bool = False
    gpus: GpuCounts = GpuCounts()
    jobs: dict[str, int] = field(default_factory=dict)
    """How many in each state."""
    trouble: str | None = None
    """Why nothing goes on just now; empty when all is well."""
    pid: int | None = None
    started_s: float | None = None
    now_s: float | None = None
    seq: int = 0
    """The number of the last event."""
    cycle: Cycle = Cycle()


@dataclass(frozen=True, slots=True)
class Chapter:
    """Something that happened to a job."""

    time_s: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change with which a job that waits would start."""

    code: str
    sentence: str
    gpus: int = 0
    stops: tuple[str, ...] = ()
    shrinks: tuple[str, ...] = ()
    within_s: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One size that is tried, or was. None: not known."""

    run: str
    gpus: int
    state: str = ""
    gpu_type: str = ""
    nodes: int = 1
    batch: int | None = None
    steps_per_s: float | None = None
    units_per_s: float | None = None
    unit: str = ""
    efficiency: float | None = None
    """Speed for each GPU, relative to that at the smallest size."""
    memory_mib: int | None = None
    utilisation: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial runs of a job."""

    over: bool
    only: bool = False
    budget_s: float = 0.0
    each_s: float = 0.0
    runs: tuple[TrialRun, ...] = ()
    chosen_gpus: int | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is as it is, and how that came about."""

    job: str
    state: str = ""
    reason: Reason | None = None
    story: tuple[Chapter, ...] = ()
    quota_reserved: QuotaReserved | None = None
    """None when it is over."""
    ahead: int | None = None
    """How many of its queue are ahead of it; None when it does not wait."""
    suggestions: tuple[Suggestion, ...] = ()
    """What would start it, as far as somebody asked."""
    expected: ExpectedWork | None = None
    size_choice: SizeChoice | None = None
    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One report of a job."""

    time_s: float | None
    step: int | None = None
    epoch: float | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the journal: `seq` is its number there, `data` all that it says."""

    seq: int
    type: str
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def time_s(self) -> float | None:
        return self.data.get("time_s")

    def concerns(self, job_id: str) -> bool:
        """Whether it may have changed this job. `reset` may have changed all."""
        job = self.data.get("job")
        if self.type == "reset" or job == job_id:
            return True
        if isinstance(job, dict):
            return job.get("id") == job_id
        commands = self.data.get("commands")
        return isinstance(commands, list) and any(
            isinstance(one, dict) and one.get("job") == job_id for one in commands
        )


@dataclass(frozen=True, slots=True)
class Token:
    """A key to the server; `token` itself is shown once, when it is made."""

    user: str
    role: str
    hash: str = ""
    created_s: float | None = None
    token: str | None = field(default=None, repr=False)
