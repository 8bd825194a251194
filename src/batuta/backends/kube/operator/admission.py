"""The job that a UnifiedJob requests, and the gate that decides whether and how much of it the World gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from batuta.backends.kube import names, objects
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.to_job import DEFAULT_CLASS, Faults, pinned_replicas, to_job
from batuta.core.job import DesiredState, Job


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Two that are equal ask for the same."""

    job: Job | None
    wish: DesiredState = DesiredState.RUN
    faults: tuple[str, ...] = ()


def read_request(
    uj: UnifiedJob,
    classes: Mapping[str, objects.PriorityClass],
    workload_classes: Mapping[str, int] = MappingProxyType({}),
) -> JobRequest:
    """What the object says now. A pinned size is a job that can have no other."""
    priorities = {name: one.value for name, one in classes.items()}
    priorities[DEFAULT_CLASS] = next((one.value for one in classes.values() if one.global_default), 0)
    found = to_job(uj, priorities)
    if isinstance(found, Faults):
        return JobRequest(None, faults=found.sentences)
    own = uj.metadata.labels.get(names.KUEUE_PRIORITY_CLASS, "")
    if own in workload_classes:
        found = replace(found, priority=workload_classes[own])
    pinned = pinned_replicas(uj)
    wish = DesiredState.RUN
    if uj.metadata.annotations.get(names.CANCEL, "") not in ("", "false"):
        wish = DesiredState.CANCEL
    elif uj.spec.suspend or pinned == 0:
        wish = DesiredState.PARK
    if pinned:
        size = pinned * found.replica_size
        if found.min <= size <= found.max and (found.sizes is None or size in found.sizes):
            found = replace(found, size=size, min=size, max=size, sizes=None)
    return JobRequest(found, wish)


class PendingReason(NamedTuple):
    """Why a job is kept out."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the World shall know of a job."""

    asked: JobRequest
    """Without a job while it is kept out."""
    waiting: PendingReason | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    """What its pods tolerate beyond what their template says."""


class AdmissionGate(Protocol):
    """Asked whenever a job is looked at."""

    def __call__(self, uj: UnifiedJob, asked: JobRequest, is_inside: bool) -> GateResult:
        """`is_inside`: the World knows the job, or its pods are there: it can be parked, but not kept out."""
        ...


def admit_all(uj: UnifiedJob, asked: JobRequest, is_inside: bool) -> GateResult:
    """Admits every job as it is."""
    return GateResult(asked)
