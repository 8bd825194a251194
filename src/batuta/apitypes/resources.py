"""Jobs, nodes, the cluster, policies, events and tokens as the API returns them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from batuta.apitypes.forecasts import Expected

FINAL_STATES = frozenset(("SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED"))


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one GPU."""

    memory_mib: int = 0
    compute_percent: int = 0


@dataclass(frozen=True, slots=True)
class Gpus:
    """How many GPUs a job has, asked for and could have."""

    now: int = 0
    wanted: int = 0
    min: int = 0
    max: int = 0
    per_node: int = 1
    type: str | None = None
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class Cpu:
    """What a CPU-only job has and asks for: replicas, each with so many CPUs and so much memory."""

    replicas: int = 1
    now: int = 0  # how many of them have a place; 0 while it waits
    cpus: float = 0.0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Some GPUs of one node; none of a node on which a CPU-only job runs."""

    node: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """What the job reported last; null where it does not say."""

    fraction: float | None = None
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    epoch_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReasonGiven:
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
    """How long earlier jobs say that it takes, in seconds on one GPU of the reference type."""

    p10_s: float
    p50_s: float
    p90_s: float
    source: str = ""
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """Why it asks for as many GPUs as it does, where its user left that open."""

    gpus: int
    best_gpus: int = 0  # the fastest size that it may have; 0 when nothing is known of its speed
    speed_share: float = 1.0  # its speed at `gpus`, as a share of that at `best_gpus`
    jobs: int = 0
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """Whether a restart keeps the work of an elastic job. Without that, it keeps its size."""

    seen: bool  # a checkpoint of it was seen, or its script has shown that it saves when it is asked
    saved_s: float | None = None  # when the last checkpoint was complete; null before the first one
    restartable: bool = False
    sentence: str = ""  # what follows from it; empty when it may be resized


@dataclass(frozen=True, slots=True)
class Job:
    """A job, alive or over."""

    id: str
    name: str = ""
    user: str = ""
    queue: str = ""
    kind: str = ""
    priority: int = 0
    state: str = ""
    wish: str = "run"
    gpus: Gpus = Gpus()
    cpu: Cpu | None = None
    placement: tuple[Span, ...] = ()
    progress: ProgressSeen | None = None
    eta_s: float | None = None
    submitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    duration_s: float | None = None  # how long it had GPUs, all its runs together; null before its first start
    waited_s: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    detail: str = ""
    reason: ReasonGiven | None = None
    expected: ExpectedWork | None = None  # what was believed of its length at its submit; null when nothing was known
    size_choice: SizeChoice | None = None  # null when its user said a size
    checkpoint: CheckpointSeen | None = None  # null for a job of one size, and for one that is over
    quota_reserved: QuotaReserved | None = None  # only where one job is asked for, and it is not over
    stands_for: tuple[str, ...] = ()
    """Only where one job is asked for: the types that it asks for and virtual GPUs stand for."""
    endpoints: tuple[str, ...] = ()  # only where one job is asked for: where its ports are reached while it runs
    task: dict[str, Any] | None = None  # only where one job is asked for; values of secrets are hidden

    @property
    def is_over(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def succeeded(self) -> bool:
        return self.state == "SUCCEEDED"

    @property
    def label(self) -> str:
        """`17 (resnet)`, or just the id when it has no name of its own, or ends in it: `team-a/resnet`."""
        return self.id if self.is_named_by_id else f"{self.id} ({self.name})"

    @property
    def is_named_by_id(self) -> bool:
        return self.name in ("", self.id, self.id.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Submitted:
    """A new job, and what was accepted but is not used."""

    job: Job
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuTenant:
    """A job on a GPU; `share` is null when it has all of it."""

    id: str
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class HealthShown:
    """What is known of the health of a GPU or node."""

    state: str
    reason: str = ""
    since_s: float = 0.0
    who: str = ""  # who brought it into this state: `health`, or a human's name
    remedy: str = ""  # what has to be done about it; empty: nothing, or it is done
    held: bool = False  # ill, and yet in service: too much of its pool is out already
    until_s: float | None = None
    flaps: int = 0
    incidents: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node."""

    index: int
    healthy: bool = True
    jobs: tuple[GpuTenant, ...] = ()
    utilisation: float | None = None
    health: HealthShown | None = None


