"""Jobs of every type: their children come, run where the scheduler said, and end."""

import re

import pytest

from batuta.backends.kube import names
from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape

EQUAL = ["TorchElastic", "Pods", "Job"]
"""Types whose members all do the same."""


@pytest.mark.parametrize("job_type", EQUAL)
def test_a_job_runs_where_it_was_placed_and_succeeds(jobs, add_nodes, job_type):
    """Given GPUs for all members, each gets its own, and the job has succeeded when all of them have."""
    nodes = add_nodes(2, NodeShape(gpus=4))
    job = jobs.submit("train", job_type, replicas=3, gpus=2, pod={"runs_for": "2s"})
    job.reaches("RUNNING", "SUCCEEDED")
    places = {
        pod["metadata"]["name"]: (pod["spec"]["nodeName"], pod["metadata"]["annotations"][names.GPUS])
        for pod in job.pods().values()
    }
    assert len(set(places.values())) == 3
    assert all(node in nodes and gpus in ("0,1", "2,3") for node, gpus in places.values())
    status = job.reaches("SUCCEEDED")
    assert job.condition("Complete")["status"] == "True"
    assert (status["failures"], status["restarts"]) == (0, 0)


@pytest.mark.parametrize("job_type", EQUAL)
def test_members_that_end_one_after_the_other_end_the_job_well(jobs, add_nodes, job_type):
    """Given a member that is done while the others still run, the job goes on and is not started again."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("train", job_type, replicas=2, pod={"runs_for": "3600s"})
    first, second = job.runs_with(2)
    jobs.api.patch(f"{jobs.pods_path}/{first}/status", {"status": {"phase": "Succeeded"}})
    wait_until(lambda: job.status["readyReplicas"] == 1, "one to be done")
    jobs.api.patch(f"{jobs.pods_path}/{second}/status", {"status": {"phase": "Succeeded"}})
    status = job.reaches("SUCCEEDED")
    assert (status["failures"], status["run"]["start"]) == (0, 0)


def test_horovod_has_workers_a_launcher_and_a_list_of_hosts_that_follows_its_size(jobs, add_nodes):
    """Given a resize, workers that stay are not touched, the list has the new ones; at the end all go."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("hvd", "ElasticHorovod", replicas=(1, 4), replica_spec={"targetReplicas": 2})
    before = job.runs_with(2)
    wait_until(lambda: _hosts(jobs) == ["hvd-0", "hvd-1"], "two hosts")
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 3}}})
    assert before.items() <= job.runs_with(3).items()
    wait_until(lambda: _hosts(jobs) == ["hvd-0", "hvd-1", "hvd-2"], "three hosts")
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 1}}})
    assert job.runs_with(1).items() <= before.items()
    wait_until(lambda: _hosts(jobs) == ["hvd-0"], "one host")
    launcher = next(pod for pod in job.pods().values() if pod["metadata"]["labels"][names.ROLE] == "launcher")
    path = f"{jobs.pods_path}/{launcher['metadata']['name']}/status"
    jobs.api.patch(path, {"status": {"phase": "Succeeded"}})
    job.reaches("SUCCEEDED")
    wait_until(lambda: not job.workers(), "the workers to give their GPUs back")


def _hosts(jobs) -> list[str]:
    data = jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/configmaps/hvd-hosts")["data"]
    return re.findall(r"^echo ([^.]+)", data["discover-hosts.sh"], re.MULTILINE)


def test_an_mpi_job_is_written_for_its_operator(jobs, add_nodes):
    """Given the definition of MPIJob, one is made with as many workers as were decided, and ends the job."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("mpi", "MPIJob", replicas=2)
    path = f"/apis/kubeflow.org/v2beta1/namespaces/{jobs.namespace}/mpijobs"
    (made,) = wait_until(lambda: jobs.api.items(path), "an MPIJob")
    assert made["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2
    end = {"type": "Succeeded", "status": "True", "reason": "Done", "message": "it is done"}
    jobs.api.patch(f"{path}/mpi/status", {"status": {"conditions": [end]}})
    job.reaches("SUCCEEDED")


def test_a_batch_job_is_resized_as_one_and_the_same_object(jobs, add_nodes):
    """Given another size, the batch Job is suspended, changed and resumed; its pods are new."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("batch", "Job", replicas=(1, 4), replica_spec={"targetReplicas": 2})
    before = job.runs_with(2)
    path = f"/apis/batch/v1/namespaces/{jobs.namespace}/jobs/batch"
    uid = jobs.api.get(path)["metadata"]["uid"]
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 3}}})
    after = job.runs_with(3)
    assert not set(before.values()) & set(after.values())
    assert jobs.api.get(path)["metadata"]["uid"] == uid
    assert job.starts() == {"1"}
