"""What people see and do with kubectl, and what the operator does about what it finds in its way."""

from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import USER


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
