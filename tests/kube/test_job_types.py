"""Job types in a real cluster: the Job controller and garbage collection have their say."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes import BUILT_IN
from batuta.backends.kube.jobtypes.job_type import (
    JOB,
    POD,
    SERVICE,
    ChildKind,
    JobStatus,
    Observed,
    Outcome,
    Run,
)
from batuta.backends.kube.jobtypes.writes import Apply, Create, Delete, Patch, Write, next_writes
from batuta.backends.kube.objects import Batch, Pod
from batuta.backends.kube.unified_job.model import UnifiedJob
from tests.kube.test_unified_job_crd import CRD
from tests.support.kube.api import ApiError
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.mpi_operator import PROGRAM, start_mpi_operator
from tests.support.kube.nodes import NodeShape
from tests.support.kube.programs import why_not
from tests.support.unified_jobs import manifest, read

Carry = Callable[..., "Carried"]


class Carried:
    """One job that is carried out by hand: what the operator does, without its decisions."""

    def __init__(self, cluster: ControlPlane, namespace: str, node: str, job_type: str, **pod: Any) -> None:
        self.api, self.cluster, self.namespace, self.node = cluster.api, cluster, namespace, node
        self.jobs = f"/apis/batuta.dev/v1alpha1/namespaces/{namespace}/unifiedjobs"
        body = manifest(namespace=namespace, job_type=job_type, pod={"terminationGracePeriodSeconds": 1})
        body["spec"]["replicaSpec"]["template"]["metadata"]["annotations"] |= pod
        self.job: UnifiedJob = read(self.api.create(self.jobs, body))
        self.kind = BUILT_IN[job_type]
        self.applied: dict[tuple[ChildKind, str], str] = {}

    def observed(self) -> Observed:
        label = f"{names.JOB_NAME}={self.job.metadata.name}"
        pods = self.api.items(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=label)
        objects = [
            (kind, msgspec.convert(one, Batch))
            for kind in self.kind.watches
            for one in self.api.items(self.path(kind), labelSelector=label)
        ]
        return Observed([msgspec.convert(one, Pod) for one in pods], objects)

    def step(self, run: Run) -> Observed:
        """One look, its writes, and a node for every pod that has none."""
        observed = self.observed()
        children = self.kind.children(self.job, run)
        follow = self.kind.follow(self.job, run, observed)
        for write in next_writes([*children, *follow.children], observed, run, self.applied):
            self.carry_out(write)
        for pod in observed.pods:
            if not pod.spec.node_name and not pod.metadata.deletion_timestamp:
                assert pod.spec.scheduler_name == names.SCHEDULER
                # It may have been bound or deleted since it was looked at.
                with suppress(ApiError):
                    self.cluster.bind(self.namespace, pod.metadata.name, to=self.node)
        return observed

    def reach(self, run: Run) -> Observed:
        """Steps until all members of the run are ready."""

        def look() -> Observed | None:
            observed = self.step(run)
            return observed if self.kind.status(self.job, run, observed).ready == run.target else None

        found = wait_until(look, f"{run} to be ready")
        assert found is not None
        return found

    def ends(self, run: Run) -> JobStatus:
        """Steps until the run is over."""

        def look() -> JobStatus | None:
            found = self.kind.status(self.job, run, self.step(run))
            return found if found.outcome is not Outcome.RUNNING else None

        found = wait_until(look, f"{run} to end")
        assert found is not None
        return found

    def carry_out(self, write: Write) -> None:
        match write:
            case Create(child):
                self.api.create(self.path(child.kind), child.manifest)
            case Apply(child):
                self.cluster.apply(child.manifest)
                self.applied[child.kind, child.name] = child.hash
            case Patch(kind, name, body):
                self.api.patch(f"{self.path(kind)}/{name}", body)
            case Delete(kind, name, uid):
                self.delete(f"{self.path(kind)}/{name}", uid, write.propagation)

    def delete(self, path: str, uid: str, propagation: str) -> None:
        """The object with this uid, if it is still there."""
        body = {"propagationPolicy": propagation, "preconditions": {"uid": uid}}
        try:
            self.api.request("DELETE", path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def path(self, kind: ChildKind) -> str:
        root = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{kind.plural}"


@pytest.fixture
def carry(cluster: ControlPlane, namespace: str, add_nodes: Any) -> Carry:
    cluster.install_crds(CRD)
    (node,) = add_nodes(1, NodeShape(gpus=64))

    def make(job_type: str, **annotations: str) -> Carried:
        keys = {f"tests.batuta.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        return Carried(cluster, namespace, node, job_type, **keys)

    return make


def replicas(job: Carried, observed: Observed) -> list[int]:
    found = (job.kind.replica_of(pod) for pod in observed.pods)
    return sorted(index for index in found if index is not None)


def starts(observed: Observed) -> set[str]:
    return {pod.metadata.labels[names.START] for pod in observed.pods}


@pytest.mark.parametrize("job_type", ["Job", "Pods", "TorchElastic", "ElasticHorovod"])
def test_a_job_starts_gives_its_nodes_back_and_starts_again_at_another_size(carry: Carry, job_type: str) -> None:
    job = carry(job_type)
    job.reach(Run(2, start=0))
    wait_until(lambda: not job.step(Run(0, start=0)).pods, "all pods to be gone")
    observed = job.reach(Run(3, start=1))
    assert starts(observed) == {"1"}
    assert replicas(job, observed) == [0, 1, 2]


@pytest.mark.parametrize("job_type", ["Job", "Pods", "TorchElastic"])
def test_a_running_job_is_restarted_at_another_size(carry: Carry, job_type: str) -> None:
    job = carry(job_type)
    first = job.reach(Run(4, start=0))
    second = job.reach(Run(2, start=1))
    assert starts(second) == {"1"}
    assert not {pod.metadata.uid for pod in first.pods} & {pod.metadata.uid for pod in second.pods}


def test_a_resized_job_is_the_same_job_and_its_pods_know_their_number(carry: Carry) -> None:
    job = carry("Job")
    ((_, before),) = job.reach(Run(4, start=0)).objects
    observed = job.reach(Run(2, start=1))
    ((_, after),) = observed.objects
    assert before.metadata.uid == after.metadata.uid
    assert {pod.metadata.annotations["batuta.dev/replicas"] for pod in observed.pods} == {"2"}


@pytest.mark.parametrize(("job_type", "sizes"), [("TorchElastic", (2, 4)), ("ElasticHorovod", (4, 2))])
def test_members_that_stay_are_not_touched_by_a_change_in_place(
    carry: Carry, job_type: str, sizes: tuple[int, int]
) -> None:
    job, (before, after) = carry(job_type), sizes
    first = job.reach(Run(before, first=before, ceiling=8))
    run = Run(after, first=before, ceiling=8)
    job.reach(run)
    wait_until(lambda: _workers(job.step(run)) == after, "the new size")
    observed = job.observed()
    old = {pod.metadata.name: pod.metadata.uid for pod in first.pods}
    new = {pod.metadata.name: pod.metadata.uid for pod in observed.pods}
    staying = set(old) & set(new)
    assert len(staying) >= min(sizes)
    assert all(old[name] == new[name] for name in staying)


@pytest.fixture(scope="module")
def mpi_operator(cluster: ControlPlane) -> Iterator[ControlPlane]:
    """The shared control plane with mpi-operator beside it."""
    if (problem := why_not([PROGRAM])) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no mpi-operator: {problem}")
    start_mpi_operator(cluster)
    yield cluster
    cluster.programs.stop(PROGRAM)


def test_mpi_operator_runs_a_job_at_one_size_and_then_at_another(mpi_operator: Any, carry: Carry) -> None:
    job = carry("MPIJob")
    first = job.reach(Run(2, start=0))
    assert replicas(job, first) == [0, 1]
    second = job.reach(Run(3, start=1))
    assert replicas(job, second) == [0, 1, 2]
    assert starts(second) == {"1"}
    launcher = wait_until(lambda: launchers(job, Run(3, start=1)), "the launcher to be started")
    env = {one["name"]: one.get("value") for one in launcher[0]["spec"]["containers"][0]["env"]}
    assert (env["BATUTA_NUM_PROCS"], env["BATUTA_RESTART"]) == ("3", "1")
    wait_until(lambda: not job.step(Run(0, start=1)).pods, "all pods to be gone")


def test_the_end_of_an_mpi_launcher_is_the_end_of_the_job(mpi_operator: Any, carry: Carry) -> None:
    job = carry("MPIJob", fails_after="3s", exit_code="7")
    found = job.ends(Run(1))
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 7)


def test_a_launcher_that_looks_up_its_hosts_sees_them_come_without_a_restart(mpi_operator: Any, carry: Carry) -> None:
    job = carry("MPIJob")
    job.job.spec.replica_spec.template["spec"]["containers"][0]["args"] = ["/etc/mpi/discover_hosts.sh"]
    first = job.reach(Run(2, first=2, ceiling=8))
    second = job.reach(Run(3, first=2, ceiling=8))
    before = {pod.metadata.uid for pod in first.pods}
    assert before <= {pod.metadata.uid for pod in second.pods}
    assert replicas(job, second) == [0, 1, 2]


def launchers(job: Carried, run: Run) -> list[dict[str, Any]]:
    """The launcher's pod as the API server has it, once mpi-operator has made it."""
    job.step(run)
    selector = f"{names.JOB_NAME}={job.job.metadata.name},{names.ROLE}=launcher"
    return job.api.items(job.path(POD), labelSelector=selector)


