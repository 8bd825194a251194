"""Which pods start together: what they say themselves, or who owns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batuta.backends.kube import names, objects

JOB_SET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
ALONE: Final = 1
_DIGITS: Final = 10


class GangId(NamedTuple):
    """A gang by who it belongs to."""

    namespace: str
    kind: str
    """`pod` for one that is alone."""
    name: str

    @property
    def key(self) -> str:
        """Of the object that it belongs to."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}:{self.name}"


def gang_of(pod: objects.Pod) -> GangId:
    """The gang that a pod belongs to. The nearest word counts: its own group, then its owner's."""
    meta, spec = pod.metadata, pod.spec
    labels, space = meta.labels, meta.namespace
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return GangId(space, "workload", spec.scheduling_group.pod_group_name)
    if names.POD_GROUP in labels:
        return GangId(space, "podgroup", labels[names.POD_GROUP])
    if names.GANG_NAME in labels:
        return GangId(space, "gang", labels[names.GANG_NAME])
    if JOB_SET_NAME in labels:
        return GangId(space, "jobset", labels[JOB_SET_NAME])
    for owner in meta.owner_references:
        if owner.controller and owner.kind == "Job":
            return GangId(space, "job", owner.name)
    return GangId(space, "pod", meta.name)


@dataclass(frozen=True, slots=True)
class Owners:
    """The objects that know how many pods a gang has, by `namespace/name`."""

    jobs: Mapping[str, objects.Batch]
    job_sets: Mapping[str, objects.Batch]
    pod_groups: Mapping[str, objects.PodGroup]
    workload_groups: Mapping[str, objects.Batch]

    def size(self, gang: GangId, pod: objects.Pod | None) -> int | None:
        """How many pods start together, as their owner or one of them says; None while nobody knows."""
        key = gang.key
        match gang.kind:
            case "pod":
                return ALONE
            case "gang":
                return None if pod is None else _said_size(pod.metadata)
            case "job":
                return _job_size(self.jobs.get(key))
            case "jobset":
                return _job_set_size(self.job_sets.get(key))
            case "podgroup":
                group = self.pod_groups.get(key)
                return None if group is None else max(group.spec.min_member, ALONE)
            case _:
                return _workload_size(self.workload_groups.get(key))


def _said_size(meta: objects.Meta) -> int | None:
    said = meta.annotations.get(names.GANG_SIZE) or meta.labels.get(names.GANG_SIZE) or ""
    return int(said) if said.isdecimal() and len(said) < _DIGITS and int(said) > 0 else None


def _job_size(job: objects.Batch | None) -> int | None:
    """The pods that are still to run: those that have succeeded are not made again."""
    if job is None:
        return None
    parallelism = _whole(job.spec.get("parallelism"), ALONE)
    completions = job.spec.get("completions")
    if completions is None:
        return max(parallelism, ALONE)
    return max(min(parallelism, _whole(completions, ALONE) - _whole(job.status.get("succeeded"), 0)), ALONE)


def _job_set_size(job_set: objects.Batch | None) -> int | None:
    if job_set is None:
        return None
    total = 0
    for part in job_set.spec.get("replicatedJobs") or ():
        spec = (part.get("template") or {}).get("spec") or {}
        total += _whole(part.get("replicas"), ALONE) * _whole(spec.get("parallelism"), ALONE)
    return max(total, ALONE)


def _workload_size(group: objects.Batch | None) -> int | None:
    if group is None:
        return None
    gang = (group.spec.get("schedulingPolicy") or {}).get("gang") or {}
    return max(_whole(gang.get("minCount"), ALONE), ALONE)


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise
