"""The interface of a job type, and the child objects that it makes of a UnifiedJob.

A new type is a class with the members of `JobType`, under the entry point `batuta.job_types`; its name has a
domain (`example.com/Ray`), so that it never clashes with one of Batuta's. A child is a manifest, and how an
existing object is brought to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from batuta.backends.kube import names
from batuta.backends.kube.objects import Batch, Pod
from batuta.backends.kube.unified_job.model import UnifiedJob

Manifest: TypeAlias = dict[str, Any]


class ChildKind(NamedTuple):
    """A kind of object, as manifests and paths name it."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


POD: Final = ChildKind("", "v1", "Pod", "pods")
SERVICE: Final = ChildKind("", "v1", "Service", "services")
CONFIG_MAP: Final = ChildKind("", "v1", "ConfigMap", "configmaps")
JOB: Final = ChildKind("batch", "v1", "Job", "jobs")
MPI_JOB: Final = ChildKind("kubeflow.org", "v2beta1", "MPIJob", "mpijobs")


class Update(Enum):
    """What happens to a child that is there and differs from its manifest."""

    KEEP = "keep"  # it stays until it is deleted, for another start: pods, which cannot be changed
    APPLY = "apply"  # it is written over, without looking: Services, ConfigMaps
    HALT = "halt"  # one that other controllers act on. For another start it is suspended first, and changed when quiet.


@dataclass(frozen=True, slots=True)
class Child:
    """An object that there shall be."""

    kind: ChildKind
    manifest: Manifest
    update: Update
    halt: Manifest | None = None  # a merge patch that suspends it (HALT)
    resume: Manifest | None = None
    """A merge patch that makes a quiet one (HALT), or one of the same start, like the manifest."""
    only_change: bool = False  # it is not created when it is not there: the run has no members

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def hash(self) -> str:
        """What it is made of; empty for pods."""
        return str(self.manifest["metadata"]["annotations"].get(names.MANIFEST, ""))


def metadata(job: UnifiedJob, name: str, labels: dict[str, str], annotations: dict[str, str]) -> Manifest:
    """The metadata of a child: found by its labels, gone with its job."""
    meta = job.metadata
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": meta.name, "uid": meta.uid}
    owners = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    named = {"name": name, "namespace": meta.namespace, "ownerReferences": owners}
    return {**named, "labels": labels, "annotations": annotations}


def hash_of(body: Manifest) -> str:
    """The same for the same content, in whatever order it was written."""
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()[:16]


def sealed(kind: ChildKind, body: Manifest) -> Manifest:
    """The manifest with its kind, and its own hash among the annotations."""
    manifest = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
    annotations = manifest["metadata"]["annotations"] | {names.MANIFEST: hash_of(manifest)}
    return manifest | {"metadata": manifest["metadata"] | {"annotations": annotations}}


class Change(Enum):
    """What a change of size means for the members that stay."""

    IN_PLACE = "in place"
    BY_RESTART = "by restart"


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a job, and how large it shall be now."""

    target: int  # replicas; 0 for none
    start: int = 0  # how often the job was started before. Children of another start are replaced.
    first: int = 0  # replicas when it was started; 0: as many as now
    ceiling: int = 0  # maxReplicas when it was started; 0: as it is now

    def first_of(self) -> int:
        return self.first or self.target

    def ceiling_of(self, job: UnifiedJob) -> int:
        return max(self.ceiling or job.spec.replica_spec.largest, self.first_of())


class Outcome(Enum):
    """How a run is doing."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # by its own doing: counts against backoffLimit
    DISRUPTED = "disrupted"
    """By the cluster's doing: a node went away, a pod was evicted. Starts again without being blamed."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the children say."""

    replicas: int = 0  # replicas that have a pod which is not over
    ready: int = 0
    outcome: Outcome = Outcome.RUNNING
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """The children of a job as the informers know them. Services and ConfigMaps are not among them."""

    pods: Sequence[Pod] = ()
    objects: Sequence[tuple[ChildKind, Batch]] = ()


@dataclass(frozen=True, slots=True)
class FollowUp:
    """What has to be written when members come and go while the job runs on."""

    children: tuple[Child, ...] = ()
    nudge: tuple[str, ...] = ()
    """Pods that shall see the written ConfigMaps at once: change their annotation `names.NUDGE`."""


class JobType(Protocol):
    """One type of job. Everything is a function of its arguments. Batuta's own types inherit the defaults."""

    name: str
    watches: tuple[ChildKind, ...] = ()  # kinds to be watched, beside pods

    def change(self, job: UnifiedJob, run: Run, target: int) -> Change:
        """How a run gets to another size; neither size is 0."""
        return Change.BY_RESTART

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        """All objects that there shall be, in the order in which they are created."""
        ...

    def follow(self, job: UnifiedJob, run: Run, observed: Observed) -> FollowUp:
        """What depends on which members are there just now."""
        return FollowUp()

    def status(self, job: UnifiedJob, run: Run, observed: Observed) -> JobStatus: ...

    def replica_of(self, pod: Pod) -> int | None:
        """Which replica a pod is, by worker order of the placement; None for a launcher."""
        ...
