from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes import BUILT_IN
from batuta.backends.kube.jobtypes.job_type import JOB, MPI_JOB, POD, ChildKind, Observed, Run
from batuta.backends.kube.jobtypes.writes import Apply, Create, Delete, Patch, Write, next_writes
from batuta.backends.kube.objects import Batch, Pod
from tests.support.unified_jobs import unified_job

PLAIN = {"containers": [{"name": "main", "image": "old"}]}


class Cluster:
    """The children of one job as an API server keeps them. Pods are gone when the test says so."""

    def __init__(self, job_type: str) -> None:
        self.kind, self.job = BUILT_IN[job_type], unified_job(job_type=job_type, pod=PLAIN)
        self.stored: dict[tuple[ChildKind, str], dict[str, Any]] = {}
        self.applied: dict[tuple[ChildKind, str], str] = {}
        self.uids = 0

    def observed(self) -> Observed:
        pods = [msgspec.convert(one, Pod) for (kind, _), one in self.stored.items() if kind is POD]
        jobs = [(kind, msgspec.convert(one, Batch)) for (kind, _), one in self.stored.items() if kind is not POD]
        return Observed(pods, jobs)

    def step(self, run: Run) -> list[Write]:
        """One look and its writes."""
        observed = self.observed()
        children = self.kind.children(self.job, run)
        follow = self.kind.follow(self.job, run, observed)
        writes = next_writes([*children, *follow.children], observed, run, self.applied)
        for write in writes:
            self._carry_out(write)
        return writes

    def settle(self, run: Run) -> None:
        """Looks and writes until there is nothing to write, as the operator does. Deleted pods go at once."""
        for _ in range(20):
            self.finish_deletions()
            if not self.step(run):
                return
        raise AssertionError("it never settles")

    def finish_deletions(self) -> None:
        self.stored = {key: one for key, one in self.stored.items() if not one["metadata"].get("deletionTimestamp")}

    def pods(self) -> list[str]:
        return sorted(name for kind, name in self.stored if kind is POD)

    def _carry_out(self, write: Write) -> None:
        match write:
            case Create(child):
                assert (child.kind, child.name) not in self.stored, f"{child.name} is there already"
                self.uids += 1
                one = msgspec.json.decode(msgspec.json.encode(child.manifest))
                one["metadata"]["uid"] = str(self.uids)
                self.stored[child.kind, child.name] = one
            case Apply(child):
                self.applied[child.kind, child.name] = child.hash
            case Patch(kind, name, body):
                _merge(self.stored[kind, name], body)
            case Delete(kind, name, uid):
                meta = self.stored[kind, name]["metadata"]
                assert meta["uid"] == uid
                meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def _merge(into: dict[str, Any], body: dict[str, Any]) -> None:
    for key, value in body.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


@pytest.mark.parametrize("job_type", ["Pods", "TorchElastic", "ElasticHorovod", "Job"])
def test_a_job_settles_at_its_target_and_then_nothing_is_written(job_type: str) -> None:
    cluster = Cluster(job_type)
    cluster.settle(Run(2))
    assert cluster.step(Run(2)) == []
    expected = [] if job_type == "Job" else ["resnet-0", "resnet-1"]
    assert cluster.pods() == expected


def test_growing_in_place_only_adds() -> None:
    cluster = Cluster("TorchElastic")
    cluster.settle(Run(2, first=2, ceiling=8))
    before = {name: cluster.stored[POD, name]["metadata"]["uid"] for name in cluster.pods()}
    writes = cluster.step(Run(4, first=2, ceiling=8))
    assert [type(write) for write in writes] == [Create, Create]
    assert len(cluster.pods()) == 4
    assert all(cluster.stored[POD, name]["metadata"]["uid"] == uid for name, uid in before.items())


def test_nothing_of_a_new_start_is_created_while_an_old_member_is_still_saving() -> None:
    cluster = Cluster("TorchElastic")
    cluster.settle(Run(4, start=0))
    writes = cluster.step(Run(2, start=1))
    assert [type(write) for write in writes] == [Delete] * 4
    assert cluster.step(Run(2, start=1)) == [], "they are going, and are not deleted twice"
    cluster.finish_deletions()
    assert [type(write) for write in cluster.step(Run(2, start=1))] == [Create, Create]
    assert {one["metadata"]["labels"][names.START] for one in cluster.stored.values()} == {"1"}


def test_a_preempted_job_has_no_pods_and_comes_back() -> None:
    cluster = Cluster("Pods")
    cluster.settle(Run(2, start=0))
    cluster.settle(Run(0, start=0))
    assert cluster.pods() == []
    cluster.settle(Run(1, start=1))
    assert cluster.pods() == ["resnet-0"]


def test_a_horovod_worker_leaves_the_list_of_hosts_before_it_is_deleted() -> None:
    cluster = Cluster("ElasticHorovod")
    cluster.settle(Run(3, first=3, ceiling=8))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in cluster.pods():
        cluster.stored[POD, name]["status"] = ready
    cluster.settle(Run(3, first=3, ceiling=8))
    assert [type(one) for one in cluster.step(Run(2, first=3, ceiling=8))] == [Apply]
    (deleted,) = cluster.step(Run(2, first=3, ceiling=8))
    assert isinstance(deleted, Delete)
    assert deleted.name == "resnet-2"


