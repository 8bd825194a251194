"""What happened, as frozen values with a time and a cause. Only events change the World."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from batuta.core.cluster import Node, NodeName, Placement
from batuta.core.curve import SpeedCurve
from batuta.core.job import DesiredState, Job, JobId, JobState, Progress
from batuta.core.phases import Outlook
from batuta.core.plan import Plan
from batuta.core.quota import Quota
from batuta.core.reason import Evidence, Reason
from batuta.core.trial import TrialMeasurement


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job is there."""

    time_s: float
    job: Job
    cause: str = "submit"
    task: str = ""
    """What it runs, as JSON, for a backend that can: the World does not care."""


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The replicas of the last command run and make progress."""

    time_s: float
    job: JobId
    cause: str = "backend"


@dataclass(frozen=True, slots=True)
class JobFound:
    """The job has these GPUs, whatever was planned: it had not been observed yet, or a resize failed.

    Another job that was thought to have one of them loses it. A GPU that cannot be there is left out.
    """

    time_s: float
    job: JobId
    placement: Placement
    running: bool = True
    """False while its replicas have their places but do not make progress yet."""
    not_before_s: float = 0.0
    """It is not resized again sooner than this."""
    avoid: tuple[NodeName, ...] = ()
    """Nodes that would not have it."""
    cause: str = "backend"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """A report replaces what the World predicted: seconds left on one GPU of the reference type."""

    time_s: float
    job: JobId
    remaining_s: float
    curve: SpeedCurve | None = None
    restart_s: float | None = None
    cause: str = "progress"
    progress: Progress | None = None
    """What people want to know of it."""
    outlook: Outlook | None = field(default=None, metadata={"rare": True})
    """How its speed will change until its end, where that is known; it holds until another is told."""


@dataclass(frozen=True, slots=True)
class JobCheckpointed:
    """The job has saved a checkpoint, or its script has shown that it saves when it is asked."""

    time_s: float
    job: JobId
    saved_s: float | None = None
    """When the checkpoint was complete; None while there is none yet."""
    cause: str = "progress"


@dataclass(frozen=True, slots=True)
class JobInterrupted:
    """All replicas are gone before the job was done; it waits again and may be started anew."""

    time_s: float
    job: JobId
    cause: str = "backend"
    not_before_s: float = 0.0
    """It is not started again sooner than this: a job that crashes at each start backs off."""
    exit_code: int | None = None
    detail: str = ""
    avoid: tuple[NodeName, ...] = ()
    """Nodes that would not have it."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over: succeeded, failed for good, or cancelled."""

    time_s: float
    job: JobId
    state: JobState
    cause: str = "backend"
    exit_code: int | None = None
    detail: str = ""
    """What people should know of the end, as a sentence."""
    ended_s: float | None = None
    """When it really ended, where that was found out later, by a server that was not up then."""
    reason: Reason | None = field(default=None, metadata={"rare": True})
    """Why it was ended, where it did not end by itself; its sentence is filled from the evidence."""
    evidence: Evidence | None = field(default=None, metadata={"rare": True})


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """A job that is over is no longer kept in mind; another one may have its id."""

    time_s: float
    job: JobId
    cause: str = "upkeep"


@dataclass(frozen=True, slots=True)
class JobChanged:
    """The user changed the request: size range, priority or queue. All else stays as it was."""

    time_s: float
    job: Job
    cause: str = "user"


@dataclass(frozen=True, slots=True)
class JobWished:
    """The user wants the job to run, to be parked, to end, or to leave its GPUs."""

    time_s: float
    job: JobId
    wish: DesiredState
    cause: str = "user"


HELD_UP_CAUSE = "held-up"
"""The cause of what the scheduler does about a job that some ranks hold up."""


@dataclass(frozen=True, slots=True)
class JobHeldUp:
    """Some ranks hold a job up: they are slower than the others, or none goes on any more."""

    time_s: float
    job: JobId
    reason: Reason
    evidence: Evidence = ()
    ranks: tuple[int, ...] = ()
    """Those that do, as far as it is known."""
    nodes: tuple[NodeName, ...] = ()
    """Where these are: to blame for it. Empty when the cause is unknown."""
    avoid: tuple[NodeName, ...] = ()
    """The job is not placed on these nodes …"""
    until_s: float = 0.0
    """… before this time."""
    cause: str = "held-up"


