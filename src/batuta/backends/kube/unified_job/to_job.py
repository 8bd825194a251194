"""A UnifiedJob as the scheduler sees it: its sizes, what its nodes must have, its priority.

Sizes count GPUs, or the replicas of a CPU-only job. The API server does not check pod templates, so quantities in
them may be numbers or strings, and may be invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder import requests as binder
from batuta.backends.kube.bounded_text import read_quantity, read_time, read_whole
from batuta.backends.kube.crd import broken, read_tolerantly
from batuta.backends.kube.names import GPU_PRODUCT_LABELS, GPU_RESOURCES, SHARE_COMPUTE, SHARE_MEMORY, whole_units_mib
from batuta.backends.kube.unified_job.model import MOST_REPLICAS, RULES, Spec, UnifiedJob
from batuta.core.cluster import EVERYTHING, NodeTerm, Operator, Requirement
from batuta.core.curve import linear_curve, power_curve
from batuta.core.job import ANY_TYPE, ANYWHERE, DesiredState, Job, JobKind, Share, SizeChoice, Spread, Topology
from batuta.core.node_table import OFFERS_SHARES
from batuta.prediction.application_history import legal_sizes, settle
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
_OPERATORS: Final = {operator.value: operator for operator in Operator}
_PATH: Final = "spec.replicaSpec.template.spec"


@dataclass(frozen=True, slots=True)
class Faults:
    """Why a UnifiedJob cannot be scheduled: sentences with the field and the fix."""

    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Two that are equal ask for the same."""

    job: Job | None
    wish: DesiredState = DesiredState.RUN
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """What a node must be like, and what in the template cannot be read."""

    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeTerm, ...] = ()
    tolerations: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    """Empty accepts all."""
    faults: tuple[str, ...] = ()


class _Part(msgspec.Struct, rename="camel"):
    """The part of a PodSpec that is about nodes."""

    node_selector: dict[str, str] = {}
    affinity: objects.Affinity | None = None
    tolerations: list[objects.Toleration] = []


@dataclass(frozen=True, slots=True)
class PodRequests:
    """The sums for one pod, and what in the template cannot be read."""

    amounts: Mapping[str, int]
    """CPUs in thousandths, memory in bytes."""
    faults: tuple[str, ...]

    @property
    def gpus(self) -> dict[str, int]:
        """Whole GPUs by resource, those that are asked for."""
        return {name: self.amounts[name] for name in GPU_RESOURCES if name in self.amounts}

    @property
    def shares(self) -> bool:
        return any(name in self.amounts for name in (SHARE_MEMORY, SHARE_COMPUTE))


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


def settle_size(
    uj: UnifiedJob, job: Job, chosen: SizeChoice | None, choose: Callable[[Job], SizeChoice | None]
) -> tuple[Job, SizeChoice | None]:
    """The job with the size that was chosen for it, and that choice; as it is where its user says a size.

    The answer is the same at every look, also by the next operator: `chosen` before counts, then the status, as
    long as its user has not changed the range meanwhile. A job is tried out first where `choose` returns None.
    """
    if uj.metadata.annotations.get(names.WANTED) != names.ANY_SIZE or job.share is not None or job.cpu_only:
        return job, None
    if pinned_replicas(uj) is not None:
        return job, chosen
    if chosen is None and (told := uj.status.size_choice) is not None:
        speed_share = told.speed_percentage / 100
        chosen = SizeChoice(told.gpus, told.fastest_gpus, speed_share, job.application, told.measured_jobs)
    if chosen is None or chosen.gpus not in legal_sizes(job):
        chosen = choose(job)
    if chosen is None:
        return job, None
    # A job that cannot save what it has done is not resized.
    return settle(job, chosen, for_good=job.checkpoint_interval_s == NEVER_S), chosen


def to_job(job: UnifiedJob, priorities: Mapping[str, int]) -> Job | Faults:
    """The job, or everything that is wrong with it. `priorities` has each PriorityClass's number."""
    spec = job.spec
    pod = spec.replica_spec.pod
    requests, requirements = pod_requests(pod), node_requirements(pod)
    faults = [*job.unreadable, *requests.faults, *requirements.faults]
    if not faults:
        faults += broken(RULES, job)
    faults += _gpu_faults(spec, requests)
    if not pod.get("containers"):
        faults.append("spec.replicaSpec.template.spec.containers: a replica needs at least one container")
    elif not isinstance(pod["containers"], list) or not all(isinstance(one, dict) for one in pod["containers"]):
        faults.append("spec.replicaSpec.template.spec.containers: each container is an object with a name")
    if spec.priority_class_name and spec.priority_class_name not in priorities:
        faults.append(f"spec.priorityClassName: the cluster has no PriorityClass {spec.priority_class_name!r}")
    share = _share(spec, faults)
    topology = _topology(spec, faults)
    submit_s = read_time(job.metadata.creation_timestamp)
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


