"""What a user asks for by a UnifiedJob: a job of the World, and what shall become of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from batuta.backends.kube import names, objects
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.to_job import DEFAULT_CLASS, Faults, pinned_replicas, to_job
from batuta.core.job import Job
from batuta.core.wish import Wish


@dataclass(frozen=True, slots=True)
class Asked:
    """Two that are equal ask for the same."""

    job: Job | None
    wish: Wish = Wish.RUN
    faults: tuple[str, ...] = ()


def read_request(
    uj: UnifiedJob,
    classes: Mapping[str, objects.PriorityClass],
    workload_classes: Mapping[str, int] = MappingProxyType({}),
) -> Asked:
    """What the object says now. A pinned size is a job that can have no other."""
    priorities = {name: one.value for name, one in classes.items()}
    priorities[DEFAULT_CLASS] = next((one.value for one in classes.values() if one.global_default), 0)
    found = to_job(uj, priorities)
    if isinstance(found, Faults):
        return Asked(None, faults=found.sentences)
    own = uj.metadata.labels.get(names.KUEUE_PRIORITY_CLASS, "")
    if own in workload_classes:
        found = replace(found, priority=workload_classes[own])
    pinned = pinned_replicas(uj)
    wish = Wish.RUN
    if uj.metadata.annotations.get(names.CANCEL, "") not in ("", "false"):
        wish = Wish.CANCEL
    elif uj.spec.suspend or pinned == 0:
        wish = Wish.PARK
    if pinned:
        gpus = pinned * found.gpus_per_replica
        if found.min <= gpus <= found.max and (found.sizes is None or gpus in found.sizes):
            found = replace(found, size=gpus, min=gpus, max=gpus, sizes=None)
    return Asked(found, wish)
