"""UnifiedJob in a real cluster: its CRD is accepted, its rules hold, what jobs become is taken."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from batuta.backends.kube.jobtypes import BUILT_IN
from batuta.backends.kube.jobtypes.job_type import Observed, Run
from batuta.backends.kube.unified_job.from_task import from_task
from batuta.backends.kube.unified_job.model import RULES
from batuta.backends.kube.unified_job.to_job import to_job
from batuta.core.job import Job
from batuta.spec.task import parse_task
from tests.support.kube.api import ApiError
from tests.support.kube.control_plane import CommandFailed, ControlPlane
from tests.support.kube.modules import crds
from tests.support.unified_jobs import BROKEN, ON_CPU, manifest, read

REPO = Path(__file__).parents[2]
CRD = REPO / "deploy/helm/batuta/crds/unifiedjobs.batuta.dev.yaml"
EXAMPLES = sorted((REPO / "examples/kube").glob("*.yaml"))


@pytest.fixture(scope="module")
def api_server(cluster: ControlPlane) -> ControlPlane:
    """The shared control plane with the CRDs that jobs need."""
    cluster.install_crds(CRD)
    cluster.install_crds(crds("mpi-operator"))
    return cluster


@pytest.fixture
def jobs(api_server: ControlPlane, namespace: str) -> "Jobs":
    return Jobs(api_server, namespace)


class Jobs:
    """The UnifiedJobs of one namespace."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.path = f"/apis/batuta.dev/v1alpha1/namespaces/{namespace}/unifiedjobs"

    def create(self, **changes: Any) -> dict[str, Any]:
        return self.cluster.api.create(self.path, manifest(namespace=self.namespace, **changes))

    def change(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        return self.cluster.api.patch(f"{self.path}/{name}", {"spec": spec})

    def set_status(self, name: str, status: dict[str, Any]) -> dict[str, Any]:
        return self.cluster.api.patch(f"{self.path}/{name}/status", {"status": status})

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl(*words, "--namespace", self.namespace)


def refusal(error: ApiError) -> str:
    assert error.status == 422, error
    return json.loads(error.text)["message"]


def test_the_crd_is_established_and_structural(api_server: ControlPlane) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/unifiedjobs.batuta.dev"
    conditions = {one["type"]: one["status"] for one in api_server.api.get(path)["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


def test_the_api_server_fills_in_what_the_model_would(jobs: Jobs) -> None:
    created = read(jobs.create())
    assert created.raw_spec["queueName"] == created.spec.queue_name == "default"
    assert created.raw_spec["backoffLimit"] == 6
    assert created.raw_spec["replicaSpec"]["gpusPerReplica"] == 1
    assert created.raw_spec["managedBy"] == "batuta.dev/operator"


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": ON_CPU, "topology": {"level": "rack", "mode": "Required"}},
        {"replicas": {"minReplicas": 3, "maxReplicas": None, "gpusPerReplica": 0}},
    ],
    ids=["equal bounds", "no upper bound"],
)
def test_a_job_without_gpus_is_accepted_at_one_size(jobs: Jobs, changes: dict[str, Any]) -> None:
    created = read(jobs.create(**changes))
    assert created.spec.replica_spec.cpu_only
    assert isinstance(to_job(created, {}), Job)


def test_the_template_keeps_everything_that_a_pod_may_have(jobs: Jobs) -> None:
    written = manifest()["spec"]["replicaSpec"]["template"]
    assert jobs.create()["spec"]["replicaSpec"]["template"] == written


@pytest.mark.parametrize(("changes", "said"), BROKEN)
def test_a_broken_rule_is_refused_with_its_message(jobs: Jobs, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as refused:
        jobs.create(**changes)
    field, _, message = said.partition(": ")
    assert message in refusal(refused.value)
    if field != "metadata.name":
        assert field in refusal(refused.value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"replicas": {"minReplicas": 0}}, "spec.replicaSpec.minReplicas"),
        ({"replicas": {"gpusPerReplica": -1}}, "spec.replicaSpec.gpusPerReplica"),
        ({"replicas": {"sizes": []}}, "spec.replicaSpec.sizes"),
        ({"replicas": {"sizes": [1, 8, 8]}}, "spec.replicaSpec.sizes"),
        ({"pod": {"containers": []}}, "spec.replicaSpec.template.spec.containers"),
        ({"pod": {"containers": None}}, "spec.replicaSpec.template.spec.containers"),
        ({"pod": {"containers": [{"image": "x"}]}}, "spec.replicaSpec.template.spec.containers[0].name"),
        ({"pod": {"restartPolicy": "Always"}}, "spec.replicaSpec.template.spec.restartPolicy"),
        ({"replicas": {"template": None}}, "spec.replicaSpec.template"),
        ({"topology": {"level": "galaxy"}}, "spec.topology.level"),
        ({"sharing": {"gpuCompute": 101}, "replicas": {"maxReplicas": 1}}, "spec.sharing.gpuCompute"),
        ({"sharing": {"gpuMemory": "much"}, "replicas": {"maxReplicas": 1}}, "spec.sharing.gpuMemory"),
        ({"queueName": "Vision!"}, "spec.queueName"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_field(jobs: Jobs, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as refused:
        jobs.create(**changes)
    assert field in refusal(refused.value)


def test_every_rule_is_tried_here() -> None:
    tried = [said.partition(": ")[2] for _, said in BROKEN]
    untried = [
        rule.message
        for rule in RULES
        if "oldSelf" not in rule.cel and not any(rule.message.startswith(one) for one in tried)
    ]
    assert untried == []


def test_type_and_operator_never_change(jobs: Jobs) -> None:
    jobs.create(name="fixed")
    for spec in ({"jobType": "Pods"}, {"managedBy": "example.com/other"}):
        with pytest.raises(ApiError) as refused:
            jobs.change("fixed", spec)
        assert f"{next(iter(spec))} cannot be changed" in refusal(refused.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"queueName": "other"},
        {"replicaSpec": {"gpusPerReplica": 2}},
        {"sharing": {"gpuCompute": 50}, "replicaSpec": {"maxReplicas": 1}},
    ],
)
def test_what_a_running_job_was_placed_by_changes_only_while_it_does_not_run(jobs: Jobs, spec: dict[str, Any]) -> None:
    jobs.create(name="moved")
    jobs.set_status("moved", {"replicas": 2})
    with pytest.raises(ApiError) as refused:
        jobs.change("moved", spec)
    assert "cannot be changed while the job runs: set suspend first" in refusal(refused.value)
    jobs.set_status("moved", {"replicas": 0})
    jobs.change("moved", spec)


def test_the_size_range_of_a_running_job_may_change(jobs: Jobs) -> None:
    jobs.create(name="grows")
    jobs.set_status("grows", {"replicas": 2})
    assert jobs.change("grows", {"replicaSpec": {"maxReplicas": 16}})["spec"]["replicaSpec"]["maxReplicas"] == 16


def test_a_status_can_say_all_that_the_model_has(jobs: Jobs) -> None:
    jobs.create(name="told")
    now = "2026-01-01T00:00:00Z"
    status = {
        "observedGeneration": 1,
        "state": "RUNNING",
        "conditions": [
            {"type": "Admitted", "status": "True", "reason": "Fits", "message": "", "lastTransitionTime": now}
        ],
        "replicas": 2,
        "readyReplicas": 1,
        "gpus": 2,
        "placement": {"node-1": 2},
        "run": {"start": 1, "firstReplicas": 2, "maxReplicas": 8},
        "selector": "batuta.dev/job-name=told",
        "startTime": now,
        "trainerStatus": {
            "progressPercentage": 42,
            "estimatedRemainingSeconds": 3900,
            "metrics": [{"name": "loss", "value": "0.5"}],
            "lastUpdatedTime": now,
        },
        "progress": "42%",
        "eta": "1h5m",
    }
    stored = jobs.set_status("told", status)["status"]
    assert stored == status, "nothing is dropped"
    read_back = read(jobs.cluster.api.get(f"{jobs.path}/told")).status
    assert read_back.trainer_status is not None
    assert (read_back.trainer_status.progress_percentage, read_back.replicas) == (42, 2)


def test_kubectl_get_shows_what_people_look_for(jobs: Jobs) -> None:
    jobs.create(name="shown", queueName="vision")
    jobs.set_status("shown", {"state": "RUNNING", "gpus": 4, "progress": "42%", "eta": "1h5m"})
    head, line = jobs.kubectl("get", "uj").splitlines()
    assert head.split() == ["NAME", "QUEUE", "STATE", "GPUS", "MIN", "MAX", "PROGRESS", "ETA", "AGE"]
    assert line.split()[:8] == ["shown", "vision", "RUNNING", "4", "1", "8", "42%", "1h5m"]
    assert "unifiedjob.batuta.dev/shown" in jobs.kubectl("get", "all")
    assert "RESTARTS" in jobs.kubectl("get", "uj", "-o", "wide")


def test_kubectl_scale_sets_the_target_and_refuses_a_size_that_is_none(jobs: Jobs) -> None:
    jobs.create(name="scaled", replicas={"sizes": [1, 2, 4, 8]})
    jobs.kubectl("scale", "uj/scaled", "--replicas=4")
    scaled = read(jobs.cluster.api.get(f"{jobs.path}/scaled"))
    assert scaled.spec.replica_spec.target_replicas == 4
    with pytest.raises(CommandFailed, match="targetReplicas must be one of sizes"):
        jobs.kubectl("scale", "uj/scaled", "--replicas=3")
    jobs.kubectl("scale", "uj/scaled", "--replicas=0")


def test_the_scale_subresource_tells_size_and_pods(jobs: Jobs) -> None:
    jobs.create(name="asked", replicas={"targetReplicas": 2})
    jobs.set_status("asked", {"replicas": 1, "selector": "batuta.dev/job-name=asked"})
    scale = jobs.cluster.api.get(f"{jobs.path}/asked/scale")
    assert scale["spec"]["replicas"] == 2
    assert scale["status"] == {"replicas": 1, "selector": "batuta.dev/job-name=asked"}


def test_kubectl_wait_sees_a_job_complete(jobs: Jobs) -> None:
    jobs.create(name="waited")
    done = {"type": "Complete", "status": "True", "reason": "Done", "message": ""}
    jobs.set_status("waited", {"conditions": [{**done, "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    assert "condition met" in jobs.kubectl("wait", "--for=condition=Complete", "uj/waited", "--timeout=20s")


def test_kubectl_explain_says_what_fields_are_for(jobs: Jobs) -> None:
    assert "The queue in which the job waits." in jobs.kubectl("explain", "uj.spec")
    assert "GPUs of each replica." in jobs.kubectl("explain", "uj.spec.replicaSpec")


@pytest.mark.parametrize("job_type", sorted(BUILT_IN))
@pytest.mark.parametrize("shares", [False, True])
def test_the_api_server_takes_the_children_of_every_type(jobs: Jobs, job_type: str, shares: bool) -> None:
    more: dict[str, Any] = {"sharing": {"gpuMemory": "8Gi"}, "replicas": {"maxReplicas": 1}} if shares else {}
    job = read(jobs.create(name=f"x-{job_type.lower()}", job_type=job_type, **more))
    kind, run = BUILT_IN[job_type], Run(1 if shares else 3)
    assert isinstance(to_job(job, {}), Job)
    for child in [*kind.children(job, run), *kind.follow(job, run, Observed()).children]:
        root = f"/apis/{child.kind.api_version}" if child.kind.group else "/api/v1"
        path = f"{root}/namespaces/{jobs.namespace}/{child.kind.plural}"
        taken = jobs.cluster.api.create(f"{path}?dryRun=All&fieldValidation=Strict", child.manifest)
        assert taken["metadata"]["name"] == child.name


def test_a_task_file_becomes_objects_that_the_api_server_takes(jobs: Jobs) -> None:
    task = parse_task(
        """
name: resnet
num_nodes: 2
resources: {image_id: 'docker:x', accelerators: H100:2, cpus: 8+, memory: 64, labels: {team: a}}
secrets: {TOKEN: hush}
run: torchrun train.py
elastic: {min_nodes: 1, max_nodes: 8}
""",
        check_paths=False,
    )
    made = from_task(task, jobs.namespace, user="ada")
    assert made.secret is not None
    jobs.cluster.api.create(f"/api/v1/namespaces/{jobs.namespace}/secrets", made.secret)
    stored = jobs.cluster.api.create(f"{jobs.path}?fieldValidation=Strict", made.job)
    converted = to_job(read(stored), {})
    assert isinstance(converted, Job)
    assert (converted.size, converted.max) == (4, 16)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_accepted_and_can_be_scheduled(jobs: Jobs, path: Path) -> None:
    for body in yaml.safe_load_all(path.read_text()):
        stored = jobs.cluster.api.create(f"{jobs.path}?fieldValidation=Strict", body)
        assert isinstance(to_job(read(stored), {"high": 1000}), Job)


def test_there_are_examples_of_every_type() -> None:
    bodies = [body for path in EXAMPLES for body in yaml.safe_load_all(path.read_text())]
    assert {body["spec"]["jobType"] for body in bodies} == set(BUILT_IN)