def node_requirements(pod: Mapping[str, Any]) -> NodeRequirements:
    """What the template's selector, required node affinity and tolerations say."""
    part, unreadable = read_tolerantly(dict(pod), _Part, _PATH)
    faults = list(unreadable)
    labels = tuple(sorted(part.node_selector.items()))
    terms = _terms(part.affinity, faults)
    return NodeRequirements(
        labels=labels,
        terms=terms,
        tolerations=tuple(dict.fromkeys(text for one in part.tolerations if (text := _toleration(one)) is not None)),
        gpu_types=_gpu_types(labels, terms),
        faults=tuple(faults),
    )


def _terms(affinity: objects.Affinity | None, faults: list[str]) -> tuple[NodeTerm, ...]:
    node = affinity.node_affinity if affinity is not None else None
    required = node.required_during_scheduling_ignored_during_execution if node is not None else None
    if required is None:
        return ()
    path = f"{_PATH}.affinity.nodeAffinity"
    found = tuple(term for one in required.node_selector_terms if (term := _term(one, path, faults)))
    if not found and not faults:
        faults.append(f"{path}: a term without expressions matches no node; name a label")
    return found


def _term(term: objects.NodeSelectorTerm, path: str, faults: list[str]) -> NodeTerm:
    listed = (*term.match_expressions, *term.match_fields)
    return tuple(one for each in listed if (one := _requirement(each, path, faults)) is not None)


def _requirement(expression: objects.Expression, path: str, faults: list[str]) -> Requirement | None:
    operator = _OPERATORS.get(expression.operator)
    if operator is None:
        known = ", ".join(_OPERATORS)
        faults.append(f"{path}: {expression.operator!r} is not an operator; known: {known}")
        return None
    return Requirement(expression.key, operator, tuple(expression.values))


def _toleration(toleration: objects.Toleration) -> str | None:
    """As the core writes it; None for one that the core cannot compare, and so does not count on."""
    effect = f":{toleration.effect}" if toleration.effect else ""
    if toleration.operator == "Exists":
        return (toleration.key or EVERYTHING) + effect
    if toleration.operator in ("", "Equal") and toleration.key:
        return f"{toleration.key}={toleration.value}{effect}"
    return None


def _gpu_types(labels: tuple[tuple[str, str], ...], terms: tuple[NodeTerm, ...]) -> tuple[str, ...]:
    """The products that the template names, where every way to meet it names some."""
    selected = [value for key, value in labels if key in GPU_PRODUCT_LABELS]
    if selected:
        return tuple(selected[:1])
    named = [
        [value for one in term if one.key in GPU_PRODUCT_LABELS and one.operator is Operator.IN for value in one.values]
        for term in terms
    ]
    return tuple(dict.fromkeys(value for values in named for value in values)) if all(named) else ()


def pod_requests(pod: Mapping[str, Any]) -> PodRequests:
    """What the binder will count for a pod of this template."""
    faults: list[str] = []
    spec = objects.PodSpec(
        containers=_containers(pod, "containers", faults),
        init_containers=_containers(pod, "initContainers", faults),
        overhead=_amounts(pod.get("overhead"), f"{_PATH}.overhead", faults),
        resources=_resources(pod, _PATH, faults),
    )
    return PodRequests(binder.pod_requests(objects.Pod(spec=spec)), tuple(faults))


def _containers(pod: Mapping[str, Any], key: str, faults: list[str]) -> list[objects.Container]:
    listed = pod.get(key)
    return [
        objects.Container(
            name=str(one.get("name", "")),
            resources=_resources(one, f"{_PATH}.{key}[{index}]", faults),
            restart_policy=str(one.get("restartPolicy", "")),
        )
        for index, one in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(one, dict)
    ]


def _resources(holder: Mapping[str, Any], path: str, faults: list[str]) -> objects.Resources:
    """A limit without a request is the request: so the API server fills it in."""
    written = holder.get("resources")
    if not isinstance(written, dict):
        return objects.Resources()
    limits = _amounts(written.get("limits"), f"{path}.resources.limits", faults)
    requests = _amounts(written.get("requests"), f"{path}.resources.requests", faults)
    return objects.Resources(limits=limits, requests=limits | requests)


def _amounts(listed: Any, path: str, faults: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in (listed if isinstance(listed, dict) else {}).items():
        if parse_quantity(value) is None:
            faults.append(f"{path}.{name}: {str(value)[:60]!r} is not an amount, for example 4, 500m or 16Gi")
        else:
            found[str(name)] = str(value)
    return found


def parse_quantity(value: Any) -> Fraction | None:
    """The exact amount; None when it is none, or below zero."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = read_quantity(str(value))
    return found if found is not None and found >= 0 else None


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
    cpu_only, sizes = replicas.cpu_only, replicas.sizes
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
    wanted = read_whole(job.metadata.annotations.get(names.WANTED), most=MOST_REPLICAS)
    return wanted if wanted is not None and replicas.allows(wanted) else replicas.min_replicas


def _checkpoint_interval_s(job: UnifiedJob) -> float | None:
    """As in a task file: an elastic job saves when asked, a rigid one never, or as annotated."""
    replicas = job.spec.replica_spec
    word = job.metadata.annotations.get(names.CHECKPOINT, "")
    seconds = parse_quantity(word)
    if seconds is not None and seconds > 0:
        return min(float(seconds), NEVER_S)
    if word == "on-signal" or (not word and replicas.largest > replicas.min_replicas):
        return None
    return NEVER_S
