"""UnifiedJob as it stands in the API server. The only place where its fields are declared.

From these declarations come the decoder, the OpenAPI schema of the CRD (types, bounds, defaults, texts), and
the checks of an object that got past the schema. Rules between fields stand in `crd`.

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

import copy
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Meta

from batuta.backends.kube import names, objects

T = TypeVar("T", bound=msgspec.Struct)
_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)
_MOST_FAULTS: Final = 32


def read_tolerantly(value: Any, kind: type[T], root: str) -> tuple[T, tuple[str, ...]]:
    """The value as far as it can be read, and what cannot. `root` is the value's own place."""
    faults: list[str] = []
    while len(faults) < _MOST_FAULTS:
        try:
            return msgspec.convert(value, kind), tuple(faults)
        except msgspec.ValidationError as error:
            what, path = _taken_apart(str(error))
        if not faults:
            value = copy.deepcopy(value)
        faults.append(f"{'.'.join((root, *path))}: {what}")
        if not path or not _drop(value, path):
            break
    return kind(), tuple(faults)


def _taken_apart(message: str) -> tuple[str, list[str]]:
    """What is wrong, and the keys that lead there; an element of a list stands for the list."""
    match = _PLACE.fullmatch(message)
    if match is None:
        return message, []
    path: list[str] = []
    for key in filter(None, (match["path"] or "").split(".")):
        name, bracket, _ = key.partition("[")
        path.append(name)
        if bracket:
            break
    what = match["what"]
    return (what[:1].lower() + what[1:]).replace("`", ""), path


def _drop(value: Any, path: list[str]) -> bool:
    """Takes out what cannot be read; False when it is not there to be taken out."""
    for key in path[:-1]:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, dict) or path[-1] not in value:
        return False
    del value[path[-1]]
    return True


MOST_CONTAINERS: Final = 32
_KEEP: Final = {"x-kubernetes-preserve-unknown-fields": True}
_STRINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}

_CONTAINER: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 63},
        "image": {"type": "string", "maxLength": 1024},
    },
    **_KEEP,
}

TEMPLATE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "metadata": {
            "type": "object",
            "description": "Labels and annotations of the pods.",
            "properties": {"labels": _STRINGS, "annotations": _STRINGS},
            **_KEEP,
        },
        "spec": {
            "type": "object",
            "description": "A PodSpec. Everything that a pod may have is kept.",
            "required": ["containers"],
            "properties": {
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MOST_CONTAINERS,
                    "items": _CONTAINER,
                    "description": "The first one is the training process: it is given the GPUs and the environment.",
                },
                "restartPolicy": {
                    "type": "string",
                    "enum": ["Never", "OnFailure"],
                    "description": "Never by default: Batuta starts all replicas again together. OnFailure "
                    "only for the types Job and MPIJob.",
                },
            },
            **_KEEP,
        },
    },
    **_KEEP,
}


JobType: TypeAlias = Literal["Job", "TorchElastic", "ElasticHorovod", "MPIJob", "Pods"]
JOB_TYPES: Final[tuple[str, ...]] = get_args(JobType)
"""The types that come with Batuta; more are found by entry point."""
Level: TypeAlias = Literal["node", "rack", "zone"]
Mode: TypeAlias = Literal["Preferred", "Required"]
Numa: TypeAlias = Literal["Any", "SingleNUMANode"]

