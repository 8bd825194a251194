from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.unified_job.to_job import DEFAULT_CLASS, Faults, pinned_replicas, to_job
from batuta.core.cluster import Operator, Requirement
from batuta.core.job import Job, JobKind, Share, Spread
from batuta.spec.task_job import NEVER_S
from tests.support.unified_jobs import ON_CPU, unified_job

CLASSES = {"high": 1000, DEFAULT_CLASS: 7}


def converted(**changes: Any) -> Job:
    found = to_job(unified_job(**changes), CLASSES)
    assert isinstance(found, Job), found
    return found


def faults(**changes: Any) -> list[str]:
    found = to_job(unified_job(**changes), CLASSES)
    assert isinstance(found, Faults), found
    return list(found.sentences)


def with_resources(**resources: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": resources}]}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    listed = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": listed}}}


def expressions(*listed: tuple[str, str, list[str]]) -> dict[str, Any]:
    return {"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in listed]}


def test_replicas_are_counted_in_gpus() -> None:
    job = converted(replicas={"minReplicas": 2, "maxReplicas": 8, "sizes": [2, 4, 8], "gpusPerReplica": 4})
    assert (job.min, job.size, job.max, job.sizes) == (8, 8, 32, (8, 16, 32))
    assert job.gpus_per_replica == 4


def test_a_job_without_gpus_is_counted_in_replicas_with_cpu_and_memory_for_each() -> None:
    job = converted(replicas=ON_CPU, pod=with_resources(requests={"cpu": "1500m", "memory": "3Gi"}))
    assert (job.min, job.size, job.max, job.gpus_per_replica, job.gpus) == (2, 2, 2, 0, 0)
    assert (job.cpus_milli_per_gpu, job.memory_mib_per_gpu) == (1500, 3072)
    assert job.cpu_only
    assert job.replicas == 2


def test_a_job_without_gpus_may_select_nodes_by_their_gpus_and_accepts_none_of_them() -> None:
    job = converted(replicas=ON_CPU, pod={"nodeSelector": {"nvidia.com/gpu.product": "H100"}})
    assert job.gpu_types == ()
    assert job.node_labels == (("nvidia.com/gpu.product", "H100"),)


def test_a_job_is_known_by_namespace_and_name_and_since_its_creation() -> None:
    job = converted(annotations={names.USER: "ada"}, queueName="vision", priorityClassName="high")
    assert (job.id, job.name, job.user, job.queue) == ("team-a/resnet", "resnet", "ada", "vision")
    assert (job.priority, job.submit_s) == (1000, 1767225600.0)
    assert converted().priority == 7


@pytest.mark.parametrize(
    ("job_type", "kind"),
    [
        ("Job", JobKind.SCRIPT),
        ("Pods", JobKind.SCRIPT),
        ("TorchElastic", JobKind.TORCH_ELASTIC),
        ("ElasticHorovod", JobKind.HOROVOD_ELASTIC),
        ("MPIJob", JobKind.MPI),
        ("example.com/Ray", JobKind.SCRIPT),
    ],
)
def test_the_type_says_the_kind(job_type: str, kind: JobKind) -> None:
    assert converted(job_type=job_type).kind is kind


@pytest.mark.parametrize(
    ("pod", "cpus_milli", "memory_mib"),
    [
        (with_resources(requests={"cpu": 8, "memory": "32Gi"}), 4000, 16384),
        (with_resources(limits={"cpu": "500m", "memory": "1G"}), 250, 477),
        (with_resources(limits={"cpu": 4}, requests={"cpu": "2"}), 1000, 0),
        (
            {
                "containers": [
                    {"name": "a", "resources": {"requests": {"cpu": 1}}},
                    {"name": "b", "resources": {"requests": {"cpu": 2}}},
                ],
                "initContainers": [
                    {"name": "c", "restartPolicy": "Always", "resources": {"requests": {"cpu": 1}}},
                    {"name": "d", "resources": {"requests": {"cpu": 9}}},
                ],
            },
            5000,
            0,
        ),
        ({**with_resources(requests={"cpu": 1}), "overhead": {"cpu": "1"}}, 1000, 0),
        ({**with_resources(requests={"cpu": 1}), "resources": {"requests": {"cpu": 6}}}, 3000, 0),
        (with_resources(), 0, 0),
    ],
)
def test_what_the_pod_asks_for_is_shared_among_its_gpus(pod: dict[str, Any], cpus_milli: int, memory_mib: int) -> None:
    job = converted(replicas={"gpusPerReplica": 2}, pod=pod)
    assert (job.cpus_milli_per_gpu, job.memory_mib_per_gpu) == (cpus_milli, memory_mib)


def test_selectors_affinity_and_tolerations_say_which_nodes_will_do() -> None:
    job = converted(
        pod={
            "nodeSelector": {"pool": "gpu", "disk": "ssd"},
            **required(
                expressions(("zone", "In", ["a", "b"]), ("cores", "Gt", ["32"])),
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            ),
            "tolerations": [
                {"operator": "Exists"},
                {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "team", "value": "vision"},
                {"key": "team", "value": "vision", "effect": "NoExecute"},
                {"operator": "Exists", "effect": "PreferNoSchedule"},
            ],
        }
    )
    assert job.node_labels == (("disk", "ssd"), ("pool", "gpu"))
    assert job.node_terms == (
        (Requirement("zone", Operator.IN, ("a", "b")), Requirement("cores", Operator.ABOVE, ("32",))),
        (Requirement("metadata.name", Operator.IN, ("n1",)),),
    )
    assert job.tolerations == (*("*", "gpu:NoSchedule", "team=vision", "team=vision:NoExecute", "*:PreferNoSchedule"),)


@pytest.mark.parametrize(
    ("pod", "types"),
    [
        ({"nodeSelector": {"nvidia.com/gpu.product": "H100"}}, ("H100",)),
        (required(expressions(("nvidia.com/gpu.product", "In", ["H100", "A100"]))), ("H100", "A100")),
        (
            required(
                expressions(("nvidia.com/gpu.product", "In", ["H100"])),
                expressions(("batuta.dev/gpu-type", "In", ["A100"])),
            ),
            ("H100", "A100"),
        ),
        (
            required(expressions(("nvidia.com/gpu.product", "In", ["H100"])), expressions(("pool", "Exists", []))),
            (),
        ),
        (required(expressions(("nvidia.com/gpu.product", "NotIn", ["K80"]))), ()),
    ],
)
def test_gpu_types_are_those_that_every_way_to_fit_names(pod: dict[str, Any], types: tuple[str, ...]) -> None:
    assert tuple(name for name, _ in converted(pod=pod).gpu_types) == types


def test_a_share_of_a_gpu() -> None:
    job = converted(replicas={"maxReplicas": 1}, sharing={"gpuMemory": "8Gi", "gpuCompute": 50})
    assert job.share == Share(8192, 50)
    assert (job.min, job.max) == (1, 1)


@pytest.mark.parametrize(
    ("topology", "within", "is_required", "single_numa"),
    [
        ({"level": "node", "mode": "Required"}, Spread.NODE, True, False),
        ({"level": "rack"}, Spread.RACK, False, False),
        ({"numa": "SingleNUMANode"}, Spread.ANY, False, True),
        ({"mode": "Required"}, Spread.ANY, False, False),
    ],
)
def test_topology(topology: dict[str, str], within: Spread, is_required: bool, single_numa: bool) -> None:
    found = converted(topology=topology).topology
    assert (found.within, found.required, found.single_numa) == (within, is_required, single_numa)


def test_an_elastic_job_saves_when_asked_and_a_rigid_one_never_unless_they_say_otherwise() -> None:
    rigid = {"maxReplicas": 1}
    assert converted().checkpoint_interval_s is None
    assert converted(replicas=rigid).checkpoint_interval_s == NEVER_S
    assert converted(replicas=rigid, annotations={names.CHECKPOINT: "600"}).checkpoint_interval_s == 600.0
    assert converted(replicas=rigid, annotations={names.CHECKPOINT: "on-signal"}).checkpoint_interval_s is None
    assert converted(annotations={names.CHECKPOINT: "none"}).checkpoint_interval_s == NEVER_S


def test_a_job_that_may_have_several_sizes_says_whether_a_restart_is_safe() -> None:
    assert converted().keeps_size_until_saved
    assert not converted(replicas={"restartable": True}).keeps_size_until_saved
    assert not converted(replicas={"maxReplicas": 1}).keeps_size_until_saved
    assert not converted(job_type="ElasticHorovod").keeps_size_until_saved  # it is resized in place


def test_a_job_may_ask_for_more_than_it_needs() -> None:
    assert converted(annotations={names.WANTED: "4"}).size == 4
    assert converted(annotations={names.WANTED: "99"}).size == 1
    assert converted(annotations={names.WANTED: "²"}).size == 1


@pytest.mark.parametrize(
    ("target", "annotation", "pinned"),
    [(None, None, None), (4, "4", None), (4, None, 4), (2, "4", 2), (0, "4", 0)],
)
def test_a_target_that_the_scheduler_did_not_write_is_a_persons(
    target: int | None, annotation: str | None, pinned: int | None
) -> None:
    replicas = {} if target is None else {"targetReplicas": target}
    annotations = {} if annotation is None else {names.TARGET: annotation}
    assert pinned_replicas(unified_job(replicas=replicas, annotations=annotations)) == pinned


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"pod": with_resources(requests={"cpu": "lots"})},
            "resources.requests.cpu: 'lots' is not an amount",
        ),
        ({"pod": with_resources(limits={"nvidia.com/gpu": 4})}, "nvidia.com/gpu is 4, gpusPerReplica is 1"),
        (
            {"replicas": ON_CPU, "pod": with_resources(limits={"nvidia.com/gpu": 1})},
            "nvidia.com/gpu is 1, gpusPerReplica is 0",
        ),
        (
            {"pod": with_resources(limits={"nvidia.com/gpu": 1, "amd.com/gpu": 1})},
            "a replica has GPUs of one kind",
        ),
        (
            {"pod": with_resources(limits={"batuta.dev/gpu-memory": 1})},
            "a share of a GPU is said in spec.sharing",
        ),
        ({"priorityClassName": "urgent"}, "the cluster has no PriorityClass 'urgent'"),
        ({"pod": {"containers": []}}, "a replica needs at least one container"),
        ({"pod": required({})}, "a term without expressions matches no node"),
        ({"pod": required(expressions(("a", "Near", [])))}, "'Near' is not an operator; known: In, NotIn"),
        (
            {"replicas": {"maxReplicas": 1}, "sharing": {"gpuMemory": "1Ki"}},
            "spec.sharing.gpuMemory: '1Ki' is not 1Mi or more",
        ),
        ({"topology": {"level": "zone", "mode": "Required"}}, "zone cannot be required yet"),
        ({"replicas": {"minReplicas": 9}}, "minReplicas must be at most maxReplicas"),
        ({"replicas": {"minReplicas": "x"}}, "spec.replicaSpec.minReplicas: expected int, got str"),
    ],
)
def test_a_faulty_job_is_told_what_is_wrong_and_where(changes: dict[str, Any], said: str) -> None:
    (found,) = faults(**changes)
    assert said in found
    assert found.startswith("spec.")


def test_all_faults_come_at_once() -> None:
    found = faults(
        priorityClassName="urgent",
        pod=with_resources(requests={"cpu": "lots", "memory": "heaps"}, limits={"nvidia.com/gpu": 3}),
    )
    assert len(found) == 4
