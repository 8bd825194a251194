"""What a type of job has to say. A new type is a class with these members, under the entry point
`batuta.job_types`; its name has a domain (`example.com/Ray`), so that it never clashes with one of Batuta's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from batuta.backends.kube.jobtypes.child import Child, ChildKind
from batuta.backends.kube.objects import Batch, Pod
from batuta.backends.kube.unified_job.model import UnifiedJob


class Change(Enum):
    """What a change of size means for the members that stay."""

    IN_PLACE = "in place"
    BY_RESTART = "by restart"


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a job, and how large it shall be now."""

    target: int
    """Replicas; 0 for none."""
    start: int = 0
    """How often the job was started before. Children of another start are replaced."""
    first: int = 0
    """Replicas when it was started; 0: as many as now."""
    ceiling: int = 0
    """maxReplicas when it was started; 0: as it is now."""

    def first_of(self) -> int:
        return self.first or self.target

    def ceiling_of(self, job: UnifiedJob) -> int:
        return max(self.ceiling or job.spec.replica_spec.largest, self.first_of())


class Outcome(Enum):
    """How a run is doing."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """By its own doing: counts against backoffLimit."""
    DISRUPTED = "disrupted"
    """By the cluster's doing: a node went away, a pod was evicted. Starts again without being blamed."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the children say."""

    replicas: int = 0
    """Replicas that have a pod which is not over."""
    ready: int = 0
    outcome: Outcome = Outcome.RUNNING
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """The children of a job as the informers know them. Services and ConfigMaps are not among them."""

    pods: Sequence[Pod] = ()
    objects: Sequence[tuple[ChildKind, Batch]] = ()

    def of_kind(self, kind: ChildKind) -> list[Batch]:
        return [one for its, one in self.objects if its == kind]


@dataclass(frozen=True, slots=True)
class FollowUp:
    """What has to be written when members come and go while the job runs on."""

    children: tuple[Child, ...] = ()
    nudge: tuple[str, ...] = field(default=())
    """Pods that shall see the written ConfigMaps at once: change their annotation `names.NUDGE`."""


class JobType(Protocol):
    """One type of job. Everything is a function of its arguments."""

    name: str
    """As in `spec.jobType`."""
    watches: tuple[ChildKind, ...]
    """Kinds to be watched, beside pods."""

    def change(self, job: UnifiedJob, run: Run, target: int) -> Change:
        """How a run gets to another size; neither size is 0."""
        ...

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        """All objects that there shall be, in the order in which they are created."""
        ...

    def follow(self, job: UnifiedJob, run: Run, observed: Observed) -> FollowUp:
        """What depends on which members are there just now."""
        ...

    def status(self, job: UnifiedJob, run: Run, observed: Observed) -> JobStatus:
        """What has become of the run."""
        ...

    def replica_of(self, pod: Pod) -> int | None:
        """Which replica a pod is, by worker order of the placement; None for one that holds no GPUs."""
        ...
