"""API groups, labels, annotations and resource names that Batuta uses, and the unit of GPU memory."""

from __future__ import annotations

from typing import Final

GROUP: Final = "batuta.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "UnifiedJob"
PLURAL: Final = "unifiedjobs"
TRIAL_KIND: Final = "TrialRun"
TRIAL_PLURAL: Final = "trialruns"

SCHEDULER: Final = "batuta"  # `spec.schedulerName` of the pods that Batuta binds
FIELD_MANAGER: Final = "batuta-operator"
MANAGED_BY: Final = "batuta.dev/operator"
"""`spec.managedBy` of the UnifiedJobs that this operator looks after; empty means the same."""

# Labels of the pods that a UnifiedJob has.
JOB_NAME: Final = "batuta.dev/job-name"
REPLICA_INDEX: Final = "batuta.dev/replica-index"
START: Final = "batuta.dev/start"
"""Which start of the job a child belongs to; a restart of all members has the next number."""
ROLE: Final = "batuta.dev/role"  # `worker` holds GPUs; `launcher` starts the workers of a job

# Labels that other kinds may carry as well.
QUEUE_NAME: Final = "batuta.dev/queue-name"
KUEUE_QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
"""On a UnifiedJob: a WorkloadPriorityClass, whose value counts when quota is given out."""
GANG_NAME: Final = "batuta.dev/gang-name"  # pods of one namespace with the same value start together or not at all
GANG_SIZE: Final = "batuta.dev/gang-size"
"""How many pods the gang has; an annotation of each of them (a label is accepted as well)."""
POD_GROUP: Final = "scheduling.x-k8s.io/pod-group"
TRIAL_RUN: Final = "batuta.dev/trial-run"
"""On a UnifiedJob that is one size of a trial: the TrialRun that it is a part of."""
APPLICATION: Final = "app.kubernetes.io/name"  # which application a job is a run of; without it, its name says so

