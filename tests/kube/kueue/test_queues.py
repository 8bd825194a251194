"""Batuta decides by Kueue's objects, and shows its jobs as Workloads: with the rights of the chart."""

from collections.abc import Iterator
from typing import Any

import pytest

from batuta.backends.kube import names
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.kueue import (
    ROOT,
    Workload,
    cluster_queue,
    flavor,
    local_queue,
    set_quota,
    wait_until_active,
)
from tests.support.kube.nodes import GPU, NodeShape
from tests.support.kube.operator_process import OperatorProcess, grant, refused
from tests.support.kube.pods import make_pod
from tests.support.kube.unified import Jobs

SHOWN: dict[str, Any] = {"kueue": {"showWorkloads": True}}


@pytest.fixture(scope="module")
def operator(kueue_cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    mark = kueue_cluster.requests.mark()
    kubeconfig = grant(kueue_cluster, config=SHOWN)
    with OperatorProcess(kueue_cluster, tmp_path_factory.mktemp("operator"), kubeconfig=kubeconfig, **SHOWN) as running:
        yield running
    assert refused(kueue_cluster, mark) == []


@pytest.fixture
def jobs(kueue_cluster: ControlPlane, team: str, operator: OperatorProcess) -> Jobs:
    """UnifiedJobs in a namespace whose queue `train` has quota for two GPUs."""
    kueue_cluster.apply([flavor(), cluster_queue("team-a", 2), local_queue("train", team, "team-a")])
    wait_until_active(kueue_cluster, team, "train")
    return Jobs(kueue_cluster, team)


def numbers(cluster: ControlPlane, path: str) -> tuple[int, int]:
    """How many Workloads of a queue wait, and how many are admitted."""
    status = cluster.api.get(f"{ROOT}/{path}").get("status", {})
    return status.get("pendingWorkloads", 0), status.get("admittedWorkloads", 0)


def test_a_job_waits_for_quota_and_starts_when_its_queue_has_more(kueue_cluster, jobs, team, operator):
    """Given quota for two GPUs, a job of four waits and says why; with quota for six it runs."""
    first, second = (
        jobs.submit("first", replicas=2, queueName="train"),
        Workload(kueue_cluster, team, "second"),
    )
    first.runs_with(2)
    waiting = jobs.submit("second", replicas=4, queueName="train")

    second.is_said("QuotaReserved", "False")
    assert "4" in second.message("QuotaReserved")
    assert not waiting.places()
    wait_until(lambda: numbers(kueue_cluster, "clusterqueues/team-a") == (1, 1), "its numbers", 30.0)
    path = f"namespaces/{team}/localqueues/train"
    wait_until(lambda: numbers(kueue_cluster, path) == (1, 1), "the numbers of its LocalQueue", 30.0)

    set_quota(kueue_cluster, "team-a", 6)
    waiting.runs_with(4)
    second.is_said("Admitted", "True")
    assert second.assigned["count"] == 4
    assert second.assigned["flavors"] == {"nvidia.com/gpu": "gpus"}
    assert second.assigned["resourceUsage"] == {"nvidia.com/gpu": "4"}
    operator.assert_calm()


def test_a_job_without_gpus_uses_quota_for_cpu_and_none_for_gpus(kueue_cluster, jobs, team):
    """Given quota for four CPUs and one GPU, which is used, a job of two CPUs runs, and another one waits."""
    kueue_cluster.apply([cluster_queue("team-b", 1, cpus=4), local_queue("both", team, "team-b")])
    wait_until_active(kueue_cluster, team, "both")
    jobs.submit("trains", replicas=1, queueName="both").runs_with(1)
    trains = Workload(kueue_cluster, team, "trains")
    trains.is_said("Admitted", "True")
    assert trains.assigned["resourceUsage"] == {"cpu": "1", GPU: "1"}
    first = jobs.submit("first", "Pods", replicas=2, gpus=0, queueName="both")
    first.runs_with(2)
    workload = Workload(kueue_cluster, team, "first")
    workload.is_said("Admitted", "True")
    assert (workload.assigned["count"], workload.assigned["resourceUsage"]) == (2, {"cpu": "2"})
    second = jobs.submit("second", "Pods", replicas=2, gpus=0, queueName="both")
    Workload(kueue_cluster, team, "second").is_said("QuotaReserved", "False")
    assert not second.places()
    set_quota(kueue_cluster, "team-b", 1, cpus=5)
    second.runs_with(2)


def test_a_workload_belongs_to_its_job_and_ends_with_it(kueue_cluster, jobs, team):
    """Given a job that is done, its Workload is finished; and it goes when the job does."""
    job = jobs.submit("short", "Pods", replicas=1, queueName="train", pod={"runs_for": "300ms"})
    workload = Workload(kueue_cluster, team, "short")
    job.reaches("SUCCEEDED")
    workload.is_said("Finished", "True", "Succeeded")
    shown = workload.get()
    assert shown["spec"]["queueName"] == "train"
    [owner] = shown["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (job.get()["metadata"]["uid"], True)


def test_pods_that_name_a_queue_wait_for_its_quota_too(kueue_cluster, jobs, team):
    """Given a plain pod with Kueue's label that needs more than its queue has, it waits until it has that."""
    pod = make_pod("plain", 4)
    pod["metadata"]["labels"] = {names.KUEUE_QUEUE_NAME: "train"}
    kueue_cluster.api.create(jobs.pods_path, pod)
    workload = Workload(kueue_cluster, team, "plain")
    workload.is_said("QuotaReserved", "False")
    assert not kueue_cluster.pod(team, "plain")["spec"].get("nodeName")
    set_quota(kueue_cluster, "team-a", 4)
    wait_until(lambda: kueue_cluster.pod(team, "plain")["spec"].get("nodeName"), "the pod to be bound")
    workload.is_said("Admitted", "True")


def test_a_job_whose_queue_is_not_there_waits_and_says_so(kueue_cluster, jobs, team):
    """Given a queue that nobody has set up, its job starts as soon as somebody does."""
    job = jobs.submit("lost", replicas=1, queueName="nowhere")
    workload = Workload(kueue_cluster, team, "lost")
    workload.is_said("QuotaReserved", "False", "Misconfigured")
    assert job.condition("QuotaReserved")["status"] == "False"
    kueue_cluster.apply(local_queue("nowhere", team, "team-a"))
    job.runs_with(1)


def test_pods_tolerate_what_the_flavor_of_their_quota_tolerates(kueue_cluster, jobs, team):
    """Given a flavor of tainted nodes, jobs with quota in it run there, and their pods may."""
    taint = {"key": "reserved", "value": "yes", "effect": "NoSchedule"}
    shape = NodeShape(gpus=4, labels={"pool": "reserved"}, taints=(taint,))
    added = kueue_cluster.add_nodes(1, shape, prefix="reserved")
    tolerated = {"key": "reserved", "operator": "Exists"}
    kueue_cluster.apply(
        [
            flavor("reserved", nodeLabels={"pool": "reserved"}, tolerations=[tolerated]),
            cluster_queue("team-b", 4, of="reserved"),
            local_queue("special", team, "team-b"),
        ]
    )
    wait_until_active(kueue_cluster, team, "special")
    try:
        job = jobs.submit("picky", replicas=2, queueName="special")
        job.runs_with(2)
        assert {node for node, _ in job.places().values()} == set(added)
    finally:
        kueue_cluster.delete_nodes(added)
