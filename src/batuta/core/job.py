"""What a user submits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from batuta.core.curve import SpeedCurve, linear_curve
from batuta.core.expected import ExpectedWork, SizeChoice
from batuta.core.fit import NodeTerm
from batuta.core.trial import TrialPlan

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
    soft: bool = False
    """Its compute may be exceeded while nobody else wants the card's time; memory never."""

    def booked_percent(self, promised_percent: int) -> int:
        """What is booked for it at most, of a card whose compute is promised so often to soft shares."""
        if not self.soft:
            return self.compute_percent
        return -(-self.compute_percent * 100 // promised_percent)


@dataclass(frozen=True, slots=True)
class Job:
    """A request for GPUs. `size`, `min`, `max` and `sizes` count GPUs, not replicas."""

    id: JobId
    submit_s: float
    size: int = 1
    min: int = 1
    max: int = 1
    sizes: tuple[int, ...] | None = None
    gpus_per_replica: int = 1
    sequence: int = 0
    """Place among jobs with the same submit time, for sources that have an order; then the id decides."""
    name: str = ""
    user: str = ""
    queue: str = "default"
    namespace: str = ""
    """Where its queue's name is looked up first; empty where there are no namespaces."""
    priority: int = 0
    kind: JobKind = JobKind.SCRIPT
    application: str = ""
    gpu_types: tuple[tuple[str, float], ...] = ANY_TYPE
    """Accepted GPU types with their speed relative to the reference type; empty accepts all at 1."""
    share: Share | None = None
    topology: Topology = ANYWHERE
    cpus_milli_per_gpu: int = 0
    memory_mib_per_gpu: int = 0
    node_labels: tuple[tuple[str, str], ...] = ()
    """Labels that a node must have."""
    node_terms: tuple[NodeTerm, ...] = ()
    """A node must meet one of these as well; empty for none to meet."""
    tolerations: tuple[str, ...] = ()
    """Taints that it does not mind: `key`, `key=value`, either with `:effect`; `*` for all."""
    curve: SpeedCurve = field(default_factory=lambda: linear_curve(1))
    work_s: float = 3600.0
    """Predicted run time on one GPU of the reference type."""
    restart_s: float = 30.0
    """Predicted seconds without progress after a start, resize or migration."""
    checkpoint_interval_s: float | None = None
    """Seconds between checkpoints; None means that it checkpoints when asked, so nothing is lost."""
    expected: ExpectedWork | None = None
    """What earlier jobs said of its length at its submit; then `work_s` is the P50."""
    size_choice: SizeChoice | None = None
    """Why it asks for `size`, where its user left that open."""
    trial: TrialPlan | None = None
    """What is to be tried out before it is queued."""
    trial_of: JobId | None = None
    """The job that this is a trial run of: it is measured and then ended, however far it is."""

    @property
    def is_lost_by_a_stop(self) -> bool:
        """Whether all that it has done would be done for nothing, for it has one size and never saves."""
        return self.min == self.max and (self.checkpoint_interval_s or 0.0) >= NO_RESTART_S

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
        if self.gpus_per_replica < 1:
            found.append(f"gpus_per_replica must be at least 1, found {self.gpus_per_replica}")
        elif any(n % self.gpus_per_replica for n in (self.min, self.size, self.max, *(self.sizes or ()))):
            found.append(f"every size must be a multiple of gpus_per_replica ({self.gpus_per_replica})")
        if self.sizes is not None:
            found.extend(self._size_list_faults(self.sizes))
        if self.share is not None and (self.size, self.min, self.max) != (1, 1, 1):
            found.append("a job with a share of a GPU has size, min and max 1")
        if self.share is not None and not (
            0 <= self.share.compute_percent <= 100
            and self.share.memory_mib >= 0
            and (self.share.compute_percent or self.share.memory_mib)
        ):
            found.append(f"a share needs compute in 1..100 % or memory, found {self.share}")
        if not 0 <= self.work_s < float("inf"):
            found.append(f"work must be a finite number of seconds ≥ 0, found {self.work_s}")
        if not 0 <= self.restart_s < float("inf"):
            found.append(f"restart time must be a finite number of seconds ≥ 0, found {self.restart_s}")
        for name, speed in self.gpu_types:
            if not 0 < speed < float("inf"):
                found.append(f"relative speed of GPU type {name} must be a finite number > 0, found {speed}")
        return found

    def _size_list_faults(self, sizes: tuple[int, ...]) -> list[str]:
        found = []
        if list(sizes) != sorted(set(sizes)) or not sizes:
            found.append(f"sizes must ascend without repeats, found {list(sizes)}")
        elif sizes[0] != self.min or sizes[-1] != self.max:
            found.append(
                f"sizes must begin at min and end at max, found {list(sizes)} for {self.min}..{self.max}"
            )
        if self.size not in sizes:
            found.append(f"size must be one of sizes, found {self.size}")
        return found
