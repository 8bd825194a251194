"""Which pods form a gang, which of them are present, placed or finished, and the rigid job that they make.

A gang is named by labels or annotations of its pods, or follows from the object that owns them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.affinity import Requirement
from batuta.backends.kube.binder.cluster import is_over, pod_key
from batuta.backends.kube.binder.pod_class import NodeTerm, PodClass, Tolerance
from batuta.backends.kube.bounded_text import read_gpus, read_time, read_whole
from batuta.core import cluster
from batuta.core.cluster import NodeName, Span
from batuta.core.curve import linear_curve
from batuta.core.job import NO_RESTART_S, Job, JobId, Share
from batuta.core.node_table import OFFERS_SHARES
from batuta.engine.jobs.outcome import Outcome, RunEnd

JOB_SET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
ALONE: Final = 1
MOST_MEMBERS: Final = 1_000_000_000  # of a gang; more are never all there
MADE_ANEW: Final = ("job", "jobset")  # kinds of gangs whose owner makes other pods when some are gone
_OPERATORS: Final = {operator.value: operator for operator in cluster.Operator}
_NOWHERE: Final = (cluster.Requirement("", cluster.Operator.IN),)  # no node meets this
_MIB: Final = 1 << 20


class GangId(NamedTuple):
    """A gang by who it belongs to."""

    namespace: str
    kind: str  # `pod` for one that is alone
    name: str

    @property
    def key(self) -> str:
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
        """How many pods start together, as their owner or one of them says; None while unknown."""
        found: int | None = None
        match gang.kind:
            case "pod":
                found = ALONE
            case "gang" if pod is not None:
                return _said_size(pod.metadata)
            case "job" if (job := self.jobs.get(gang.key)) is not None:
                found = _job_size(job)
            case "jobset" if (job_set := self.job_sets.get(gang.key)) is not None:
                found = _job_set_size(job_set)
            case "podgroup" if (group := self.pod_groups.get(gang.key)) is not None:
                found = group.spec.min_member
            case "workload" if (workload := self.workload_groups.get(gang.key)) is not None:
                found = _whole(_part(workload.spec, "schedulingPolicy", "gang").get("minCount"), ALONE)
        return None if found is None else max(found, ALONE)


def _said_size(meta: objects.Meta) -> int | None:
    said = meta.annotations.get(names.GANG_SIZE) or meta.labels.get(names.GANG_SIZE)
    return read_whole(said, least=ALONE, most=MOST_MEMBERS)


def _job_size(job: objects.Batch) -> int:
    """The pods that are still to run: those that have succeeded are not made again."""
    parallelism, completions = _whole(job.spec.get("parallelism"), ALONE), job.spec.get("completions")
    if completions is None:
        return parallelism
    return min(parallelism, _whole(completions, ALONE) - _whole(job.status.get("succeeded"), 0))


def _job_set_size(job_set: objects.Batch) -> int:
    total = 0
    parts = job_set.spec.get("replicatedJobs")
    for part in parts if isinstance(parts, list) else ():
        replicas, spec = _part(part), _part(part, "template", "spec")
        total += _whole(replicas.get("replicas"), ALONE) * _whole(spec.get("parallelism"), ALONE)
    return total


def _part(value: Any, *path: str) -> Mapping[str, Any]:
    """The object at a place of another; empty where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _whole(value: Any, otherwise: int) -> int:
    return min(value, MOST_MEMBERS) if isinstance(value, int) else otherwise


class PodAssignment(NamedTuple):
    """How the pods that are there fit to the workers that are wanted."""

    stay: dict[str, int]  # by pod: the worker whose place it has
    leave: list[str]  # pods whose place is not in the placement any more
    free: list[int]  # workers without a pod


def assign_pods(bound: Mapping[str, Span], workers: Sequence[Span]) -> PodAssignment:
    """Finds for each pod the worker with its place: the same GPUs first, then any on the same node."""
    stay: dict[str, int] = {}
    left: dict[int, Span] = dict(enumerate(workers))
    # In the second pass: pods whose GPUs were not recorded, for which any of their node will do.
    for fits in (_same, lambda span, place: not place.gpus and span.node == place.node):
        for pod, place in bound.items():
            worker = None if pod in stay else next((k for k, span in left.items() if fits(span, place)), None)
            if worker is not None:
                stay[pod] = worker
                del left[worker]
    return PodAssignment(stay, [pod for pod in bound if pod not in stay], list(left))


def _same(one: Span, other: Span) -> bool:
    return one.node == other.node and set(one.gpus) == set(other.gpus)


