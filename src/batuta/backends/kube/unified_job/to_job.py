"""A UnifiedJob as the scheduler sees it: its sizes, what its nodes must have, its priority.

Sizes count GPUs, or the replicas of a CPU-only job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.names import whole_units_mib
from batuta.backends.kube.unified_job.crd import broken_rules
from batuta.backends.kube.unified_job.model import Spec, UnifiedJob
from batuta.backends.kube.unified_job.node_requirements import (
    NodeRequirements,
    PodRequests,
    node_requirements,
    parse_quantity,
    pod_requests,
)
from batuta.core.curve import linear_curve, power_curve
from batuta.core.job import ANY_TYPE, ANYWHERE, Job, JobKind, Share, Spread, Topology
from batuta.core.node_table import OFFERS_SHARES
from batuta.spec.task_job import LONGEST_CURVE, NEVER_S, PRIOR_EXPONENT, PRIOR_RESTART_S, prior_work_s

DEFAULT_QUEUE: Final = Spec().queue_name
DEFAULT_CLASS: Final = ""
"""The key in `priorities` of the class that jobs without one have."""
_KINDS: Final = {
    "TorchElastic": JobKind.TORCH_ELASTIC,
    "ElasticHorovod": JobKind.HOROVOD_ELASTIC,
    "MPIJob": JobKind.MPI,
}
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Faults:
    """Why a UnifiedJob cannot be scheduled: sentences with the field and the fix."""

    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.sentences)


Converted: TypeAlias = Job | Faults


def to_job(job: UnifiedJob, priorities: Mapping[str, int]) -> Converted:
    """The job, or everything that is wrong with it. `priorities` has each PriorityClass's number."""
    spec = job.spec
    pod = _pod_of(spec)
    requests, requirements = pod_requests(pod), node_requirements(pod)
    faults = [*job.unreadable, *requests.faults, *requirements.faults]
    if not faults:
        faults += broken_rules(job)
    faults += _gpu_faults(spec, requests)
    if not pod.get("containers"):
        faults.append("spec.replicaSpec.template.spec.containers: a replica needs at least one container")
    elif not all(isinstance(one, dict) for one in pod["containers"]):
        faults.append("spec.replicaSpec.template.spec.containers: each container is an object with a name")
    if spec.priority_class_name and spec.priority_class_name not in priorities:
        faults.append(f"spec.priorityClassName: the cluster has no PriorityClass {spec.priority_class_name!r}")
    share = _share(spec, faults)
    topology = _topology(spec, faults)
    submit_s = _seconds(job.metadata.creation_timestamp)
    if submit_s is None:
        faults.append(f"metadata.creationTimestamp: {job.metadata.creation_timestamp!r} is not a time")
    if faults or submit_s is None:
        return Faults(tuple(dict.fromkeys(faults)))
    converted = _build(job, submit_s, share, topology, requests, requirements, priorities)
    remaining = converted.faults()
    return Faults(tuple(remaining)) if remaining else converted


def queue_of(job: UnifiedJob) -> str:
    """The queue that it waits in: what its spec says, else the label by which Kueue's jobs say it."""
    own = job.spec.queue_name
    return own if own != DEFAULT_QUEUE else job.metadata.labels.get(names.KUEUE_QUEUE_NAME) or own


def pinned_replicas(job: UnifiedJob) -> int | None:
    """The size that a person asked for by writing targetReplicas; None when the scheduler wrote it last."""
    target = job.spec.replica_spec.target_replicas
    if target is None or str(target) == job.metadata.annotations.get(names.TARGET):
        return None
    return target


