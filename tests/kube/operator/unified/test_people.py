"""What people see and do with kubectl, and what nobody should have to see: nonsense that got through."""

from functools import partial

import pytest
import yaml

from batuta.backends.kube import names
from tests.support.kube.api import Json
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.flags import Options
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import CRD, NAMESPACE, USER, OperatorProcess
from tests.support.kube.unified import Jobs, Submitted, manifest


def test_kubectl_shows_waits_for_and_describes_a_job(jobs, add_nodes, cluster):
    """Given a job that runs and ends, its columns, its condition and its events tell the story."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("train", replicas=(1, 4), pod={"runs_for": "3600s"}, queueName="default")
    running = job.runs_with(4)
    space = ("--namespace", jobs.namespace)
    head, row = cluster.kubectl("get", "uj", *space).splitlines()
    shown = dict(zip(head.split(), row.split(), strict=False))
    assert (shown["QUEUE"], shown["STATE"], shown["GPUS"]) == ("default", "RUNNING", "4")
    for name in running:
        jobs.api.patch(f"{jobs.pods_path}/{name}/status", {"status": {"phase": "Succeeded"}})
    cluster.kubectl("wait", "--for=condition=Complete", "uj/train", "--timeout=60s", *space)
    wait_until(lambda: job.events().keys() >= {"Started", "Completed"}, "events")
    assert job.events()["Started"][0].startswith("start 0 with 4 replicas, 4 GPUs on ")
    assert "Completed" in cluster.kubectl("describe", "uj/train", *space)


def test_events_tell_of_resizes_and_preemptions(jobs, add_nodes):
    """Given a job that is resized and suspended, an event tells each with its numbers."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("train", replicas=(1, 4), replica_spec={"targetReplicas": 2})
    job.runs_with(2)
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 4}}})
    job.runs_with(4)
    job.patch({"spec": {"suspend": True}})
    wait_until(lambda: job.events().keys() >= {"Started", "Resized", "Suspended"}, "events")
    assert job.events()["Resized"][0].startswith("from 2 to 4 replicas, 4 GPUs on ")
    assert job.events()["Suspended"] == ["gave 4 GPUs back, and waits"]


def test_a_pod_that_may_not_be_made_is_told_and_not_tried_all_the_time(jobs, add_nodes, cluster):
    """Given a quota without pods, the job says so; when there is room in it, the job runs."""
    add_nodes(1, NodeShape(gpus=2))
    quotas = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas"
    jobs.api.create(quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    wait_until(lambda: jobs.api.get(f"{quotas}/none").get("status", {}).get("hard"), "the quota")
    mark = cluster.requests.mark()
    job = jobs.submit("train", replicas=2)
    wait_until(lambda: "exceeded quota" in job.status.get("message", ""), "the reason")
    jobs.api.delete(f"{quotas}/none")
    job.runs_with(2)
    tried = [one for one in cluster.requests.since(mark, USER) if one.code == 403]
    assert 2 <= len(tried) <= 30


def test_a_pod_of_somebody_else_with_the_name_of_a_member_is_respected(jobs, add_nodes, cluster):
    """Given a foreign pod of that name, it is not touched, and the job waits for it without a hot loop."""
    add_nodes(1, NodeShape(gpus=1))
    container = {"name": "main", "image": "none"}
    foreign = {"metadata": {"name": "train-0"}, "spec": {"containers": [container]}}
    jobs.api.create(jobs.pods_path, foreign)
    mark = cluster.requests.mark()
    job = jobs.submit("train")
    wait_until(lambda: "already exists" in job.status.get("message", ""), "the reason")
    jobs.api.delete(f"{jobs.pods_path}/train-0", gracePeriodSeconds=0)
    job.runs_with(1)
    assert len(cluster.requests.since(mark, USER)) < 60


def test_a_status_that_somebody_overwrites_is_written_again_without_a_quarrel(jobs, add_nodes, cluster):
    """Given nonsense in the status, the truth is there again, and the operator stays calm."""
    add_nodes(1, NodeShape(gpus=1))
    job = jobs.submit("train")
    before = job.runs_with(1)
    mark = cluster.requests.mark()
    nonsense = {"state": "DANCING", "replicas": 99, "run": {"start": 41}}
    jobs.api.patch(f"{job.path}/status", {"status": nonsense})
    status = wait_until(lambda: job.state == "RUNNING" and job.status, "the truth")
    assert (status["replicas"], status["run"]["start"]) == (1, 0)
    assert job.running() == before
    assert len(cluster.requests.since(mark, USER)) < 20


@pytest.fixture
def lax(make_cluster, tmp_path):
    """A cluster whose API server accepts anything as a UnifiedJob, with an operator."""
    cluster: ControlPlane = make_cluster(Options(controllers=True))
    definition = yaml.safe_load(CRD.read_text())
    for version in definition["spec"]["versions"]:
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version["schema"] = {
            "openAPIV3Schema": {**anything, "properties": {"spec": anything, "status": anything}}
        }
    (tmp_path / "lax.yaml").write_text(yaml.safe_dump(definition))
    cluster.install_crds(tmp_path / "lax.yaml")
    cluster.new_namespace(NAMESPACE)
    with OperatorProcess(cluster, tmp_path):
        yield cluster


def test_nonsense_gets_a_condition_and_never_ends_the_operator(lax):
    """Given objects that no schema has seen, each says what is wrong with it, and a good one runs."""
    jobs = Jobs(lax, lax.new_namespace())
    lax.add_nodes(1, NodeShape(gpus=2))
    bad: dict[str, Json] = {
        "no-replicas": {"spec": {"jobType": "Pods"}},
        "wrong-type": {"spec": {"jobType": "Dance", "replicaSpec": {"minReplicas": 1}}},
        "numbers": {"spec": {"jobType": 7, "replicaSpec": {"minReplicas": "many", "template": []}}},
        "negative": manifest("negative", replicas=(-1, 4)),
        "no-containers": manifest(
            "no-containers", replica_spec={"template": {"spec": {"containers": [{"name": 3}, "x"]}}}
        ),
        "no-class": manifest("no-class", priorityClassName="nobody"),
    }
    for name, body in bad.items():
        meta = {"metadata": {"name": name}, "apiVersion": names.API_VERSION, "kind": names.KIND}
        jobs.create(body | meta)
    strange = jobs.create(
        manifest("strange", annotations={names.TARGET: "x", names.WANTED: "-"})
        | {"status": {"conditions": "none", "run": 3, "startTime": "yesterday", "placement": []}}
    )
    jobs.api.patch(f"{strange.path}/status", {"status": {"conditions": [3], "run": 3, "startTime": "noon"}})
    good = jobs.submit("good")
    good.runs_with(1)
    for name in bad:
        told = partial(message_of, Submitted(jobs, name))
        wait_until(told, f"what is wrong with {name}")
    strange.runs_with(1)


def message_of(job: Submitted) -> str:
    return job.status.get("message", "")