MOST_REPLICAS: Final = 100_000
MOST_SIZES: Final = 1024
LONGEST_NAME: Final = 50
"""Characters of a job's name: the names of its pods are host names, which have 63."""
NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
QUANTITY_PATTERN: Final = r"^[0-9]{1,18}(\.[0-9]{1,9})?([KMGTPE]i|[kMGTPE])?$"
_INT32: Final = {"format": "int32"}
_INT64: Final = {"format": "int64"}
_TIME: Final = {"format": "date-time"}
_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class _Part(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Names as the API server spells them; what it sends beyond these fields is skipped."""


class ReplicaSpec(_Part, frozen=True):
    """How many replicas there may be, and what each of them is."""

    min_replicas: Annotated[
        int,
        Meta(
            ge=1,
            le=MOST_REPLICAS,
            extra_json_schema=_INT32,
            description="The job runs with at least so many replicas, or not at all.",
        ),
    ] = 1
    max_replicas: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=MOST_REPLICAS,
                extra_json_schema=_INT32,
                description="The job can use so many replicas. Without it the job has minReplicas, always.",
            ),
        ]
        | None
    ) = None
    sizes: (
        Annotated[
            list[Annotated[int, Meta(ge=1, le=MOST_REPLICAS, extra_json_schema=_INT32)]],
            Meta(
                min_length=1,
                max_length=MOST_SIZES,
                extra_json_schema={"x-kubernetes-list-type": "set"},
                description="The numbers of replicas that the job can have, ascending, from minReplicas to "
                "maxReplicas. Without it every number between them is one.",
            ),
        ]
        | None
    ) = None
    gpus_per_replica: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            extra_json_schema=_INT32,
            description="GPUs of each replica. They need not be written into the template as well. 0: a "
            "CPU-only job, which takes the CPU and memory that the template requests, and has one size.",
        ),
    ] = 1
    target_replicas: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=MOST_REPLICAS,
                extra_json_schema=_INT32,
                description="How many replicas the scheduler wants now; 0 while the job waits. A person who "
                "writes it, by kubectl scale for example, pins the size.",
            ),
        ]
        | None
    ) = None
    restartable: Annotated[
        bool,
        Meta(
            description="A restart loses nothing that matters. Otherwise an elastic job keeps its size until "
            "a checkpoint of it was seen, for a resize would lose its work.",
        ),
    ] = False
    template: Annotated[
        dict[str, Any],
        Meta(
            extra={"required": True, "schema": TEMPLATE_SCHEMA},
            description="The pod of a replica, as in a Job. A change takes effect at the next start.",
        ),
    ] = {}

    @property
    def largest(self) -> int:
        return self.min_replicas if self.max_replicas is None else self.max_replicas

    @property
    def cpu_only(self) -> bool:
        """Whether the job runs on CPU and memory and holds no GPU."""
        return not self.gpus_per_replica

    @property
    def processes_per_replica(self) -> int:
        """How many processes a launcher starts in each replica: one per GPU, or one without GPUs."""
        return self.gpus_per_replica or 1

    @property
    def legal_sizes(self) -> tuple[int, ...] | None:
        return tuple(self.sizes) if self.sizes else None


class Sharing(_Part, frozen=True):
    """A share of one GPU, for a job with one replica that has one."""

    gpu_memory: (
        Annotated[
            int | str,
            Meta(
                extra={"quantity": True},
                extra_json_schema={"pattern": QUANTITY_PATTERN},
                description="Memory of the GPU, for example 8Gi.",
            ),
        ]
        | None
    ) = None
    gpu_compute: (
        Annotated[int, Meta(ge=1, le=100, extra_json_schema=_INT32, description="Percent of the GPU's compute.")] | None
    ) = None


class Topology(_Part, frozen=True):
    """Where the replicas want to be, relative to each other."""

    level: Annotated[
        Level | None,
        Meta(description="The smallest part of the cluster that all replicas should be within."),
    ] = None
    mode: Annotated[Mode, Meta(description="Preferred: if it can be had. Required: the job waits until it can.")] = (
        "Preferred"
    )
    numa: Annotated[
        Numa, Meta(description="SingleNUMANode: CPUs, memory and GPUs of a replica lie in one NUMA node.")
    ] = "Any"


class Spec(_Part, frozen=True):
    """What the user wants."""

    job_type: Annotated[
        str,
        Meta(
            max_length=63,
            extra={"required": True},
            description="What the replicas are: Job, TorchElastic, ElasticHorovod, MPIJob, Pods, or a type "
            "that the operator has been given.",
        ),
    ] = ""
    queue_name: Annotated[
        str, Meta(max_length=253, pattern=_SUBDOMAIN, description="The queue in which the job waits.")
    ] = "default"
    priority_class_name: Annotated[
        str, Meta(max_length=253, description="A PriorityClass of the cluster, for the job and its pods.")
    ] = ""
    suspend: Annotated[bool, Meta(description="The job gives its GPUs back and waits until this is false again.")] = (
        False
    )
    managed_by: Annotated[
        str, Meta(max_length=253, description="Who looks after the job. Batuta leaves those of others alone.")
    ] = names.MANAGED_BY
    active_deadline_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                extra_json_schema=_INT64,
                description="The job fails when it has run for so long, all starts together.",
            ),
        ]
        | None
    ) = None
    ttl_seconds_after_finished: (
        Annotated[
            int,
            Meta(ge=0, extra_json_schema=_INT32, description="The job is deleted so long after its end."),
        ]
        | None
    ) = None
    backoff_limit: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            extra_json_schema=_INT32,
            description="The job fails when it has failed more often than this. Preemptions and lost nodes "
            "do not count.",
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
    last_transition_time: Annotated[str, Meta(extra={"required": True}, extra_json_schema=_TIME)] = ""
    observed_generation: Annotated[int, Meta(extra_json_schema=_INT64)] = 0


class Metric(_Part, frozen=True):
    """A number that training reported last."""

    name: Annotated[str, Meta(max_length=253, extra={"required": True})] = ""
    value: Annotated[str, Meta(max_length=253, extra={"required": True})] = ""


class TrainerStatus(_Part, frozen=True):
    """How far training is, with the names that Kubeflow Trainer has for it."""

    progress_percentage: Annotated[int, Meta(extra_json_schema=_INT32)] | None = None
    estimated_remaining_seconds: Annotated[int, Meta(extra_json_schema=_INT64)] | None = None
    metrics: Annotated[list[Metric], Meta(max_length=256, extra_json_schema={"x-kubernetes-list-type": "atomic"})] = []
    last_updated_time: Annotated[str, Meta(extra_json_schema=_TIME)] | None = None


class SizeChoiceStatus(_Part, frozen=True):
    """The size that was chosen for a job whose user left it open, and why."""

    gpus: Annotated[int, Meta(extra_json_schema=_INT32, description="GPUs that the job asks for.")] = 0
    fastest_gpus: Annotated[
        int,
        Meta(
            extra_json_schema=_INT32,
            description="The fastest size that it may have; 0 when nothing is known of its speed.",
        ),
    ] = 0
    speed_percentage: Annotated[
        int,
        Meta(extra_json_schema=_INT32, description="Its speed with gpus, in percent of that with fastestGpus."),
    ] = 100
    measured_jobs: Annotated[
        int, Meta(extra_json_schema=_INT32, description="How many earlier jobs were measured.")
    ] = 0
    message: Annotated[str, Meta(max_length=1024, description="The same as a sentence.")] = ""


class RunStatus(_Part, frozen=True):
    """The start of the job that its pods belong to. A resize in place changes nothing here."""

    start: Annotated[int, Meta(extra_json_schema=_INT32, description="How often it was started before.")] = 0
    first_replicas: Annotated[
        int, Meta(extra_json_schema=_INT32, description="How many replicas it was started with.")
    ] = 0
    max_replicas: Annotated[
        int, Meta(extra_json_schema=_INT32, description="How many it can have without another start.")
    ] = 0


class Status(_Part, frozen=True):
    """What became of the job. Written by the operator only."""

    observed_generation: Annotated[int, Meta(extra_json_schema=_INT64)] | None = None
    state: Annotated[
        str,
        Meta(
            description="PENDING, SETTING_UP, RUNNING, RESIZING, PREEMPTED, SUCCEEDED, FAILED, FAILED_SETUP "
            "or CANCELLED."
        ),
    ] = ""
    reason: Annotated[str, Meta(max_length=1024, description="Why the job is not at full size, as one word.")] = ""
    message: Annotated[str, Meta(max_length=32_768, description="The same as a sentence with numbers.")] = ""
    conditions: Annotated[
        list[Condition],
        Meta(
            max_length=32,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            description="QuotaReserved, Admitted, PodsReady, Resizing, Complete, Failed.",
        ),
    ] = []
    replicas: Annotated[int, Meta(extra_json_schema=_INT32, description="Replicas that have a pod.")] = 0
    ready_replicas: Annotated[int, Meta(extra_json_schema=_INT32, description="Of these, those ready.")] = 0
    gpus: Annotated[int, Meta(extra_json_schema=_INT32, description="GPUs that the job holds.")] = 0
    placement: Annotated[
        dict[str, Annotated[int, Meta(extra_json_schema=_INT32)]],
        Meta(description="How many replicas each node has."),
    ] = {}
    nodes: Annotated[str, Meta(description="The names of these nodes, for kubectl get.")] = ""
    restarts: Annotated[int, Meta(extra_json_schema=_INT32, description="How often it was started again.")] = 0
    failures: Annotated[
        int, Meta(extra_json_schema=_INT32, description="How often it failed; compared with backoffLimit.")
    ] = 0
    run: RunStatus | None = None
    size_choice: SizeChoiceStatus | None = None
    selector: Annotated[str, Meta(description="The pods of the job, for the scale subresource.")] = ""
    start_time: Annotated[str, Meta(extra_json_schema=_TIME)] | None = None
    completion_time: Annotated[str, Meta(extra_json_schema=_TIME)] | None = None
    trainer_status: TrainerStatus | None = None
    progress: Annotated[str, Meta(description="Progress in percent, for kubectl get.")] = ""
    eta: Annotated[str, Meta(description="The time that is left, for kubectl get.")] = ""
    result: (
        Annotated[str, Meta(max_length=16_384, description="What the script gave to batuta.sdk.result, as JSON.")]
        | None
    ) = None


class UnifiedJob(msgspec.Struct, kw_only=True, dict=True):
    """A job. Decoding it never fails: faults of `spec` and `status` are found when they are first read."""

    metadata: objects.Meta = msgspec.field(default_factory=objects.Meta)
    raw_spec: Any = msgspec.field(default=None, name="spec")
    raw_status: Any = msgspec.field(default=None, name="status")

    @property
    def id(self) -> str:
        """The job's id in the World."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def spec(self) -> Spec:
        """What the user wants, without what could not be read."""
        return self._read[0]

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What could not be read in `spec`, as sentences with the place and the fix."""
        return self._read[1]

    @cached_property
    def status(self) -> Status:
        """What the operator wrote; empty where that cannot be read, for it will be written again."""
        return read_tolerantly(self.raw_status or {}, Status, "status")[0]

    @cached_property
    def _read(self) -> tuple[Spec, tuple[str, ...]]:
        return read_tolerantly(self.raw_spec, Spec, "spec")


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