@dataclass(slots=True, eq=False)
class GangPods:
    """All pods of one gang that the API server has shown, by key."""

    gang: GangId
    owners: Owners
    has_node: Callable[[NodeName], bool]
    by_key: dict[str, objects.Pod] = field(default_factory=dict)

    def alive(self) -> list[objects.Pod]:
        return [pod for pod in self.by_key.values() if not is_over(pod)]

    def staying(self) -> list[objects.Pod]:
        """Neither over nor on their way out; oldest first."""
        found = (pod for pod in self.alive() if not pod.metadata.deletion_timestamp)
        return sorted(found, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))

    def bound(self) -> dict[str, Span]:
        """Pods that stay and are bound to an existing node; oldest first."""
        return {
            pod_key(pod): Span(pod.spec.node_name, read_gpus(pod.metadata.annotations))
            for pod in self.staying()
            if pod.spec.node_name and self.has_node(pod.spec.node_name)
        }

    def size(self, pod: objects.Pod) -> int | None:
        """How many start together; None while unknown. If all have come, who is over needs no other."""
        size = self.owners.size(self.gang, pod)
        return self.lasting(size) if size is not None and size == len(self.by_key) else size

    def lasting(self, members: int) -> int:
        """How many of so many members are still to run: who has ended for good is not made again."""
        over = [pod for pod in self.by_key.values() if is_over(pod)]
        if not over:
            return members
        size = self.owners.size(self.gang, over[0])
        if self.gang.kind == "job":
            return members if size is None else min(members, size)  # its owner has counted who has ended
        ended = over
        if self.gang.kind in MADE_ANEW:
            ended = [pod for pod in over if pod.status.phase == "Succeeded"]
        came = len(self.by_key) - len(over) + len(ended)
        return min(members, max(members if size is None else size, came) - len(ended))

    def are_made_anew(self) -> bool:
        return self.gang.kind in MADE_ANEW or any(
            owner.controller for pod in self.by_key.values() for owner in pod.metadata.owner_references
        )

    def outcome(self, is_ending: bool) -> Outcome | None:
        """How the gang has ended; None while it goes on. Stopped: its user has deleted it."""
        alive = self.alive()
        owner = self.owners.jobs.get(self.gang.key) if self.gang.kind == "job" else None
        if alive:
            if self.gang.kind in MADE_ANEW or not all(pod.metadata.deletion_timestamp for pod in alive):
                return None
            # A deletion is final. What the pods still hold counts as used by others.
            return Outcome(RunEnd.STOPPED, detail="its pods are deleted")
        if not self.by_key:
            if owner is not None and not is_ending:
                return None
            return Outcome(RunEnd.STOPPED, detail="its pods are gone")
        if owner is not None and not objects.has_condition(owner.status, "Complete", "Failed"):
            return None
        failed = [pod for pod in self.by_key.values() if pod.status.phase == "Failed"]
        if not failed:
            return Outcome(RunEnd.SUCCEEDED)
        said = failed[0].status.message or failed[0].status.reason
        detail = f"pod {failed[0].metadata.name} failed" + (f": {said}" if said else "")
        return Outcome(RunEnd.FAILED, detail=detail)


def job_of(job: JobId, pod: objects.Pod, cls: PodClass, members: int) -> Job:
    """So many pods like this one, which start together or not at all."""
    each = max(cls.gpus, 1)
    gpus = each * members
    asked = dict(cls.requests)
    return Job(
        id=job,
        submit_s=read_time(pod.metadata.creation_timestamp) or 0.0,
        size=gpus,
        min=gpus,
        max=gpus,
        gpus_per_replica=each,
        name=pod.metadata.name,
        application=pod.metadata.labels.get(names.APPLICATION, ""),
        user=pod.metadata.namespace,
        queue=queue_of(pod.metadata.labels),
        namespace=pod.metadata.namespace,
        priority=pod.spec.priority,
        share=None if cls.share is None else Share(*cls.share),
        cpus_milli_per_gpu=-(-asked.get("cpu", 0) // each),
        memory_mib_per_gpu=-(-asked.get("memory", 0) // (_MIB * each)),
        node_labels=() if cls.share is None else (OFFERS_SHARES,),
        node_terms=node_terms(cls.selector, cls.required),
        tolerations=(*map(toleration, cls.tolerations), *(() if cls.share is None else (names.SHARES_ONLY,))),
        curve=linear_curve(1),
        # A pod that is moved is killed, and its owner has not promised that it can go on: that never pays.
        restart_s=NO_RESTART_S,
        checkpoint_interval_s=NO_RESTART_S,
    )


def queue_of(labels: dict[str, str]) -> str:
    return labels.get(names.QUEUE_NAME) or labels.get(names.KUEUE_QUEUE_NAME) or "default"


def node_terms(
    selector: tuple[Requirement, ...], required: tuple[NodeTerm, ...] | None
) -> tuple[cluster.NodeTerm, ...]:
    """`nodeSelector` and required affinity together, as terms of which a node must meet one."""
    own = tuple(map(_requirement, selector))
    if required is None:
        return (own,) if own else ()
    if not required:
        return (_NOWHERE,)
    return tuple(own + tuple(map(_requirement, (*term.labels, *term.fields))) for term in required)


def _requirement(requirement: Requirement) -> cluster.Requirement:
    operator = _OPERATORS.get(requirement.operator)
    if operator is None:
        return _NOWHERE[0]
    return cluster.Requirement(requirement.key, operator, requirement.values)


def toleration(tolerance: Tolerance) -> str:
    key = tolerance.key or cluster.EVERYTHING
    said = key if tolerance.operator == "Exists" else f"{key}={tolerance.value}"
    return f"{said}:{tolerance.effect}" if tolerance.effect else said
