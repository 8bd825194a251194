"""Jobs without GPUs: they take CPU and memory of any node, beside jobs that have all the GPUs."""

from typing import Any

import pytest

from tests.kube.conftest import AddNodes
from tests.support.kube.api import Json
from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess
from tests.support.kube.pods import make_pod
from tests.support.kube.unified import Jobs, Submitted, manifest

CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
LARGE = NodeShape(gpus=0, cpus=8)


def cpu_only(name: str, job_type: str = "Pods", cpus: int = 1, **how: Any) -> Json:
    """A job without GPUs whose replicas ask for so many CPUs. See `manifest`."""
    body = manifest(name, job_type, gpus=0, **how)
    spec = body["spec"]["replicaSpec"]["template"]["spec"]
    spec["containers"][0]["resources"] = {"requests": {"cpu": f"{cpus}"}}
    return body


def nodes_of(job: Submitted) -> set[str]:
    return {node for node, _ in job.places().values()}


@pytest.mark.parametrize("job_type", ["Pods", "Job", "TorchElastic"])
def test_a_job_without_gpus_runs_while_all_gpus_are_taken(jobs: Jobs, add_nodes: AddNodes, job_type: str) -> None:
    """Given a job with all GPUs and a node without any, it runs there, holds no GPU, and finishes."""
    add_nodes(1, NodeShape(gpus=2))
    (plain,) = add_nodes(1, LARGE)
    trains = jobs.submit("trains", replicas=2)
    before = trains.runs_with(2)
    job = jobs.create(cpu_only("prepares", job_type, replicas=2, pod={"runs_for": "3s"}))
    job.runs_with(2)
    assert set(job.places().values()) == {(plain, "")}
    assert all("gpu" not in str(one["spec"]["containers"]) for one in job.workers().values())
    status = job.status
    assert (status["gpus"], status["replicas"], status["placement"]) == (0, 2, {plain: 2})
    assert (status["reason"], status["message"]) == ("FullSize", "runs at its full size of 2 replicas")
    job.reaches("SUCCEEDED")
    assert job.events()["Started"] == [f"start 0 with 2 replicas on {plain}"]
    assert trains.running() == before


def test_where_every_node_has_gpus_it_takes_the_cpu_beside_them(jobs: Jobs, add_nodes: AddNodes) -> None:
    (busy,) = add_nodes(1, NodeShape(gpus=2))
    jobs.submit("trains", replicas=2).runs_with(2)
    job = jobs.create(cpu_only("prepares"))
    job.runs_with(1)
    assert nodes_of(job) == {busy}


def test_more_cpu_than_any_node_has_is_waited_for_with_the_reason(jobs: Jobs, add_nodes: AddNodes) -> None:
    add_nodes(1, LARGE)
    job = jobs.create(cpu_only("huge", cpus=9))
    said = wait_until(lambda: job.status if job.status.get("reason") else {}, "a reason")
    assert (said["state"], said["reason"]) == ("PENDING", "ExceedsCpuOrMemory")
    assert "needs 1 replica with 9 CPUs" in said["message"]
    add_nodes(1, NodeShape(gpus=0, cpus=16))
    job.runs_with(1)


def test_cpu_that_another_job_has_is_waited_for(jobs: Jobs, add_nodes: AddNodes) -> None:
    add_nodes(1, LARGE)
    first = jobs.create(cpu_only("first", cpus=6))
    first.runs_with(1)
    job = jobs.create(cpu_only("second", cpus=3))
    said = wait_until(lambda: job.status if job.status.get("reason") else {}, "a reason")
    assert (said["state"], said["reason"]) == ("PENDING", "WaitingForCpu")
    jobs.api.delete(first.path)
    job.runs_with(1)


def test_cpu_that_pods_of_others_have_is_not_given_away(jobs: Jobs, add_nodes: AddNodes) -> None:
    """Given a pod on the only node that another scheduler has placed, the job waits until it has gone."""
    (node,) = add_nodes(1, LARGE)
    other = make_pod("web", gpus=0, cpu="4")
    other["spec"] |= {"schedulerName": "another", "nodeName": node}
    jobs.api.create(jobs.pods_path, other)
    job = jobs.create(cpu_only("prepares", cpus=6))
    said = wait_until(lambda: job.status if job.status.get("reason") else {}, "a reason")
    assert said["reason"] == "ExceedsCpuOrMemory"
    assert "have room for 0 when no job is on them" in said["message"]
    assert not job.places()
    jobs.api.delete(f"{jobs.pods_path}/web")
    job.runs_with(1)


def test_nodes_of_the_control_plane_are_for_jobs_that_tolerate_them(jobs: Jobs, add_nodes: AddNodes) -> None:
    (master,) = add_nodes(1, NodeShape(gpus=0, cpus=8, taints=(CONTROL_PLANE,)))
    job = jobs.create(cpu_only("prepares"))
    said = wait_until(lambda: job.status if job.status.get("reason") else {}, "a reason")
    assert said["reason"] == "NoMatchingNode"
    body = cpu_only("tolerates")
    pod = body["spec"]["replicaSpec"]["template"]["spec"]
    pod["tolerations"] = [{"key": CONTROL_PLANE["key"], "operator": "Exists"}]
    tolerant = jobs.create(body)
    tolerant.runs_with(1)
    assert nodes_of(tolerant) == {master}


@pytest.mark.parametrize("keeps_journal", [True, False], ids=["with-journal", "without-journal"])
def test_the_next_operator_goes_on_with_it(
    jobs: Jobs, add_nodes: AddNodes, operator: OperatorProcess, keeps_journal: bool
) -> None:
    """Given an operator that is killed, the next one leaves its pods alone, and sees them finish."""
    add_nodes(1, NodeShape(gpus=2))
    add_nodes(2, NodeShape(gpus=0, cpus=2))
    job = jobs.create(cpu_only("prepares", replicas=4))
    before, places = job.runs_with(4), job.places()
    assert len(nodes_of(job)) == 2
    operator.kill()
    if not keeps_journal:
        operator.forget()
    operator.start()
    # The next decision has been made when a job that came since has been placed.
    jobs.submit("late", "Pods", pod={"runs_for": "100ms"}).reaches("SUCCEEDED")
    assert (job.runs_with(4), job.places(), job.status["restarts"]) == (before, places, 0)
    for name in before:
        jobs.api.patch(f"{jobs.pods_path}/{name}/status", {"status": {"phase": "Succeeded"}})
    assert job.reaches("SUCCEEDED")["run"]["start"] == 0


def test_a_node_that_is_gone_is_left_for_another(jobs: Jobs, add_nodes: AddNodes) -> None:
    (first,) = jobs.cluster.add_nodes(1, LARGE, f"{jobs.namespace}-doomed")
    job = jobs.create(cpu_only("prepares"))
    job.runs_with(1)
    assert nodes_of(job) == {first}
    (second,) = add_nodes(1, LARGE)
    jobs.cluster.delete_nodes([first])
    wait_until(lambda: nodes_of(job) == {second}, "another start elsewhere")
    job.runs_with(1)
    assert job.status["failures"] == 0