# Annotations.
TRIAL: Final = "batuta.dev/trial"
"""On a UnifiedJob or a queue: `true` has it tried out before it is queued; `false`, where the queue would."""
TRIAL_SIZES: Final = "batuta.dev/trial-sizes"  # on such a job: the numbers of GPUs, as `1,2,4`
TRIAL_BUDGET: Final = "batuta.dev/trial-budget-seconds"
TRIAL_EACH: Final = "batuta.dev/trial-each-seconds"
TRIAL_GPUS: Final = "batuta.dev/trial-gpus"  # on one size of a trial: which
TARGET: Final = "batuta.dev/target-replicas"
"""The target that the scheduler wrote last; another one in the spec was written by a person, and pins it."""
CANCEL: Final = "batuta.dev/cancel"
USER: Final = "batuta.dev/user"  # whose job it is
WANTED: Final = "batuta.dev/wanted-replicas"
"""On an elastic job: how many replicas it asks for; without it, as many as it needs at least."""
ANY_SIZE: Final = "auto"  # the same: the operator chooses, by what earlier jobs of the application measured
CHECKPOINT_REQUEST: Final = "batuta.dev/checkpoint-request"
"""On a pod: a number that grows with each checkpoint that is asked for; its processes see it as a file."""
SSH_SECRET: Final = "batuta.dev/ssh-secret"
"""On a job whose launcher reaches its workers by SSH: the Secret with the keys; without it, NAME-ssh."""
MANIFEST: Final = "batuta.dev/manifest"
"""On a child: what it was made of, as a hash. Another one means that it has to be written again."""
TEMPLATE: Final = "batuta.dev/template"
"""On a child that is changed rather than replaced: the part that cannot be changed, as a hash."""
NUDGE: Final = "batuta.dev/nudge"
"""On a pod: any change of it lets its kubelet look at once at the ConfigMaps that the pod has mounted."""
CHECKPOINT: Final = "batuta.dev/checkpoint"
"""On a job: `none`, `on-signal`, or the seconds between the checkpoints that it makes by itself."""
GPUS: Final = "batuta.dev/gpus"
"""The GPUs of its node that a pod was given, as `0,1`; written together with the binding."""
SHARE_LIMITS: Final = "batuta.dev/gpu-limits"
"""On a pod with a share: `hard`, as without it, or `soft`: more compute than asked for on an idle GPU."""
CARDS: Final = "batuta.dev/gpu-cards"
"""On a node, written by the device plugin: what each GPU has to give, and which are ill, as JSON."""
UNHEALTHY: Final = "batuta.dev/unhealthy"
"""A taint of nodes that health has taken out of service; its value is the reason, as short as it must be."""
HEALTH: Final = "batuta.dev/health"
"""On a node, written by the operator: how it and its GPUs are, as JSON; whether the taint is its own too."""
ILL_GPUS: Final = "batuta.dev/ill-gpus"
"""On a node, written by the operator: GPUs that are out of service and why, as JSON."""
HEALTH_NOTES: Final = "batuta.dev/health-notes"
"""On a node, written by the agent: what its kernel log told of GPUs that is not acknowledged yet."""
HEALTH_FIGURES: Final = "batuta.dev/health-figures"
"""On a node, written by the agent: what NVML says of the health of each GPU, as JSON."""
HEALTH_SEEN: Final = "batuta.dev/health-seen"
"""On a node, written by the operator: the number of the last note that is dealt with."""
MENDED: Final = "batuta.dev/mended"
"""On a node, written by people: `node`, `gpu-3` or `all` was mended and may be burnt in."""
BURN_IN: Final = "batuta.dev/burn-in"  # a label of pods that burn something in: which attempt they are
EXPECTED_UTILISATION: Final = "batuta.dev/expected-utilisation"
"""How busy history says that a pod will keep its GPU, from 0 to 1; written together with the binding."""
UTILISATION: Final = "batuta.dev/gpu.utilisation"
"""On a node, written by the agent: how busy each GPU is, as JSON with the time of measurement."""
PODS_USAGE: Final = "batuta.dev/gpu.pods"
"""On a node, written by the agent: what its jobs and each of their pods, by uid, have of the GPUs, as JSON."""
POD_USAGE: Final = "batuta.dev/gpu.usage"  # on a pod, written by the operator: what it has of its GPUs, as JSON
POD_JOB: Final = "batuta.dev/gpu.job"  # the same: what its job has of the GPUs of its node, and how it behaves

REPORT_PREFIX: Final = "batuta-report "
"""A line of a log with these words and a JSON object after them is a report of `batuta.sdk`."""

GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915")
"""Resources that stand for whole GPUs, in the order in which a node is asked for them."""
SHARE_MEMORY: Final = "batuta.dev/gpu-memory"  # extended resource: memory of one GPU, in units of `SHARE_UNIT_MIB`
SHARE_UNIT_MIB: Final = 256
"""The kubelet keeps a list of all units: with units of 1 MiB, a node's list would take 43 MB."""
SHARE_COMPUTE: Final = "batuta.dev/gpu-compute"  # extended resource: percent of one GPU's compute

SHARES_ONLY: Final = "batuta.dev/shares-only"
"""In the World, a taint of nodes whose GPUs can only be had in shares; jobs with a share tolerate it."""

GPU_PRODUCT_LABELS: Final = ("nvidia.com/gpu.product", "batuta.dev/gpu-type", "cloud.google.com/gke-accelerator")
GPU_MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
RACK_LABELS: Final = ("topology.kubernetes.io/rack", "batuta.dev/rack")
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"


def units_of(memory_mib: int) -> int:
    """How many units hold so much memory."""
    return -(-memory_mib // SHARE_UNIT_MIB)


def whole_units_mib(memory_mib: int) -> int:
    """The memory that a request for so much really gets: it is rounded up to whole units."""
    return units_of(memory_mib) * SHARE_UNIT_MIB
