"""The real Kueue decides, and Batuta does the rest: sizes within what was admitted, places, stops."""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.kueue import (
    PROGRAM,
    Workload,
    cluster_queue,
    flavor,
    local_queue,
    set_quota,
    start_kueue,
    wait_until_active,
)
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess, grant, refused
from tests.support.kube.programs import program, why_not
from tests.support.kube.unified import Jobs

CPUS = 100
DECIDES: dict[str, Any] = {"admission": "kueue"}


@cache
def _problem() -> str | None:
    return why_not([PROGRAM])


@pytest.fixture(scope="module")
def operator(kueue_cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """Both are there: the real Kueue, and an operator that waits for its word."""
    if (problem := _problem()) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no Kueue: {problem}")
    program(PROGRAM)
    start_kueue(kueue_cluster)
    mark = kueue_cluster.requests.mark()
    kubeconfig = grant(kueue_cluster, config=DECIDES)
    with OperatorProcess(
        kueue_cluster, tmp_path_factory.mktemp("operator"), kubeconfig=kubeconfig, **DECIDES
    ) as running:
        yield running
    assert refused(kueue_cluster, mark) == []
    kueue_cluster.programs.stop(PROGRAM)


@pytest.fixture
def jobs(kueue_cluster: ControlPlane, team: str, operator: OperatorProcess) -> Jobs:
    """UnifiedJobs in a namespace whose queue `train` has four GPUs, of a ClusterQueue of its own."""
    rules: dict[str, Any] = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    kueue_cluster.apply([flavor(), cluster_queue(team, 4, CPUS, **rules), local_queue("train", team, team)])
    wait_until_active(kueue_cluster, team, "train")
    return Jobs(kueue_cluster, team)


def test_a_job_runs_when_kueue_admits_it_and_within_what_it_admits(kueue_cluster, jobs, team):
    """Given quota for four of eight replicas, Kueue admits four, and the job grows to four and no further."""
    job = jobs.submit("elastic", replicas=(2, 8), queueName="train")
    workload = Workload(kueue_cluster, team, "elastic")
    workload.is_said("Admitted", "True")
    assert workload.assigned["count"] == 4
    job.runs_with(4)


def test_a_job_that_kueue_does_not_admit_waits_and_says_why(kueue_cluster, jobs, team):
    """Given no quota for it, a job has no pods; with quota it runs, and ends as it should."""
    job = jobs.submit("large", "Pods", replicas=6, queueName="train", pod={"runs_for": "500ms"})
    wait_until(lambda: "Kueue:" in job.status.get("message", ""), "a word about why it waits")
    assert job.condition("QuotaReserved")["status"] == "False"
    assert not job.pods()
    set_quota(kueue_cluster, team, 6, CPUS)
    job.reaches("SUCCEEDED")
    Workload(kueue_cluster, team, "large").is_said("Finished", "True", "Succeeded")


def test_a_job_that_kueue_evicts_stops_gives_its_quota_back_and_runs_again(kueue_cluster, jobs, team):
    """Given a job that runs, when a more important one preempts it, it stops, waits, and comes back."""
    kueue_cluster.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        }
    )
    low, workload = jobs.submit("low", replicas=4, queueName="train"), Workload(kueue_cluster, team, "low")
    low.runs_with(4)
    high = jobs.submit("high", replicas=4, queueName="train", priorityClassName="urgent")
    high.runs_with(4)
    workload.is_said("QuotaReserved", "False")
    assert not low.places()
    kueue_cluster.api.delete(high.path)
    low.runs_with(4)
    workload.is_said("Evicted", "False")


def test_a_workload_that_somebody_stops_stops_its_job(kueue_cluster, jobs, team):
    """Given a job that runs, when its Workload is made inactive, the job stops until it is active again."""
    job, workload = jobs.submit("held", replicas=2, queueName="train"), Workload(kueue_cluster, team, "held")
    job.runs_with(2)
    workload.patch({"spec": {"active": False}})
    wait_until(lambda: not job.pods(), "the pods to be gone")
    workload.is_said("QuotaReserved", "False")
    workload.patch({"spec": {"active": True}})
    job.runs_with(2)


def test_a_job_goes_to_the_nodes_of_the_flavor_that_kueue_chose(kueue_cluster, jobs, team):
    """Given a flavor of tainted nodes which it lets jobs tolerate, the job runs there and nowhere else."""
    taint = {"key": "reserved", "value": "yes", "effect": "NoSchedule"}
    shape = NodeShape(gpus=4, labels={"pool": "reserved"}, taints=(taint,))
    added = kueue_cluster.add_nodes(1, shape, prefix="reserved")
    tolerated = {"key": "reserved", "operator": "Exists"}
    own = f"{team}-reserved"
    kueue_cluster.apply(
        [
            flavor(own, nodeLabels={"pool": "reserved"}, nodeTaints=[taint], tolerations=[tolerated]),
            cluster_queue(own, 4, CPUS, of=own),
            local_queue("special", team, own),
        ]
    )
    wait_until_active(kueue_cluster, team, "special")
    try:
        job = jobs.submit("picky", replicas=2, queueName="special")
        job.runs_with(2)
        assert {node for node, _ in job.places().values()} == set(added)
    finally:
        kueue_cluster.delete_nodes(added)


def test_an_operator_without_memory_obeys_what_kueue_decided_meanwhile(kueue_cluster, jobs, team, operator):
    """Given an operator that is killed and loses its journal, a job that was evicted meanwhile stops."""
    job, workload = jobs.submit("kept", replicas=2, queueName="train"), Workload(kueue_cluster, team, "kept")
    before = job.runs_with(2)
    operator.kill()
    operator.forget()
    operator.start()
    assert job.runs_with(2) == before
    operator.kill()
    operator.forget()
    workload.patch({"spec": {"active": False}})
    operator.start()
    wait_until(lambda: not job.pods(), "the pods to be gone")
    workload.is_said("QuotaReserved", "False")
