"""An object that belongs to a UnifiedJob: its manifest, and how one that is there is brought to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batuta.backends.kube import names
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

    KEEP = "keep"
    """It stays until it is deleted, for another start: pods, which cannot be changed."""
    APPLY = "apply"
    """It is written over, without looking: Services, ConfigMaps."""
    HALT = "halt"
    """One that other controllers act on. For another start it is suspended first, and changed when quiet."""


@dataclass(frozen=True, slots=True)
class Child:
    """An object that there shall be."""

    kind: ChildKind
    manifest: Manifest
    update: Update
    halt: Manifest | None = None
    """A merge patch that suspends it (HALT)."""
    resume: Manifest | None = None
    """A merge patch that makes a quiet one (HALT), or one of the same start, like the manifest."""
    only_change: bool = False
    """It is not created when it is not there: the run has no members."""

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
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": meta.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner],
    }


def hash_of(body: Manifest) -> str:
    """The same for the same content, in whatever order it was written."""
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()[:16]


def sealed(kind: ChildKind, body: Manifest) -> Manifest:
    """The manifest with its kind, and its own hash among the annotations."""
    manifest = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
    annotations = manifest["metadata"]["annotations"] | {names.MANIFEST: hash_of(manifest)}
    return manifest | {"metadata": manifest["metadata"] | {"annotations": annotations}}
