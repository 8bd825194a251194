"""What a user submits, and what is known of it: the job, its desired state, its progress, its forecast.

The forecast that was made at submit is kept with the job, so that a replay decides by the same forecast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TypeAlias

from batuta.core.cluster import NodeTerm
from batuta.core.curve import SpeedCurve, linear_curve
from batuta.core.trial import TrialPlan


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """How long earlier jobs say that this one takes, in seconds on one GPU of the reference type."""

    seconds: tuple[float, ...]  # P10, P25, P50, P75 and P90
    source: str  # whose history it is: "the same user and name", "the same queue" …
    jobs: int  # how many jobs of the past it rests upon

    @property
    def p10_s(self) -> float:
        return self.seconds[0]

    @property
    def p50_s(self) -> float:
        return self.seconds[len(self.seconds) // 2]

    @property
    def p90_s(self) -> float:
        return self.seconds[-1]


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """Why a job whose user left the size open asks for as many GPUs as it does."""

    gpus: int
    best_gpus: int = 0  # the fastest size that it may have; 0 when nothing is known of its speed
    speed_share: float = 1.0  # its speed with `gpus`, as a share of that with `best_gpus`
    application: str = ""
    jobs: int = 0  # how many earlier jobs of the application were measured
    trial: bool = False  # they were its own trial runs

    @property
    def sentence(self) -> str:
        gpus = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        if not self.best_gpus:
            of = f" of {self.application}" if self.application else ""
            return f"{gpus}: the speed{of} at other sizes is not known yet, so it asks for the smallest"
        if self.trial:
            measured = f"measured in {self.jobs} trial runs"
        else:
            earlier = "earlier job" if self.jobs == 1 else "earlier jobs"
            measured = f"measured by {self.jobs} {earlier} of {self.application}"
        if self.best_gpus == self.gpus:
            return f"{gpus}: no size that it may have is faster ({measured})"
        verb = "gives" if self.gpus == 1 else "give"
        return f"{gpus} {verb} {self.speed_share:.0%} of the speed of {self.best_gpus} ({measured})".replace(
            "%", " %", 1
        )


JobId: TypeAlias = str
ANY_TYPE: tuple[tuple[str, float], ...] = ()
NO_RESTART_S = 1e9
"""A job whose restart takes so long cannot be restarted: while it runs it keeps what it has, if it may."""


class JobKind(Enum):
    """How a job's processes are started and told about a change of members."""

    SCRIPT = "script"
    TORCH_ELASTIC = "torch-elastic"
    HOROVOD_ELASTIC = "horovod-elastic"
    MPI = "mpi"


class JobState(Enum):
    """What people see; the first five are alive, the last four are final."""

    PENDING = "PENDING"
    SETTING_UP = "SETTING_UP"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    PREEMPTED = "PREEMPTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    FAILED_SETUP = "FAILED_SETUP"
    CANCELLED = "CANCELLED"


class Spread(Enum):
    """The smallest part of the cluster that a job wants to stay within."""

    ANY = "any"
    NODE = "node"
    RACK = "rack"


@dataclass(frozen=True, slots=True)
class Topology:
    """Where the replicas of a job want to be, relative to each other."""

    within: Spread = Spread.ANY
    required: bool = False
    single_numa: bool = False


