from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes import BUILT_IN
from batuta.backends.kube.jobtypes.job_type import JOB, MPI_JOB, JobStatus, Observed, Outcome, Run
from batuta.backends.kube.objects import (
    Batch,
    Condition,
    ContainerState,
    ContainerStatus,
    Meta,
    Pod,
    PodStatus,
    Terminated,
)
from tests.support.unified_jobs import unified_job

READY = Condition(type="Ready", status="True")
DISRUPTED = Condition(type="DisruptionTarget", status="True")


def pod(phase: str, index: int = 0, *, start: int = 0, role: str = "worker", **more: Any) -> Pod:
    meta = Meta(
        name=f"resnet-{index}",
        labels={names.START: str(start), names.ROLE: role, names.REPLICA_INDEX: str(index)},
        deletion_timestamp=more.pop("deleted", ""),
    )
    code = more.pop("code", None)
    ended = Terminated(exit_code=code, finished_at=more.pop("at", ""), message=more.pop("said", ""))
    status = ContainerStatus(state=ContainerState(terminated=ended)) if code is not None else None
    return Pod(
        metadata=meta,
        status=PodStatus(phase=phase, container_statuses=[status] if status else [], **more),
    )


def status(job_type: str, run: Run, *pods: Pod, batch: tuple[Any, Batch] | None = None) -> JobStatus:
    observed = Observed(pods, [batch] if batch else [])
    return BUILT_IN[job_type].status(unified_job(job_type=job_type), run, observed)


def batch(kind: Any, condition: str, start: int = 0) -> tuple[Any, Batch]:
    said = {"type": condition, "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}
    return kind, Batch(metadata=Meta(labels={names.START: str(start)}), status={"conditions": [said]})


@pytest.mark.parametrize("job_type", ["Pods", "TorchElastic"])
def test_a_run_counts_its_members_and_those_ready(job_type: str) -> None:
    found = status(job_type, Run(3), pod("Running", 0, conditions=[READY]), pod("Running", 1), pod("Pending", 2))
    assert (found.replicas, found.ready, found.outcome) == (3, 1, Outcome.RUNNING)


def test_members_of_another_start_are_not_counted() -> None:
    found = status("Pods", Run(1, start=2), pod("Failed", start=1, code=1), pod("Running", start=2))
    assert (found.replicas, found.outcome) == (1, Outcome.RUNNING)


def test_a_run_has_succeeded_when_all_members_have() -> None:
    assert status("Pods", Run(2), pod("Succeeded", 0), pod("Running", 1)).outcome is Outcome.RUNNING
    assert status("Pods", Run(2), pod("Succeeded", 0), pod("Succeeded", 1)).outcome is Outcome.SUCCEEDED


def test_the_member_that_failed_first_is_the_one_to_blame() -> None:
    found = status(
        "TorchElastic",
        Run(3),
        pod("Failed", 0, code=134, at="2026-01-01T00:00:09Z"),
        pod("Failed", 1, code=1, at="2026-01-01T00:00:01Z", said="CUDA out of memory"),
        pod("Running", 2),
    )
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 1)
    assert found.message == "pod resnet-1 ended with exit code 1: CUDA out of memory"


@pytest.mark.parametrize("how", [{"conditions": [DISRUPTED]}, {"reason": "Evicted"}, {"reason": "NodeLost"}])
def test_a_pod_that_the_cluster_ended_is_not_the_jobs_fault(how: dict[str, Any]) -> None:
    assert status("Pods", Run(1), pod("Failed", code=137, **how)).outcome is Outcome.DISRUPTED


def test_a_failure_of_the_jobs_own_counts_beside_a_disruption() -> None:
    found = status("Pods", Run(2), pod("Failed", 0, conditions=[DISRUPTED]), pod("Failed", 1, code=2))
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 2)


def test_a_pod_that_ends_because_it_is_deleted_has_not_failed() -> None:
    found = status("Pods", Run(1), pod("Failed", code=143, deleted="2026-01-01T00:00:00Z"))
    assert (found.outcome, found.replicas) == (Outcome.RUNNING, 0)


@pytest.mark.parametrize(
    ("job_type", "kind", "role"),
    [("Job", JOB, "worker"), ("MPIJob", MPI_JOB, "launcher"), ("ElasticHorovod", JOB, "launcher")],
)
def test_where_a_controller_runs_it_its_word_counts(job_type: str, kind: Any, role: str) -> None:
    word = "Succeeded" if kind is MPI_JOB else "Complete"
    assert status(job_type, Run(1), batch=batch(kind, word)).outcome is Outcome.SUCCEEDED
    assert status(job_type, Run(1, start=1), batch=batch(kind, word)).outcome is Outcome.RUNNING
    failed = status(job_type, Run(1), pod("Failed", role=role, code=3), batch=batch(kind, "Failed"))
    assert (failed.outcome, failed.exit_code) == (Outcome.FAILED, 3)
    silent = status(job_type, Run(1), batch=batch(kind, "Failed"))
    assert silent.message == "BackoffLimitExceeded: too often"
    lost = status(job_type, Run(1), pod("Failed", role=role, conditions=[DISRUPTED]), batch=batch(kind, "Failed"))
    assert lost.outcome is Outcome.DISRUPTED


def test_a_horovod_worker_that_fails_does_not_end_the_job() -> None:
    found = status("ElasticHorovod", Run(2), pod("Failed", 0, code=1), pod("Running", 1, conditions=[READY]))
    assert (found.outcome, found.ready) == (Outcome.RUNNING, 1)


@pytest.mark.parametrize(
    ("job_type", "labels", "replica"),
    [
        ("Pods", {names.REPLICA_INDEX: "3"}, 3),
        ("Job", {"batch.kubernetes.io/job-completion-index": "4"}, 4),
        ("MPIJob", {"training.kubeflow.org/replica-index": "5"}, 5),
        ("MPIJob", {"training.kubeflow.org/replica-index": "0", names.ROLE: "launcher"}, None),
        ("ElasticHorovod", {names.ROLE: "launcher"}, None),
        ("Pods", {names.REPLICA_INDEX: "x"}, None),
    ],
)
def test_which_replica_a_pod_is(job_type: str, labels: dict[str, str], replica: int | None) -> None:
    assert BUILT_IN[job_type].replica_of(Pod(metadata=Meta(labels=labels))) == replica
