"""What becomes of a UnifiedJob after a run: it ends, waits for another start, or is given up."""

from pathlib import Path
from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.client import kinds
from batuta.backends.kube.jobtypes.job_type import JobStatus, Observed, Run
from batuta.backends.kube.jobtypes.pods import PODS
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.bootstrap.operator_leader import Leader
from batuta.core import event as ev
from tests.support.kube.offline_cluster import RUNS, OfflineCluster, has_failed, leading
from tests.support.local_replicas import wait_until

WITHIN_S = 60.0


def status(cluster: OfflineCluster) -> dict[str, Any]:
    found = cluster.shown(UNIFIED_JOB)
    return found[0].get("status", {}) if found else {}


def reaches(cluster: OfflineCluster, leader: Leader, state: str) -> dict[str, Any]:
    def is_there() -> bool:
        assert leader.service.running, leader.service.trouble
        return bool(status(cluster).get("state") == state)

    wait_until(is_there, WITHIN_S, what=f"it is {state}")
    return status(cluster)


def told(leader: Leader, kind: type[ev.Event]) -> list[Any]:
    events = (one.event for one in leader.store.journal.read(limit=10_000))
    return [event for event in events if isinstance(event, kind)]


def hears(leader: Leader, kind: type[ev.Event]) -> list[Any]:
    """Waits until the World was told: objects may show it earlier."""
    wait_until(lambda: told(leader, kind), WITHIN_S, what=f"the World hears of {kind.__name__}")
    return told(leader, kind)


def test_a_job_that_failed_more_often_than_it_may_is_given_up(tmp_path: Path) -> None:
    cluster = OfflineCluster(tmp_path)
    cluster.course = (RUNS, has_failed(3))
    with leading(cluster, tmp_path / "state") as leader:
        cluster.submit("resnet", backoffLimit=0)
        found = reaches(cluster, leader, "FAILED")
        (end,) = hears(leader, ev.JobEnded)
    assert found["failures"] == 1
    assert (end.exit_code, "it failed 1 time" in end.detail) == (3, True)


def test_a_job_that_may_fail_waits_before_it_starts_again(tmp_path: Path) -> None:
    cluster = OfflineCluster(tmp_path)
    cluster.course = (RUNS, has_failed(3))
    with leading(cluster, tmp_path / "state") as leader:
        cluster.submit("resnet", backoffLimit=2)
        (event,) = hears(leader, ev.JobInterrupted)
        assert event.not_before_s - event.time_s == pytest.approx(10.0)
        assert event.exit_code == 3
        assert not told(leader, ev.JobEnded)
        wait_until(lambda: not cluster.shown(kinds.POD), WITHIN_S, what="its pods are gone")


def test_a_job_that_is_cancelled_is_over_when_its_pods_are_gone(tmp_path: Path) -> None:
    cluster = OfflineCluster(tmp_path)
    cluster.course = (RUNS,)
    with leading(cluster, tmp_path / "state") as leader:
        cluster.submit("resnet")
        reaches(cluster, leader, "RUNNING")
        cluster.annotate("resnet", **{names.CANCEL: "true"})
        reaches(cluster, leader, "CANCELLED")
        assert cluster.shown(kinds.POD) == []
        assert len(hears(leader, ev.JobEnded)) == 1


def test_the_next_operator_adopts_a_run_and_starts_no_other(tmp_path: Path) -> None:
    cluster = OfflineCluster(tmp_path)
    cluster.course = (RUNS,)
    with leading(cluster, tmp_path / "state") as leader:
        cluster.submit("resnet")
        reaches(cluster, leader, "RUNNING")
        before = [pod["metadata"]["uid"] for pod in cluster.shown(kinds.POD)]
    cluster = OfflineCluster(tmp_path)
    with leading(cluster, tmp_path / "state") as leader:
        hears(leader, ev.JobFound)
        reaches(cluster, leader, "RUNNING")
        assert [pod["metadata"]["uid"] for pod in cluster.shown(kinds.POD)] == before
        assert len(told(leader, ev.JobStarted)) == 1
        cluster.annotate("resnet", **{names.CANCEL: "true"})
        reaches(cluster, leader, "CANCELLED")


def test_an_unexpected_error_is_told_by_the_one_job_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a job type that fails for one job, then that job says so, and the other one is done."""
    status_of = type(PODS).status

    def stumble(self: Any, job: UnifiedJob, run: Run, observed: Observed) -> JobStatus:
        if job.metadata.name == "a":
            raise ZeroDivisionError("a case that was forgotten")
        return status_of(self, job, run, observed)

    monkeypatch.setattr(type(PODS), "status", stumble)
    cluster = OfflineCluster(tmp_path)
    with leading(cluster, tmp_path / "state") as leader:
        cluster.submit("a")
        cluster.submit("b")
        (end,) = hears(leader, ev.JobEnded)
        assert end.job.endswith("/b")
        wait_until(lambda: status(cluster).get("reason") == "OperatorFault", WITHIN_S, what="it says so")
        assert "a case that was forgotten" in status(cluster)["message"]
        assert status(cluster)["state"] != "FAILED"
