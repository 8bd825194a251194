"""What all job reconcilers share: interfaces to the cluster and the World, and pod groups to be bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from batuta.backends.kube import objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.jobtypes import JobTypes, load_job_types
from batuta.backends.kube.operator.gangs import Owners
from batuta.backends.kube.operator.workqueue import WriteQueue
from batuta.backends.kube.progress.log_reader import LogSubscriptions
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.to_job import JobRequest
from batuta.core.cluster import NodeName, Placement, Span, placement_of
from batuta.core.event import Event
from batuta.core.job import Job, JobId, SizeChoice
from batuta.engine.jobs.backoff import Backoff
from batuta.prediction.application_history import choose_size

REFUSAL_BACKOFF: Final = Backoff(2.0, 300.0)  # before a job is tried again that the nodes would not have
RESTART_BACKOFF: Final = Backoff(10.0, 360.0)
"""Before a job starts again that failed by its own doing, as for Jobs of batch/v1."""


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Where a pod shall go; None leaves it to the binder."""

    pod: objects.Pod
    place: Span | None


def placement_from(places: Sequence[Span]) -> Placement:
    """The placement of pods in this order; pods without GPUs are the replicas of a CPU-only job."""
    if not any(place.gpus for place in places):
        return Placement(tuple(places))
    return placement_of((place.node, gpu) for place in places for gpu in place.gpus)


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods that are bound together or not at all."""

    key: str
    job: JobId
    placements: tuple[PodPlacement, ...]
    priority: int = 0
    since_s: float = 0.0
    keeps_until_s: float = 0.0  # until then, if not all can be placed, the free places are reserved for it


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things may take."""

    gang_timeout_s: float = 300.0  # a gang whose binding takes longer than this gives its places back
    refusal_backoff: Backoff = REFUSAL_BACKOFF
    restart_backoff: Backoff = RESTART_BACKOFF


class PendingReason(NamedTuple):
    """Why a job is kept out."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the World shall know of a job."""

    asked: JobRequest  # without a job while it is kept out
    waiting: PendingReason | None = None
    tolerations: tuple[dict[str, Any], ...] = ()  # what its pods tolerate beyond what their template says


AdmissionGate: TypeAlias = Callable[[UnifiedJob, JobRequest, bool], GateResult]
"""Asked whenever a job is looked at, and whether it is inside: the World knows it, or its pods are there. Such a job
can be parked, but not kept out."""


def admit_all(uj: UnifiedJob, asked: JobRequest, is_inside: bool) -> GateResult:
    """Admits every job as it is."""
    return GateResult(asked)


@dataclass(slots=True)
class ReconcileContext:
    """What job reconcilers need of their surroundings. For the engine's thread only."""

    cluster: Cluster
    writes: WriteQueue
    owners: Owners
    say: Callable[[Event], None]
    request_binding: Callable[[PodGroup], None]
    """Requests a binding. The job requests it again at each turn until its pods are bound."""
    job_types: JobTypes = field(default_factory=load_job_types)
    has_node: Callable[[NodeName], bool] = lambda name: True
    """Whether a node is there; pods on one that is gone run no more, whatever they say."""
    timing: Timing = field(default_factory=Timing)
    past: set[JobId] = field(default_factory=set)  # jobs that are over, and that the World still knows
    gate: AdmissionGate = admit_all  # who else decides whether a UnifiedJob may run
    tolerations: Callable[[JobId], tuple[dict[str, Any], ...]] = lambda job: ()
    """What the quota that a job uses lets its pods tolerate."""
    listening: LogSubscriptions = field(default_factory=LogSubscriptions)  # whose logs are read
    choose: Callable[[Job], SizeChoice | None] = lambda job: choose_size(job, None, job.max)
    """The size for a job whose user left it open; the smallest where nothing is known. None: ask later."""
    keep_result: Callable[[JobId, str], None] = lambda job, result: None
    """Stores what a job gave as its result, as JSON; it becomes durable with the next event."""
    excuse: Callable[[JobId, float, float, float], str | None] = lambda job, began_s, failed_s, now_s: ""
    """Why a failure is not the job's own; empty: it is. None: it is not known yet."""


@dataclass(frozen=True, slots=True)
class KnownJob:
    """What the World knows of a job from before this operator led."""

    job: Job
    placement: Placement | None = None
    is_ending: bool = False
    is_parked: bool = False


class JobReconciler(Protocol):
    """One job of the World, or pods that want to become one."""

    id: JobId
    wanted: Placement | None
    is_ending: bool
    is_over: bool
    due_s: float  # when it wants to be driven even if nothing happens

    def pods(self) -> Mapping[str, objects.Pod]:
        """All its pods, by key."""

    def want(self, placement: Placement | None) -> None:
        """The World has decided where it shall be; None for nowhere."""

    def see(self, pod: objects.Pod) -> None: ...

    def lose(self, key: str) -> None: ...

    def refused(self, why: str, nodes: Iterable[NodeName], now_s: float) -> None:
        """The binding that it requested last is not possible."""

    @property
    def is_booked(self) -> bool:
        """Whether what its pods hold is in the World's books under its name."""

    def holds(self, key: str) -> bool:
        """Whether that is so for one of its pods; what the others hold counts as used by others."""

    @property
    def is_urgent(self) -> bool:
        """Whether it holds something that it cannot use before more pods are bound."""

    def leaves(self, pod: objects.Pod) -> bool:
        """Whether a pod of it gives its place back soon."""

    def drive(self, now_s: float) -> None:
        """Does the next thing that brings it to where it shall be. Called when something changed."""