def _build(
    job: UnifiedJob,
    submit_s: float,
    share: Share | None,
    topology: Topology,
    requests: PodRequests,
    requirements: NodeRequirements,
    priorities: Mapping[str, int],
) -> Job:
    meta, spec, replicas = job.metadata, job.spec, job.spec.replica_spec
    cpu_only, sizes = replicas.cpu_only, replicas.legal_sizes
    # GPUs in each replica, or each replica alone.
    each = replicas.gpus_per_replica or 1
    largest = replicas.largest * each
    curve = linear_curve(1) if cpu_only else power_curve(min(largest, LONGEST_CURVE), PRIOR_EXPONENT)
    return Job(
        id=job.id,
        submit_s=submit_s,
        size=_wanted(job) * each,
        min=replicas.min_replicas * each,
        max=largest,
        sizes=tuple(size * each for size in sizes) if sizes else None,
        gpus_per_replica=replicas.gpus_per_replica,
        name=meta.name,
        user=meta.annotations.get(names.USER, ""),
        queue=queue_of(job),
        namespace=meta.namespace,
        priority=priorities.get(spec.priority_class_name, 0),
        kind=_KINDS.get(spec.job_type, JobKind.SCRIPT),
        application=meta.labels.get(names.APPLICATION, "") or meta.name,
        # A CPU-only job may select nodes by their GPUs, as by any label; it accepts no GPU.
        gpu_types=ANY_TYPE if cpu_only else tuple((name, 1.0) for name in requirements.gpu_types),
        share=share,
        topology=topology,
        cpus_milli_per_gpu=-(-requests.amounts.get("cpu", 0) // each),
        memory_mib_per_gpu=-(-requests.amounts.get("memory", 0) // (_MIB * each)),
        node_labels=requirements.labels if share is None else (*requirements.labels, OFFERS_SHARES),
        node_terms=requirements.terms,
        tolerations=requirements.tolerations if share is None else (*requirements.tolerations, names.SHARES_ONLY),
        curve=curve,
        work_s=prior_work_s(curve),
        restart_s=PRIOR_RESTART_S,
        checkpoint_interval_s=_checkpoint_interval_s(job),
        restartable=replicas.restartable or spec.job_type == "ElasticHorovod",
        time_limit_s=spec.active_deadline_seconds,
        trial_of=f"{meta.namespace}/{trial}" if (trial := meta.labels.get(names.TRIAL_RUN)) else None,
    )


def _pod_of(spec: Spec) -> Mapping[str, Any]:
    pod = spec.replica_spec.template.get("spec")
    return pod if isinstance(pod, dict) else {}


def _gpu_faults(spec: Spec, requests: PodRequests) -> list[str]:
    """The template may repeat how many GPUs a replica has; it may not say another number."""
    path = "spec.replicaSpec.template.spec.containers"
    asked = requests.gpus
    if requests.shares:
        return [f"{path}: a share of a GPU is said in spec.sharing, not in the template's resources"]
    if len(asked) > 1:
        return [f"{path}: {' and '.join(asked)} are asked for; a replica has GPUs of one kind"]
    if asked and spec.sharing is not None:
        return [f"{path}: {next(iter(asked))} asks for whole GPUs, spec.sharing for a share; keep one"]
    each = spec.replica_spec.gpus_per_replica
    return [
        f"{path}: {name} is {count}, gpusPerReplica is {each}; make them equal, or leave {name} out"
        for name, count in asked.items()
        if count != each
    ]


def _share(spec: Spec, faults: list[str]) -> Share | None:
    sharing = spec.sharing
    if sharing is None:
        return None
    memory_mib = 0
    if sharing.gpu_memory is not None:
        amount = parse_quantity(sharing.gpu_memory)
        memory_mib = int((amount or 0) / _MIB)
        if memory_mib < 1:
            faults.append(f"spec.sharing.gpuMemory: {sharing.gpu_memory!r} is not 1Mi or more, for example 8Gi")
    return Share(whole_units_mib(memory_mib), sharing.gpu_compute or 0, soft=_is_soft(spec))


def _is_soft(spec: Spec) -> bool:
    """Whether its pods may have more of a card's compute than their share while that is idle."""
    metadata = spec.replica_spec.template.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return isinstance(annotations, dict) and annotations.get(names.SHARE_LIMITS) == "soft"


def _topology(spec: Spec, faults: list[str]) -> Topology:
    wanted = spec.topology
    if wanted is None:
        return ANYWHERE
    level = wanted.level or Spread.ANY.value
    try:
        within = Spread(level)
    except ValueError:
        within = Spread.ANY
        if wanted.mode == "Required":
            faults.append(f"spec.topology.level: {level} cannot be required yet; node and rack can")
    required = wanted.mode == "Required" and within is not Spread.ANY
    return Topology(within, required, wanted.numa == "SingleNUMANode")


def _wanted(job: UnifiedJob) -> int:
    """The size that the job asks for: what its annotation says, else the smallest, as in a task file."""
    replicas = job.spec.replica_spec
    text = job.metadata.annotations.get(names.WANTED, "")
    wanted = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else replicas.min_replicas
    legal = wanted in replicas.sizes if replicas.sizes else replicas.min_replicas <= wanted <= replicas.largest
    return wanted if legal else replicas.min_replicas


def _checkpoint_interval_s(job: UnifiedJob) -> float | None:
    """As in a task file: an elastic job saves when asked, a rigid one never, or as annotated."""
    replicas = job.spec.replica_spec
    word = job.metadata.annotations.get(names.CHECKPOINT, "")
    seconds = parse_quantity(word)
    if seconds is not None and seconds > 0:
        return float(seconds)
    if word == "on-signal" or (not word and replicas.largest > replicas.min_replicas):
        return None
    return NEVER_S


def _seconds(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