@dataclass(frozen=True, slots=True)
class TransitionTimed:
    """How long the steps of a start, resize, migration or preemption took: it is over."""

    time_s: float
    job: JobId
    gpus: int
    """After it; 0 for a preemption."""
    checkpoint_s: float | None = None
    """From the request to the answer; None when nothing was asked for, or it did not answer in time."""
    stop_s: float | None = None
    start_s: float | None = None
    cause: str = "backend"


@dataclass(frozen=True, slots=True)
class TrialMeasured:
    """A trial run of a job has shown what it can."""

    time_s: float
    job: JobId
    """The one that is tried out."""
    measured: TrialMeasurement
    cause: str = "trial"


@dataclass(frozen=True, slots=True)
class PolicySet:
    """From now on this policy decides."""

    time_s: float
    policy: str
    cause: str = "user"


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A node joins the cluster."""

    time_s: float
    node: Node
    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node has other labels, taints, GPUs or CPUs than before. Jobs stay on what is still there."""

    time_s: float
    node: Node
    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class OthersUse:
    """So much of a node is used by others, who are no jobs of ours."""

    time_s: float
    node: NodeName
    gpus: tuple[int, ...] = ()
    cpus_milli: int = 0
    memory_mib: int = 0
    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node is gone, and every replica on it."""

    time_s: float
    node: NodeName
    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A lost node is back, without replicas."""

    time_s: float
    node: NodeName
    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class NodeCordoned:
    """No new replicas here; those that run stay."""

    time_s: float
    node: NodeName
    cause: str = "user"


@dataclass(frozen=True, slots=True)
class NodeUncordoned:
    """The node may get new replicas again."""

    time_s: float
    node: NodeName
    cause: str = "user"


@dataclass(frozen=True, slots=True)
class GpuFailed:
    """One GPU is ill, and every replica on it gone."""

    time_s: float
    node: NodeName
    gpu: int
    cause: str = "health"
    reason: str | None = field(default=None, metadata={"rare": True})
    """What is wrong with it, where that is known."""


@dataclass(frozen=True, slots=True)
class GpuRepaired:
    """The GPU can be used again."""

    time_s: float
    node: NodeName
    gpu: int
    cause: str = "health"
    reason: str | None = field(default=None, metadata={"rare": True})


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """What is thought of a GPU or node is another thing than before. The World does not care."""

    time_s: float
    node: NodeName
    gpu: int | None
    """None: the whole node."""
    state: str
    """As core.health_record.State has it; `alert` when people have to look."""
    reason: str = ""
    cause: str = "health"


@dataclass(frozen=True, slots=True)
class GpusUsed:
    """How busy the GPUs of a node were lately. Told when that has changed, and now and then."""

    time_s: float
    node: NodeName
    gpus: tuple[float | None, ...]
    """By number: 0 to 1, None where it cannot be measured."""
    jobs: tuple[tuple[JobId, float], ...] = ()
    """What jobs that share a card had of it, where that is known."""
    cause: str = "profiler"


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """Who may use how much, from now on: everything that administrators said, as one value."""

    time_s: float
    quota: Quota
    cause: str = "user"


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing else happened, but it is time to decide."""

    time_s: float
    cause: str = "clock"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan was made and its commands are on their way; GPUs count as taken from now on."""

    time_s: float
    plan: Plan
    cause: str = "decide"


Event: TypeAlias = (
    JobSubmitted
    | JobStarted
    | JobFound
    | JobProgressed
    | JobCheckpointed
    | JobInterrupted
    | JobEnded
    | JobForgotten
    | JobChanged
    | JobWished
    | JobHeldUp
    | TransitionTimed
    | TrialMeasured
    | PolicySet
    | NodeAdded
    | NodeChanged
    | OthersUse
    | NodeLost
    | NodeReturned
    | NodeCordoned
    | NodeUncordoned
    | GpuFailed
    | GpuRepaired
    | HealthChanged
    | GpusUsed
    | QuotaSet
    | TimePassed
    | Planned
)
