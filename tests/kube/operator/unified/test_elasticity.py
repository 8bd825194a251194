"""Jobs change their size: with what others leave, when people say so, and never at the cost of what runs."""

import pytest

from batuta.backends.kube import names
from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape


def uids(running: dict[str, str]) -> set[str]:
    return set(running.values())


def test_a_job_grows_in_place_when_another_ends(jobs, add_nodes):
    """Given two jobs that share four GPUs, when one ends the other has all, and its old pods are the same."""
    add_nodes(1, NodeShape(gpus=4))
    short = jobs.submit("short", replicas=2)
    short.runs_with(2)
    long = jobs.submit("long", replicas=(1, 4), pod={"runs_for": "3600s"})
    before = long.runs_with(2)
    for name in short.running():
        jobs.api.patch(f"{jobs.pods_path}/{name}/status", {"status": {"phase": "Succeeded"}})
    short.reaches("SUCCEEDED")
    after = long.runs_with(4)
    assert before.items() <= after.items()
    assert (long.starts(), long.status["restarts"]) == ({"0"}, 0)
    assert len(set(long.places().values())) == 4


def test_a_shrink_restarts_all_members_as_the_next_start(jobs, add_nodes):
    """Given a size that a person wrote, torchrun's members are all new, and know that they start again."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("torch", replicas=(1, 4))
    before = job.runs_with(4)
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 2}}})
    after = job.runs_with(2)
    assert not uids(before) & uids(after)
    assert job.starts() == {"1"}


def test_kubectl_scale_pins_the_size_until_it_is_taken_back(jobs, add_nodes, cluster):
    """Given free GPUs, a pinned job does not grow; without the pin it does, and its target says so."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("torch", replicas=(1, 4))
    job.runs_with(4)
    cluster.kubectl("scale", "uj/torch", "--replicas=2", "--namespace", jobs.namespace)
    pinned = job.runs_with(2)
    other = jobs.submit("other", replicas=1)
    other.runs_with(1)
    assert job.running() == pinned
    assert job.get()["spec"]["replicaSpec"]["targetReplicas"] == 2
    cluster.kubectl("delete", "uj/other", "--namespace", jobs.namespace)
    job.patch({"spec": {"replicaSpec": {"targetReplicas": None}}})
    assert pinned.items() <= job.runs_with(4).items()
    wait_until(lambda: job.get()["spec"]["replicaSpec"].get("targetReplicas") == 4, "its target")
    assert job.get()["metadata"]["annotations"][names.TARGET] == "4"


def test_a_suspended_job_gives_its_gpus_back_and_goes_on_when_it_may(jobs, add_nodes):
    """Given a suspended job, another one has its GPUs; when both may run again, so does the first."""
    add_nodes(1, NodeShape(gpus=2))
    job = jobs.submit("torch", replicas=2)
    job.runs_with(2)
    job.patch({"spec": {"suspend": True}})
    other = jobs.submit("other", replicas=2)
    other.runs_with(2)
    assert not job.workers()
    other.patch({"metadata": {"annotations": {names.CANCEL: "true"}}})
    other.reaches("CANCELLED")
    assert other.condition("Failed")["status"] == "True"
    job.patch({"spec": {"suspend": False}})
    job.runs_with(2)
    assert job.starts() == {"1"}


@pytest.mark.parametrize("job_type", ["TorchElastic", "Job"])
def test_a_job_whose_pod_is_deleted_starts_again_without_blame(jobs, add_nodes, job_type):
    """Given a pod that somebody deletes, all members start again, and it is no failure of the job."""
    add_nodes(1, NodeShape(gpus=2))
    job = jobs.submit("train", job_type, replicas=2, backoffLimit=0)
    before = job.runs_with(2)
    jobs.api.delete(f"{jobs.pods_path}/{sorted(before)[1]}")
    wait_until(lambda: job.starts() == {"1"} and len(job.running()) == 2, "the next start")
    assert not uids(before) & uids(job.runs_with(2))
    assert job.status["failures"] == 0
