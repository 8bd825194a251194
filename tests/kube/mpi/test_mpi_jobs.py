"""UnifiedJobs of type MPIJob, all the way: the real mpi-operator makes their pods, and Batuta binds them."""

from functools import partial
from typing import Any

import pytest

from batuta.backends.kube import names
from tests.kube.mpi.conftest import GPUS
from tests.support.kube.api import ApiError, Json
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.unified import Jobs, Submitted, manifest

WORKERS_4: Json = {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 4}}}}
DISCOVERY = ["horovodrun", "--host-discovery-script", "/etc/mpi/discover_hosts.sh"]


def submit(jobs: Jobs, replicas: int | tuple[int, int], target: int, command: list[str]) -> Submitted:
    body = manifest("mpi", "MPIJob", replicas, replica_spec={"targetReplicas": target})
    body["spec"]["replicaSpec"]["template"]["spec"]["containers"][0]["command"] = command
    return jobs.create(body)


def mpi_job(jobs: Jobs) -> Json:
    return jobs.api.get(f"/apis/kubeflow.org/v2beta1/namespaces/{jobs.namespace}/mpijobs/mpi")


def worker_replicas(jobs: Jobs) -> int:
    return int(mpi_job(jobs)["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"])


def has_workers(jobs: Jobs, count: int) -> bool:
    """Whether there is an MPIJob with so many workers just now."""
    try:
        return worker_replicas(jobs) == count
    except ApiError as error:
        if error.status != 404:
            raise
        return False


def launcher(job: Submitted, start: int = 0) -> Json:
    """The pod of the launcher of this start, once it runs."""

    def look() -> list[Json]:
        return [
            pod
            for pod in job.pods().values()
            if pod["metadata"]["labels"][names.ROLE] == "launcher"
            and pod["metadata"]["labels"][names.START] == str(start)
            and pod["status"]["phase"] == "Running"
        ]

    return wait_until(look, f"the launcher of start {start}")[0]


def env(pod: Json) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}


def end(jobs: Jobs, pod: Json) -> None:
    """As if the program of a pod had ended well."""
    path = f"{jobs.pods_path}/{pod['metadata']['name']}/status"
    jobs.api.patch(path, {"status": {"phase": "Succeeded"}})


def test_workers_and_launcher_are_bound_and_the_end_of_the_launcher_is_the_end_of_the_job(jobs: Jobs) -> None:
    """Given a launcher that is done, the job has succeeded and its workers give their GPUs back."""
    job = submit(jobs, 2, 2, ["mpirun"])
    job.runs_with(2)
    assert len(set(job.places().values())) == 2
    assert {pod["spec"]["schedulerName"] for pod in job.pods().values()} == {names.SCHEDULER}
    end(jobs, launcher(job))
    job.reaches("SUCCEEDED")
    wait_until(lambda: not job.workers(), "the workers to be gone")


def test_a_launcher_that_looks_up_its_hosts_goes_on_when_workers_come_and_go(jobs: Jobs) -> None:
    """Given a resize of such a job, the MPIJob, its launcher and the workers that stay are the same ones."""
    job = submit(jobs, (1, 4), 2, DISCOVERY)
    before = job.runs_with(2)
    made, running = mpi_job(jobs)["metadata"]["uid"], launcher(job)["metadata"]["uid"]
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 4}}})
    assert before.items() <= job.runs_with(4).items()
    assert worker_replicas(jobs) == 4
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 1}}})
    assert job.runs_with(1).items() <= before.items()
    assert worker_replicas(jobs) == 1
    assert (mpi_job(jobs)["metadata"]["uid"], launcher(job)["metadata"]["uid"]) == (made, running)


def test_a_launcher_with_a_fixed_number_of_ranks_is_started_again_at_the_new_size(jobs: Jobs) -> None:
    """Given a resize of such a job, all pods are new, and the launcher knows how many workers there are."""
    job = submit(jobs, (1, 4), 2, ["mpirun"])
    before = job.runs_with(2)
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 3}}})
    after = job.runs_with(3)
    assert not set(before.values()) & set(after.values())
    assert worker_replicas(jobs) == 3
    assert env(launcher(job, start=1))["BATUTA_NUM_PROCS"] == "3"


def test_workers_that_do_not_all_fit_wait_without_holding_anything(jobs: Jobs, mpi_cluster: ControlPlane) -> None:
    """Given too few GPUs for the gang no worker gets one; given enough of them, all do."""
    job = submit(jobs, GPUS + 1, GPUS + 1, ["mpirun"])
    wait_until(lambda: job.status.get("message"), "a word about why it waits")
    assert not job.places()
    added = mpi_cluster.add_nodes(1, NodeShape(gpus=1), prefix="more")
    try:
        job.runs_with(GPUS + 1)
        assert len(set(job.places().values())) == GPUS + 1
    finally:
        mpi_cluster.delete_nodes(added)


def test_an_mpi_job_that_others_change_or_delete_during_a_resize_has_its_size_in_the_end(jobs: Jobs) -> None:
    """Given an MPIJob that somebody else scales, and later deletes, just then, each resize is done."""
    job = submit(jobs, (1, 4), 2, DISCOVERY)
    job.runs_with(2)
    path = f"/apis/kubeflow.org/v2beta1/namespaces/{jobs.namespace}/mpijobs/mpi"
    for size, meddle in ((3, lambda: jobs.api.patch(path, WORKERS_4)), (2, lambda: jobs.api.delete(path))):
        job.patch({"spec": {"replicaSpec": {"targetReplicas": size}}})
        meddle()
        job.runs_with(size)
        # That may be so for a moment before the meddling has an effect.
        wait_until(partial(has_workers, jobs, size), f"the MPIJob to have {size} workers")
        job.runs_with(size)
        assert len(set(job.places().values())) == size
    assert job.status["failures"] == 0


def test_a_tenant_cannot_write_members_of_a_job_into_an_mpijob(mpi_cluster: ControlPlane, jobs: Jobs):
    """The mpi-operator may make pods with the labels of a job: no tenant may have it make them."""
    path = f"/apis/kubeflow.org/v2beta1/namespaces/{jobs.namespace}/mpijobs"
    pod = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    labelled = pod | {"metadata": {"labels": {names.JOB_NAME: "job-of-another"}}}
    body = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "forged"}}

    def spec_with(worker: Json) -> Json:
        replicas = {"Launcher": {"replicas": 1, "template": pod}, "Worker": {"replicas": 1, "template": worker}}
        return {"spec": {"mpiReplicaSpecs": replicas, "runPolicy": {"suspend": True}}}

    with mpi_cluster.api_as("tenant", ["system:masters"]) as tenant:
        tenant.create(f"{path}?dryRun=All", body | spec_with(pod))
        with pytest.raises(ApiError, match="template of a job"):
            tenant.create(f"{path}?dryRun=All", body | spec_with(labelled))