ANYWHERE = Topology()


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one GPU. A share never spans two cards."""

    memory_mib: int = 0
    compute_percent: int = 0
    soft: bool = False  # its compute may be exceeded while no other job wants the card's time; memory never

    def booked_percent(self, promised_percent: int) -> int:
        """What is booked for it at most, of a card whose compute is promised so often to soft shares."""
        if not self.soft:
            return self.compute_percent
        return -(-self.compute_percent * 100 // promised_percent)


@dataclass(frozen=True, slots=True)
class Job:
    """A request for GPUs. `size`, `min`, `max` and `sizes` count GPUs, not replicas.

    A CPU-only job has `gpus_per_replica` 0. It holds no GPU: its sizes count replicas, and it takes the CPU
    and memory of `cpus_milli_per_gpu` and `memory_mib_per_gpu` for each replica. It has one size.
    """

    id: JobId
    submit_s: float
    size: int = 1
    min: int = 1
    max: int = 1
    sizes: tuple[int, ...] | None = None
    gpus_per_replica: int = 1
    sequence: int = 0  # place among jobs with the same submit time, for sources that have an order; then the id decides
    name: str = ""
    user: str = ""
    queue: str = "default"
    namespace: str = ""  # where its queue's name is looked up first; empty where there are no namespaces
    priority: int = 0
    kind: JobKind = JobKind.SCRIPT
    application: str = ""
    gpu_types: tuple[tuple[str, float], ...] = ANY_TYPE
    """Accepted GPU types with their speed relative to the reference type; empty accepts all at 1."""
    share: Share | None = None
    topology: Topology = ANYWHERE
    cpus_milli_per_gpu: int = 0  # for each replica of a CPU-only job
    memory_mib_per_gpu: int = 0  # for each replica of a CPU-only job
    node_labels: tuple[tuple[str, str], ...] = ()  # labels that a node must have
    node_terms: tuple[NodeTerm, ...] = ()  # a node must meet one of these as well; empty for none to meet
    tolerations: tuple[str, ...] = ()
    """Taints that it does not mind: `key`, `key=value`, either with `:effect`; `*` for all."""
    curve: SpeedCurve = field(default_factory=lambda: linear_curve(1))
    work_s: float = 3600.0  # predicted run time on one GPU of the reference type
    restart_s: float = 30.0  # predicted seconds without progress after a start, resize or migration
    checkpoint_interval_s: float | None = None
    """Seconds between checkpoints; None means that it checkpoints when asked, so nothing is lost."""
    expected: ExpectedWork | None = None  # what earlier jobs said of its length at its submit; then `work_s` is the P50
    size_choice: SizeChoice | None = None  # why it asks for `size`, where its user left that open
    time_limit_s: float | None = None  # how long it may run, over all its restarts; None for as long as it takes
    trial: TrialPlan | None = None  # what is to be tried out before it is queued
    trial_of: JobId | None = None
    """The job that this is a trial run of: it is measured and then ended, however far it is."""
    restartable: bool = True
    """Whether a restart is known to keep its work. False: only once a checkpoint of it was seen."""

    @property
    def cpu_only(self) -> bool:
        """Whether the job runs on CPU and memory and holds no GPU."""
        return not self.gpus_per_replica

    @property
    def replica_size(self) -> int:
        """What one replica counts in `size`: its GPUs, or 1 for a CPU-only job."""
        return self.gpus_per_replica or 1

    @property
    def replicas(self) -> int:
        """How many replicas it has at the size that it asks for."""
        return self.size // self.replica_size

    @property
    def gpus(self) -> int:
        """How many GPUs it asks for: its size, and 0 for a CPU-only job."""
        return self.size if self.gpus_per_replica else 0

    @property
    def is_lost_by_a_stop(self) -> bool:
        """Whether all that it has done would be done for nothing, for it has one size and never saves."""
        return self.min == self.max and (self.checkpoint_interval_s or 0.0) >= NO_RESTART_S

    @property
    def keeps_size_until_saved(self) -> bool:
        """Whether it is resized only once a checkpoint of it was seen: before, a resize loses its work."""
        return self.max > self.min and not self.restartable

    def faults(self) -> list[str]:
        """Everything that makes this job impossible, as sentences; empty when it is sound."""
        found: list[str] = []
        if not self.id:
            found.append("id must not be empty")
        if not self.submit_s >= 0:
            found.append(f"submit time must be ≥ 0, found {self.submit_s}")
        if self.min < 1:
            found.append(f"min must be at least 1, found {self.min}")
        if self.min > self.max:
            found.append(f"min must be ≤ max, found min {self.min} and max {self.max}")
        elif not self.min <= self.size <= self.max:
            found.append(f"size must be within min..max, found {self.size} outside {self.min}..{self.max}")
        found.extend(self._replica_faults())
        if self.sizes is not None:
            found.extend(self._size_list_faults(self.sizes))
        if (share := self.share) is not None:
            if (self.size, self.min, self.max) != (1, 1, 1):
                found.append("a job with a share of a GPU has size, min and max 1")
            is_something = share.compute_percent or share.memory_mib
            if not 0 <= share.compute_percent <= 100 or share.memory_mib < 0 or not is_something:
                found.append(f"a share needs compute in 1..100 % or memory, found {share}")
        for name, seconds in (("work", self.work_s), ("restart time", self.restart_s)):
            if not 0 <= seconds < float("inf"):
                found.append(f"{name} must be a finite number of seconds ≥ 0, found {seconds}")
        for name, speed in self.gpu_types:
            if not 0 < speed < float("inf"):
                found.append(f"relative speed of GPU type {name} must be a finite number > 0, found {speed}")
        return found

    def _replica_faults(self) -> list[str]:
        each, found = self.gpus_per_replica, list[str]()
        if each < 0:
            return [f"gpus_per_replica must be at least 0, found {each}"]
        if each:
            is_whole = not any(n % each for n in (self.min, self.size, self.max, *(self.sizes or ())))
            return [] if is_whole else [f"every size must be a multiple of gpus_per_replica ({each})"]
        if self.min != self.max:
            found.append(f"a CPU-only job has one size, found {self.min}..{self.max} replicas")
        if self.share is not None:
            found.append("a CPU-only job has no share of a GPU")
        if self.gpu_types:
            found.append(f"a CPU-only job accepts no GPU type, found {self.gpu_types[0][0]}")
        return found

    def _size_list_faults(self, sizes: tuple[int, ...]) -> list[str]:
        found = []
        if list(sizes) != sorted(set(sizes)) or not sizes:
            found.append(f"sizes must ascend without repeats, found {list(sizes)}")
        elif sizes[0] != self.min or sizes[-1] != self.max:
            found.append(f"sizes must begin at min and end at max, found {list(sizes)} for {self.min}..{self.max}")
        if self.size not in sizes:
            found.append(f"size must be one of sizes, found {self.size}")
        return found


class DesiredState(IntEnum):
    """Kept in the World, so that it holds until it is fulfilled, whatever is killed meanwhile."""

    RUN = 0
    PARK = 1  # have no GPUs until a user says RUN again
    CANCEL = 2  # end. This cannot be taken back.
    EVICT = 3  # leave the GPUs that it has, then run again: how a node is drained
    TRY = 4  # run when trial runs have told how; RUN does not wait for them


@dataclass(frozen=True, slots=True)
class Progress:
    """The last that was heard; None where the job does not say."""

    fraction: float | None = None  # of all its work, 0 to 1
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    epoch_s: float | None = None
