"""UnifiedJob as it stands in the API server. The only place where its fields are declared.

From these declarations come the decoder, the OpenAPI schema of the CRD (types, bounds, defaults, texts), and
the checks of an object that got past the schema. `RULES` are the rules between fields; one about a change
(`oldSelf`) is the API server's alone: only it sees both sides.

The CRD's schema keeps faulty objects out. One may still be there: written before the schema became stricter,
or under another version of it. It must neither stop the watch nor hide from its owner, so everything readable
is read, and everything else becomes a sentence.

Of the pod template the CRD's schema knows little. A whole pod's schema would be ten thousand lines of the API
server's memory in every cluster, and would refuse fields of the next Kubernetes. So unknown fields are kept,
and the API server checks the pods when they are created. What makes every template useless is refused at
once. It is not an `embedded-resource`: that is for whole objects with apiVersion and kind, which a template
has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from batuta.backends.kube import names
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.crd import Int32, Int64, Resource, Rule, Time, doc, name_rule, unchanged

MOST_CONTAINERS: Final = 32
_STRINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}


def _open_object(*required: str, description: str = "", **properties: Any) -> dict[str, Any]:
    """The schema of an object that keeps properties beyond these."""
    schema = {"type": "object", "description": description, "required": [*required], "properties": properties}
    return {key: value for key, value in schema.items() if value} | {"x-kubernetes-preserve-unknown-fields": True}


_CONTAINER: Final = _open_object(
    "name", name={"type": "string", "minLength": 1, "maxLength": 63}, image={"type": "string", "maxLength": 1024}
)
TEMPLATE_SCHEMA: Final = _open_object(
    "spec",
    metadata=_open_object(description="Labels and annotations of the pods.", labels=_STRINGS, annotations=_STRINGS),
    spec=_open_object(
        "containers",
        description="A PodSpec. Everything that a pod may have is kept.",
        containers={
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_CONTAINERS,
            "items": _CONTAINER,
            "description": "The first one is the training process: it is given the GPUs and the environment.",
        },
        restartPolicy={
            "type": "string",
            "enum": ["Never", "OnFailure"],
            "description": "Never by default: Batuta starts all replicas again together. OnFailure "
            "only for the types Job and MPIJob.",
        },
    ),
)
JobType: TypeAlias = Literal["Job", "TorchElastic", "ElasticHorovod", "MPIJob", "Pods"]
JOB_TYPES: Final[tuple[str, ...]] = get_args(JobType)
"""The types that come with Batuta; more are found by entry point."""
Level: TypeAlias = Literal["node", "rack", "zone"]
Mode: TypeAlias = Literal["Preferred", "Required"]
Numa: TypeAlias = Literal["Any", "SingleNUMANode"]

MOST_REPLICAS: Final = 100_000
Replicas: TypeAlias = Annotated[Int32, Meta(ge=1, le=MOST_REPLICAS)]
MOST_SIZES: Final = 1024
QUANTITY_PATTERN: Final = r"^[0-9]{1,18}(\.[0-9]{1,9})?([KMGTPE]i|[kMGTPE])?$"
_RESTARTS_ITSELF: Final = ("Job", "MPIJob")
"""Types whose own controller copes with a container that starts again in its pod."""
_RUNS: Final = "(has(self.status) && has(self.status.replicas) && self.status.replicas > 0)"
_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class _Part(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Names as the API server spells them; what it sends beyond these fields is skipped."""