@dataclass(frozen=True, slots=True)
class NodeCpu:
    """CPU and memory of a node, and the CPU-only jobs that run on it; null for what is not counted."""

    total: float | None = None
    free: float | None = None
    memory_mib: int | None = None
    memory_free_mib: int | None = None
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A node and its GPUs."""

    name: str
    state: str = ""  # `unhealthy`: as a whole; a GPU alone has its own word
    gpu_type: str = ""
    gpu_memory_mib: int = 0
    rack: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    address: str = ""
    gpus: tuple[Gpu, ...] = ()
    cpu: NodeCpu = NodeCpu()
    cordoned_by: str = ""
    health: HealthShown | None = None
    cordoned_s: float | None = None


@dataclass(frozen=True, slots=True)
class HealthAlert:
    """People have to look: this should be out of service, and too much of its pool is already."""

    pool: str = ""
    node: str = ""
    gpu: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes."""

    nodes: tuple[Node, ...] = ()
    alerts: tuple[HealthAlert, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicySeen:
    """A policy that can be chosen."""

    name: str
    summary: str = ""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """The policy that decides, and all that can be chosen."""

    name: str
    policies: tuple[PolicySeen, ...] = ()
    note: str = ""  # where it was written down, and what changes it back, if that is not the journal


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """All GPUs: `total` is the sum of the others."""

    total: int = 0
    used: int = 0
    free: int = 0
    unhealthy: int = 0
    cordoned: int = 0  # without a job, on a node that gets no new ones


@dataclass(frozen=True, slots=True)
class Cycle:
    """What deciding costs."""

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
    trouble: str | None = None  # why nothing goes on just now; empty when all is well
    pid: int | None = None
    started_s: float | None = None
    now_s: float | None = None
    seq: int = 0  # the number of the last event: a stream that begins after it misses nothing that lists do not show
    cycle: Cycle = Cycle()


@dataclass(frozen=True, slots=True)
class Sentence:
    """Something that happened."""

    time_s: float
    sentence: str


@dataclass(frozen=True, slots=True)
class SuggestedChange:
    """A change with which, and with nothing else, the next decision would start the job."""

    code: str
    sentence: str
    gpus: int = 0
    stops: tuple[str, ...] = ()
    shrinks: tuple[str, ...] = ()
    within_s: float | None = None  # when it is expected to come about by itself
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One size that is tried, or was. Null: not known."""

    run: str
    gpus: int
    state: str = ""  # planned, waits, runs; then how it went: measured, out of memory, failed, …
    gpu_type: str = ""
    nodes: int = 1  # two stands for more of them
    batch: int | None = None
    steps_per_s: float | None = None
    units_per_s: float | None = None  # samples, epochs or steps per second
    unit: str = ""
    efficiency: float | None = None  # speed for each GPU, relative to that at the smallest size that was measured
    memory_mib: int | None = None  # the most that was in use on one GPU
    utilisation: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial runs of a job."""

    over: bool  # whether the job waits for them no longer, or in vain
    only: bool = False  # it is tried out and nothing else
    budget_s: float = 0.0
    each_s: float = 0.0
    runs: tuple[TrialRun, ...] = ()
    chosen_gpus: int | None = None  # what is best asked for; null when too little is known
    sentence: str = ""  # what it comes to; empty as long as it goes on


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job has what it has, and how that came about."""

    job: str
    state: str = ""
    reason: ReasonGiven | None = None
    story: tuple[Sentence, ...] = ()
    quota_reserved: QuotaReserved | None = None  # null when it is over
    ahead: int | None = None  # how many of its queue are ahead of it; null when it does not wait
    suggestions: tuple[SuggestedChange, ...] = ()  # changes that would start it, if the client requested them
    expected: ExpectedWork | None = None
    size_choice: SizeChoice | None = None
    stands_for: tuple[str, ...] = ()  # the types of GPU that it asks for and virtual GPUs stand for
    endpoints: tuple[str, ...] = ()  # where its ports are reached while it runs
    checkpoint: CheckpointSeen | None = None  # null for a job of one size, and for one that is over
    trial: Trial | None = None  # null for a job that is not tried out
    start: Expected | None = None
    """When a job that waits will start, as `GET /eta` told it last; null if that is long ago, or unknown."""
    start_coarse: bool = False  # `start` comes of the order of the jobs alone: there was no time to simulate


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """One report."""

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
    expires_s: float | None = None  # None: it does not end by itself
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class FindingView:
    """What one check found."""

    check: str
    severity: str
    found: str
    fix: str = ""  # what to do about it; empty when nothing is to be done


@dataclass(frozen=True, slots=True)
class Examination:
    """All checks."""

    findings: tuple[FindingView, ...] = ()
    version: str = ""
    now_s: float | None = None
