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
class _Timed:
    """Something happened, at this time."""

    time_s: float


@dataclass(frozen=True, slots=True)
class _OfJob(_Timed):
    """Something happened to a job."""

    job: JobId


@dataclass(frozen=True, slots=True)
class _OfNode(_Timed):
    """Something happened to a node."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class JobSubmitted(_Timed):
    """A job is there."""

    job: Job
    cause: str = "submit"
    task: str = ""  # what it runs, as JSON, for a backend that can: the World does not care
    actor: str | None = field(default=None, metadata={"rare": True})  # the user who did it, where a user did


@dataclass(frozen=True, slots=True)
class JobStarted(_OfJob):
    """The replicas of the last command run and make progress."""

    cause: str = "backend"


@dataclass(frozen=True, slots=True)
class JobFound(_OfJob):
    """The job has these GPUs, whatever was planned: it had not been observed yet, or a resize failed.

    Another job that was thought to have one of them loses it. A GPU that cannot be there is left out.
    """

    placement: Placement
    running: bool = True  # False while its replicas have their places but do not make progress yet
    not_before_s: float = 0.0  # it is not resized again sooner than this
    avoid: tuple[NodeName, ...] = ()  # nodes that would not have it
    cause: str = "backend"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class JobProgressed(_OfJob):
    """A report replaces what the World predicted: seconds left on one GPU of the reference type."""

    remaining_s: float
    curve: SpeedCurve | None = None
    restart_s: float | None = None
    cause: str = "progress"
    progress: Progress | None = None  # what people want to know of it
    outlook: Outlook | None = field(default=None, metadata={"rare": True})
    """How its speed will change until its end, where that is known; it holds until another is told."""


@dataclass(frozen=True, slots=True)
class JobCheckpointed(_OfJob):
    """The job has saved a checkpoint, or its script has shown that it saves when it is asked."""

    saved_s: float | None = None  # when the checkpoint was complete; None while there is none yet
    cause: str = "progress"


@dataclass(frozen=True, slots=True)
class JobInterrupted(_OfJob):
    """All replicas are gone before the job was done; it waits again and may be started anew."""

    cause: str = "backend"
    not_before_s: float = 0.0  # it is not started again sooner than this: a job that crashes at each start backs off
    exit_code: int | None = None
    detail: str = ""
    avoid: tuple[NodeName, ...] = ()  # nodes that would not have it


@dataclass(frozen=True, slots=True)
class JobEnded(_OfJob):
    """The job is over: succeeded, failed for good, or cancelled."""

    state: JobState
    cause: str = "backend"
    exit_code: int | None = None
    detail: str = ""  # what people should know of the end, as a sentence
    ended_s: float | None = None
    """When it really ended, where that was found out later, by a server that was not up then."""
    reason: Reason | None = field(default=None, metadata={"rare": True})
    """Why it was ended, where it did not end by itself; its sentence is filled from the evidence."""
    evidence: Evidence | None = field(default=None, metadata={"rare": True})


@dataclass(frozen=True, slots=True)
class JobForgotten(_OfJob):
    """A job that is over is no longer kept in mind; another one may have its id."""

    cause: str = "upkeep"


@dataclass(frozen=True, slots=True)
class JobChanged(_Timed):
    """The user changed the request: size range, priority or queue. All else stays as it was."""

    job: Job
    cause: str = "user"
    actor: str | None = field(default=None, metadata={"rare": True})  # the user who did it, where a user did


@dataclass(frozen=True, slots=True)
class JobWished(_OfJob):
    """The user wants the job to run, to be parked, to end, or to leave its GPUs."""

    wish: DesiredState
    cause: str = "user"
    actor: str | None = field(default=None, metadata={"rare": True})  # the user who did it, where a user did


HELD_UP_CAUSE = "held-up"  # the cause of what the scheduler does about a job that some ranks hold up


@dataclass(frozen=True, slots=True)
class JobHeldUp(_OfJob):
    """Some ranks hold a job up: they are slower than the others, or none goes on any more."""

    reason: Reason
    evidence: Evidence = ()
    ranks: tuple[int, ...] = ()  # those that do, as far as it is known
    nodes: tuple[NodeName, ...] = ()  # where these are: to blame for it. Empty when the cause is unknown.
    avoid: tuple[NodeName, ...] = ()  # the job is not placed on these nodes …
    until_s: float = 0.0  # … before this time
    cause: str = "held-up"


@dataclass(frozen=True, slots=True)
class TransitionTimed(_OfJob):
    """How long the steps of a start, resize, migration or preemption took: it is over."""

    gpus: int  # after it; 0 for a preemption
    checkpoint_s: float | None = None
    """From the request to the answer; None when nothing was asked for, or it did not answer in time."""
    stop_s: float | None = None
    start_s: float | None = None
    cause: str = "backend"


@dataclass(frozen=True, slots=True)
class TrialMeasured(_OfJob):
    """A trial run of a job has shown what it can."""

    """The one that is tried out."""
    measured: TrialMeasurement
    cause: str = "trial"


@dataclass(frozen=True, slots=True)
class PolicySet(_Timed):
    """From now on this policy decides."""

    policy: str
    cause: str = "user"
    actor: str | None = field(default=None, metadata={"rare": True})  # the user who did it, where a user did


@dataclass(frozen=True, slots=True)
class NodeAdded(_Timed):
    """A node joins the cluster."""

    node: Node
    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class NodeChanged(_Timed):
    """A node has other labels, taints, GPUs or CPUs than before. Jobs stay on what is still there."""

    node: Node
    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class OthersUse(_OfNode):
    """So much of a node is used by others, who are no jobs of ours."""

    gpus: tuple[int, ...] = ()
    cpus_milli: int = 0
    memory_mib: int = 0
    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class NodeLost(_OfNode):
    """The node is gone, and every replica on it."""

    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class NodeReturned(_OfNode):
    """A lost node is back, without replicas."""

    cause: str = "cluster"


@dataclass(frozen=True, slots=True)
class NodeCordoned(_OfNode):
    """No new replicas here; those that run stay."""

    cause: str = "user"
    actor: str | None = field(default=None, metadata={"rare": True})  # the user who did it, where a user did


@dataclass(frozen=True, slots=True)
class NodeUncordoned(_OfNode):
    """The node may get new replicas again."""

    cause: str = "user"
    actor: str | None = field(default=None, metadata={"rare": True})  # the user who did it, where a user did


@dataclass(frozen=True, slots=True)
class GpuFailed(_OfNode):
    """One GPU is ill, and every replica on it gone."""

    gpu: int
    cause: str = "health"
    reason: str | None = field(default=None, metadata={"rare": True})  # what is wrong with it, where that is known


@dataclass(frozen=True, slots=True)
class GpuRepaired(_OfNode):
    """The GPU can be used again."""

    gpu: int
    cause: str = "health"
    reason: str | None = field(default=None, metadata={"rare": True})


@dataclass(frozen=True, slots=True)
class HealthChanged(_OfNode):
    """What is thought of a GPU or node is another thing than before. The World does not care."""

    gpu: int | None  # None: the whole node
    state: str  # as core.health_record.State has it; `alert` when people have to look
    reason: str = ""
    cause: str = "health"


@dataclass(frozen=True, slots=True)
class GpusUsed(_OfNode):
    """How busy the GPUs of a node were lately. Told when that has changed, and now and then."""

    gpus: tuple[float | None, ...]  # by number: 0 to 1, None where it cannot be measured
    jobs: tuple[tuple[JobId, float], ...] = ()  # what jobs that share a card had of it, where that is known
    cause: str = "profiler"


@dataclass(frozen=True, slots=True)
class QuotaSet(_Timed):
    """Who may use how much, from now on: everything that administrators said, as one value."""

    quota: Quota
    cause: str = "user"
    actor: str | None = field(default=None, metadata={"rare": True})  # the user who did it, where a user did


@dataclass(frozen=True, slots=True)
class ActionTaken(_Timed):
    """A user did something that is not of the World: made a token, logged in, ended the server. For the audit."""

    action: str  # such as token.create
    target: str = ""  # what it was done to
    cause: str = "user"
    actor: str | None = field(default=None, metadata={"rare": True})


@dataclass(frozen=True, slots=True)
class TimePassed(_Timed):
    """Nothing else happened, but it is time to decide."""

    cause: str = "clock"


@dataclass(frozen=True, slots=True)
class Planned(_Timed):
    """A plan was made and its commands are on their way; GPUs count as taken from now on."""

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
    | ActionTaken
    | TimePassed
    | Planned
)

ByUser: TypeAlias = (
    JobSubmitted | JobChanged | JobWished | PolicySet | NodeCordoned | NodeUncordoned | QuotaSet | ActionTaken
)
"""Events that users cause: they have an actor then."""