def test_a_failed_member_is_left_for_everyone_to_see_until_the_next_start() -> None:
    cluster = Cluster("Pods")
    cluster.settle(Run(2))
    cluster.stored[POD, "resnet-1"]["status"] = {"phase": "Failed"}
    assert cluster.step(Run(2)) == []
    cluster.settle(Run(2, start=1))
    assert all("status" not in one for (kind, _), one in cluster.stored.items() if kind is POD)


def test_a_job_is_suspended_left_to_end_and_resumed_at_its_new_size() -> None:
    cluster = Cluster("Job")
    cluster.settle(Run(2, start=0))
    stored = cluster.stored[JOB, "resnet"]
    stored["status"] = {"active": 2, "startTime": "2026-01-01T00:00:00Z"}
    (halt,) = cluster.step(Run(4, start=1))
    assert isinstance(halt, Patch)
    assert halt.body == {"spec": {"suspend": True}}
    assert cluster.step(Run(4, start=1)) == [], "its pods are still there"
    stored["status"] = {}
    (resume,) = cluster.step(Run(4, start=1))
    assert isinstance(resume, Patch)
    assert (stored["spec"]["suspend"], stored["spec"]["parallelism"], stored["spec"]["completions"]) == (
        False,
        4,
        4,
    )
    assert stored["metadata"]["labels"][names.START] == "1"
    assert cluster.step(Run(4, start=1)) == []


def test_a_preempted_job_is_suspended_and_a_waiting_one_not_even_created() -> None:
    cluster = Cluster("Job")
    cluster.settle(Run(0))
    assert (JOB, "resnet") not in cluster.stored
    cluster.settle(Run(2))
    cluster.settle(Run(0))
    assert cluster.stored[JOB, "resnet"]["spec"]["suspend"] is True
    cluster.settle(Run(2, start=1))
    assert cluster.stored[JOB, "resnet"]["spec"]["suspend"] is False


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "Failed", "status": "True"}]},
        {"succeeded": 1},
    ],
)
def test_a_job_that_cannot_run_again_as_a_whole_is_replaced(status: dict[str, Any]) -> None:
    cluster = Cluster("Job")
    cluster.settle(Run(2))
    cluster.stored[JOB, "resnet"]["status"] = status
    assert cluster.step(Run(2)) == [], "it tells how the run went"
    (delete,) = cluster.step(Run(2, start=1))
    assert isinstance(delete, Delete)
    cluster.settle(Run(2, start=1))
    assert "status" not in cluster.stored[JOB, "resnet"]


def test_a_job_whose_template_was_changed_is_replaced() -> None:
    cluster = Cluster("Job")
    cluster.settle(Run(2))
    cluster.job = unified_job(job_type="Job", pod={"containers": [{"name": "main", "image": "new"}]})
    (delete,) = cluster.step(Run(2, start=1))
    assert isinstance(delete, Delete)


def test_an_mpi_job_is_resized_as_it_is_and_replaced_for_another_start() -> None:
    cluster = Cluster("MPIJob")
    cluster.settle(Run(2))
    (resize,) = cluster.step(Run(3))
    assert isinstance(resize, Patch)
    assert resize.body["spec"] == {"mpiReplicaSpecs": {"Worker": {"replicas": 3}}}
    assert cluster.step(Run(3)) == []
    (delete,) = cluster.step(Run(4, start=1))
    assert isinstance(delete, Delete)
    assert delete.propagation == "Foreground", "it is there until its pods are gone"
    assert cluster.step(Run(4, start=1)) == []
    cluster.settle(Run(4, start=1))
    assert cluster.stored[MPI_JOB, "resnet"]["metadata"]["labels"][names.START] == "1"
    cluster.settle(Run(0, start=1))
    assert (MPI_JOB, "resnet") not in cluster.stored


def test_the_pods_of_another_controller_are_left_to_it() -> None:
    cluster = Cluster("Job")
    cluster.settle(Run(1))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "resnet", "uid": "1", "controller": True}
    labels = {names.START: "0", names.ROLE: "worker"}
    cluster.stored[POD, "resnet-0-x"] = {
        "metadata": {"name": "resnet-0-x", "uid": "9", "labels": labels, "ownerReferences": [owner]}
    }
    (halt,) = cluster.step(Run(2, start=1))
    assert isinstance(halt, Patch)


@pytest.mark.parametrize(
    ("job_type", "kind", "theirs"),
    [
        ("Job", JOB, {"suspend": True}),
        ("Job", JOB, {"parallelism": 1}),
        ("MPIJob", MPI_JOB, {"mpiReplicaSpecs": {"Worker": {"replicas": 7}}}),
    ],
)
def test_what_others_have_made_of_a_child_is_put_right(job_type: str, kind: ChildKind, theirs: Any) -> None:
    """Given a child that somebody else has suspended or scaled, one patch makes it what it was."""
    cluster, run = Cluster(job_type), Run(2)
    cluster.settle(run)
    spec = cluster.stored[kind, cluster.job.metadata.name]["spec"]
    before = msgspec.json.encode(spec)
    _merge(spec, theirs)
    (write,) = cluster.step(run)
    assert isinstance(write, Patch)
    cluster.settle(run)
    assert msgspec.json.encode(cluster.stored[kind, cluster.job.metadata.name]["spec"]) == before