def _workers(observed: Observed) -> int:
    return sum(pod.metadata.labels[names.ROLE] == "worker" for pod in observed.pods)


@pytest.mark.parametrize("job_type", ["Job", "Pods", "TorchElastic"])
def test_a_job_whose_members_all_end_well_has_succeeded(carry: Carry, job_type: str) -> None:
    assert carry(job_type, runs_for="100ms").ends(Run(2)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("job_type", ["Job", "Pods", "TorchElastic", "ElasticHorovod"])
def test_a_job_that_fails_tells_its_exit_code_and_can_be_started_again(carry: Carry, job_type: str) -> None:
    job = carry(job_type, fails_after="100ms", exit_code="3")
    found = job.ends(Run(2, start=0))
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 3)
    again = job.ends(Run(2, start=1))
    assert again.outcome is Outcome.FAILED


def test_everything_goes_with_the_job(carry: Carry) -> None:
    job = carry("ElasticHorovod")
    job.reach(Run(2))
    job.api.delete(f"{job.jobs}/{job.job.metadata.name}")
    label = f"{names.JOB_NAME}={job.job.metadata.name}"
    for kind in (POD, JOB, SERVICE):

        def is_empty(path: str = job.path(kind)) -> bool:
            return not job.api.items(path, labelSelector=label)

        wait_until(is_empty, f"{kind.plural} to be gone")