class ReplicaSpec(_Part, frozen=True):
    """How many replicas there may be, and what each of them is."""

    min_replicas: Annotated[Replicas, doc("The job runs with at least so many replicas, or not at all.")] = 1
    max_replicas: Annotated[
        Replicas | None, doc("The job can use so many replicas. Without it the job has minReplicas, always.")
    ] = None
    sizes: Annotated[
        Annotated[list[Replicas], Meta(min_length=1, max_length=MOST_SIZES)] | None,
        doc(
            "The numbers of replicas that the job can have, ascending, from minReplicas to "
            "maxReplicas. Without it every number between them is one.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = None
    gpus_per_replica: Annotated[
        Int32,
        doc(
            "GPUs of each replica. They need not be written into the template as well. 0: a "
            "CPU-only job, which takes the CPU and memory that the template requests, and has one size.",
            ge=0,
            le=1024,
        ),
    ] = 1
    target_replicas: Annotated[
        Annotated[Int32, Meta(ge=0, le=MOST_REPLICAS)] | None,
        doc(
            "How many replicas the scheduler wants now; 0 while the job waits. A person who "
            "writes it, by kubectl scale for example, pins the size."
        ),
    ] = None
    restartable: Annotated[
        bool,
        doc(
            "A restart loses nothing that matters. Otherwise an elastic job keeps its size until "
            "a checkpoint of it was seen, for a resize would lose its work."
        ),
    ] = False
    template: Annotated[
        dict[str, Any],
        doc(
            "The pod of a replica, as in a Job. A change takes effect at the next start.",
            extra={"required": True, "schema": TEMPLATE_SCHEMA},
        ),
    ] = {}

    @property
    def largest(self) -> int:
        return self.min_replicas if self.max_replicas is None else self.max_replicas

    @property
    def cpu_only(self) -> bool:
        return not self.gpus_per_replica

    @property
    def pod(self) -> dict[str, Any]:
        """The PodSpec of the template; empty where it is none."""
        pod = self.template.get("spec")
        return pod if isinstance(pod, dict) else {}

    @property
    def processes_per_replica(self) -> int:
        """How many processes a launcher starts in each replica: one per GPU, or one without GPUs."""
        return self.gpus_per_replica or 1

    def allows(self, replicas: int) -> bool:
        return replicas in self.sizes if self.sizes else self.min_replicas <= replicas <= self.largest


class Sharing(_Part, frozen=True):
    """A share of one GPU, for a job with one replica that has one."""

    gpu_memory: Annotated[
        int | str | None,
        doc(
            "Memory of the GPU, for example 8Gi.",
            extra={"quantity": True},
            extra_json_schema={"pattern": QUANTITY_PATTERN},
        ),
    ] = None
    gpu_compute: Annotated[Int32, doc("Percent of the GPU's compute.", ge=1, le=100)] | None = None


class Topology(_Part, frozen=True):
    """Where the replicas want to be, relative to each other."""

    level: Annotated[Level | None, doc("The smallest part of the cluster that all replicas should be within.")] = None
    mode: Annotated[Mode, doc("Preferred: if it can be had. Required: the job waits until it can.")] = "Preferred"
    numa: Annotated[Numa, doc("SingleNUMANode: CPUs, memory and GPUs of a replica lie in one NUMA node.")] = "Any"


class Spec(_Part, frozen=True):
    """What the user wants."""

    job_type: Annotated[
        str,
        doc(
            "What the replicas are: Job, TorchElastic, ElasticHorovod, MPIJob, Pods, or a type "
            "that the operator has been given.",
            max_length=63,
            extra={"required": True},
        ),
    ] = ""
    queue_name: Annotated[str, doc("The queue in which the job waits.", max_length=253, pattern=_SUBDOMAIN)] = "default"
    priority_class_name: Annotated[
        str, doc("A PriorityClass of the cluster, for the job and its pods.", max_length=253)
    ] = ""
    suspend: Annotated[bool, doc("The job gives its GPUs back and waits until this is false again.")] = False
    managed_by: Annotated[str, doc("Who looks after the job. Batuta leaves those of others alone.", max_length=253)] = (
        names.MANAGED_BY
    )
    active_deadline_seconds: Annotated[
        Annotated[Int64, Meta(ge=1)] | None, doc("The job fails when it has run for so long, all starts together.")
    ] = None
    ttl_seconds_after_finished: Annotated[
        Annotated[Int32, Meta(ge=0)] | None, doc("The job is deleted so long after its end.")
    ] = None
    backoff_limit: Annotated[
        Int32,
        doc(
            "The job fails when it has failed more often than this. Preemptions and lost nodes do not count.",
            ge=0,
            le=100_000,
        ),
    ] = 6
    replica_spec: Annotated[ReplicaSpec, Meta(extra={"required": True})] = ReplicaSpec()
    sharing: Sharing | None = None
    topology: Topology | None = None


class Condition(_Part, frozen=True):
    """One statement about the job, as metav1.Condition has it."""

    type: Annotated[str, Meta(max_length=316, extra={"required": True})] = ""
    status: Annotated[str, Meta(extra={"required": True}, extra_json_schema={"enum": ["True", "False", "Unknown"]})] = (
        "Unknown"
    )
    reason: Annotated[str, Meta(max_length=1024, extra={"required": True})] = ""
    message: Annotated[str, Meta(max_length=32_768, extra={"required": True})] = ""
    last_transition_time: Annotated[Time, Meta(extra={"required": True})] = ""
    observed_generation: Int64 = 0


class Metric(_Part, frozen=True):
    """A number that training reported last."""

    name: Annotated[str, Meta(max_length=253, extra={"required": True})] = ""
    value: Annotated[str, Meta(max_length=253, extra={"required": True})] = ""


class TrainerStatus(_Part, frozen=True):
    """How far training is, with the names that Kubeflow Trainer has for it."""

    progress_percentage: Int32 | None = None
    estimated_remaining_seconds: Int64 | None = None
    metrics: Annotated[list[Metric], Meta(max_length=256, extra_json_schema={"x-kubernetes-list-type": "atomic"})] = []
    last_updated_time: Time | None = None


class SizeChoiceStatus(_Part, frozen=True):
    """The size that was chosen for a job whose user left it open, and why."""

    gpus: Annotated[Int32, doc("GPUs that the job asks for.")] = 0
    fastest_gpus: Annotated[Int32, doc("The fastest size that it may have; 0 when nothing is known of its speed.")] = 0
    speed_percentage: Annotated[Int32, doc("Its speed with gpus, in percent of that with fastestGpus.")] = 100
    measured_jobs: Annotated[Int32, doc("How many earlier jobs were measured.")] = 0
    message: Annotated[str, doc("The same as a sentence.", max_length=1024)] = ""


class RunStatus(_Part, frozen=True):
    """The start of the job that its pods belong to. A resize in place changes nothing here."""

    start: Annotated[Int32, doc("How often it was started before.")] = 0
    first_replicas: Annotated[Int32, doc("How many replicas it was started with.")] = 0
    max_replicas: Annotated[Int32, doc("How many it can have without another start.")] = 0


class Status(_Part, frozen=True):
    """What became of the job. Written by the operator only."""

    observed_generation: Int64 | None = None
    state: Annotated[
        str, doc("PENDING, SETTING_UP, RUNNING, RESIZING, PREEMPTED, SUCCEEDED, FAILED, FAILED_SETUP or CANCELLED.")
    ] = ""
    reason: Annotated[str, doc("Why the job is not at full size, as one word.", max_length=1024)] = ""
    message: Annotated[str, doc("The same as a sentence with numbers.", max_length=32_768)] = ""
    conditions: Annotated[
        list[Condition],
        doc(
            "QuotaReserved, Admitted, PodsReady, Resizing, Complete, Failed.",
            max_length=32,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = []
    replicas: Annotated[Int32, doc("Replicas that have a pod.")] = 0
    ready_replicas: Annotated[Int32, doc("Of these, those ready.")] = 0
    gpus: Annotated[Int32, doc("GPUs that the job holds.")] = 0
    placement: Annotated[dict[str, Int32], doc("How many replicas each node has.")] = {}
    nodes: Annotated[str, doc("The names of these nodes, for kubectl get.")] = ""
    restarts: Annotated[Int32, doc("How often it was started again.")] = 0
    failures: Annotated[Int32, doc("How often it failed; compared with backoffLimit.")] = 0
    run: RunStatus | None = None
    size_choice: SizeChoiceStatus | None = None
    selector: Annotated[str, doc("The pods of the job, for the scale subresource.")] = ""
    start_time: Time | None = None
    completion_time: Time | None = None
    trainer_status: TrainerStatus | None = None
    progress: Annotated[str, doc("Progress in percent, for kubectl get.")] = ""
    eta: Annotated[str, doc("The time that is left, for kubectl get.")] = ""
    result: Annotated[
        Annotated[str, Meta(max_length=16_384)] | None, doc("What the script gave to batuta.sdk.result, as JSON.")
    ] = None


class UnifiedJob(Resource[Spec, Status], kw_only=True, dict=True):
    """A job; its `id` is its id in the World."""

    spec_type = Spec
    status_type = Status


UNIFIED_JOB: Final = Kind(names.GROUP, names.VERSION, names.PLURAL, names.KIND, UnifiedJob)


def _listed(words: Iterable[str]) -> str:
    return f"[{', '.join(map(repr, words))}]"


RULES: Final[tuple[Rule, ...]] = (
    name_rule(),
    Rule(
        "spec",
        f"self.jobType in {_listed(JOB_TYPES)} || self.jobType.contains('/')",
        f"jobType is one of {', '.join(JOB_TYPES)}, or one of your own with a domain, as example.com/Ray",
        field="jobType",
        holds=lambda spec: spec.job_type in JOB_TYPES or "/" in spec.job_type,
    ),
    Rule(
        "spec",
        "self.jobType == oldSelf.jobType",
        "jobType cannot be changed: delete the job and create it anew",
        field="jobType",
    ),
    Rule(
        "spec",
        "self.managedBy == oldSelf.managedBy",
        "managedBy cannot be changed: two operators would look after one job",
        field="managedBy",
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        "minReplicas must be at most maxReplicas",
        field="minReplicas",
        holds=lambda replicas: replicas.min_replicas <= replicas.largest,
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.sizes) || self.sizes.isSorted()",
        "sizes must ascend",
        field="sizes",
        holds=lambda replicas: not replicas.sizes or replicas.sizes == sorted(replicas.sizes),
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.sizes) || size(self.sizes) == 0 || (self.sizes[0] == self.minReplicas && "
        "self.sizes[size(self.sizes) - 1] == (has(self.maxReplicas) ? self.maxReplicas : self.minReplicas))",
        "sizes must begin with minReplicas and end with maxReplicas",
        field="sizes",
        holds=lambda replicas: (
            not replicas.sizes or (replicas.sizes[0], replicas.sizes[-1]) == (replicas.min_replicas, replicas.largest)
        ),
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.targetReplicas) || self.targetReplicas == 0 || (self.targetReplicas >= self.minReplicas "
        "&& self.targetReplicas <= (has(self.maxReplicas) ? self.maxReplicas : self.minReplicas))",
        "targetReplicas must be within minReplicas..maxReplicas, or 0 for none now",
        field="targetReplicas",
        holds=lambda replicas: (
            not replicas.target_replicas or replicas.min_replicas <= replicas.target_replicas <= replicas.largest
        ),
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.targetReplicas) || self.targetReplicas == 0 || !has(self.sizes) || "
        "self.targetReplicas in self.sizes",
        "targetReplicas must be one of sizes, or 0 for none now",
        field="targetReplicas",
        holds=lambda replicas: (
            not replicas.target_replicas or replicas.sizes is None or replicas.target_replicas in replicas.sizes
        ),
    ),
    Rule(
        "spec",
        "!has(self.sharing) || (self.replicaSpec.gpusPerReplica == 1 && self.replicaSpec.minReplicas == 1 && "
        "(!has(self.replicaSpec.maxReplicas) || self.replicaSpec.maxReplicas == 1))",
        "a share is of one GPU: gpusPerReplica, minReplicas and maxReplicas must be 1",
        field="sharing",
        holds=lambda spec: (
            spec.sharing is None
            or spec.replica_spec.gpus_per_replica == spec.replica_spec.min_replicas == spec.replica_spec.largest == 1
        ),
    ),
    Rule(
        "spec.replicaSpec",
        "self.gpusPerReplica > 0 || (!has(self.sizes) && "
        "(!has(self.maxReplicas) || self.maxReplicas == self.minReplicas))",
        "a job without GPUs has one size: leave maxReplicas and sizes out, or set gpusPerReplica to at least 1",
        field="gpusPerReplica",
        holds=lambda replicas: (
            not replicas.cpu_only or (replicas.sizes is None and replicas.largest == replicas.min_replicas)
        ),
    ),
    Rule(
        "spec",
        "self.replicaSpec.gpusPerReplica > 0 || !has(self.topology) || !has(self.topology.numa) || "
        "self.topology.numa == 'Any'",
        "numa is about GPUs: leave it out, or set gpusPerReplica to at least 1",
        field="topology.numa",
        holds=lambda spec: not spec.replica_spec.cpu_only or spec.topology is None or spec.topology.numa == "Any",
    ),
    Rule(
        "spec.sharing",
        "has(self.gpuMemory) || has(self.gpuCompute)",
        "a share needs gpuMemory, gpuCompute or both",
        holds=lambda share: share.gpu_memory is not None or share.gpu_compute is not None,
    ),
    Rule(
        "spec",
        f"self.jobType in {_listed(_RESTARTS_ITSELF)} || !has(self.replicaSpec.template.spec.restartPolicy) || "
        "self.replicaSpec.template.spec.restartPolicy == 'Never'",
        "restartPolicy must be Never for this jobType: one member that starts again alone hangs the others",
        field="replicaSpec.template.spec.restartPolicy",
        holds=lambda spec: (
            spec.job_type in _RESTARTS_ITSELF or spec.replica_spec.pod.get("restartPolicy", "Never") != "OnFailure"
        ),
    ),
    *(
        Rule(
            "",
            f"!{_RUNS} || ({unchanged(f'spec.{path}')})",
            f"{path.rpartition('.')[2]} cannot be changed while the job runs: set suspend first",
            field=f"spec.{path}",
        )
        for path in ("queueName", "replicaSpec.gpusPerReplica", "sharing")
    ),
)


def with_tolerations(job: UnifiedJob, more: Iterable[Mapping[str, Any]]) -> UnifiedJob:
    """The same job with these tolerations added. What cannot be read of it stays as it is."""
    spec = _copy(job.raw_spec)
    replicas = spec["replicaSpec"] = _copy(spec.get("replicaSpec"))
    template = replicas["template"] = _copy(replicas.get("template"))
    pod = template["spec"] = _copy(template.get("spec"))
    own = pod.get("tolerations")
    tolerated = [*own] if isinstance(own, list) else []
    tolerated += [dict(one) for one in more if one not in tolerated]
    pod["tolerations"] = tolerated
    return UnifiedJob(metadata=job.metadata, raw_spec=spec, raw_status=job.raw_status)


def _copy(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}
