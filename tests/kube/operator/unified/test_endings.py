"""How jobs end, and what is left of them."""

import time
from itertools import pairwise

import pytest

from tests.kube.operator.conftest import RESTART_BACKOFF_S
from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import USER


@pytest.mark.parametrize("job_type", ["TorchElastic", "Job", "Pods"])
def test_a_job_that_fails_too_often_says_how(jobs, add_nodes, job_type):
    """Given no second chance, a member's exit code ends the job, and its GPUs are free."""
    add_nodes(1, NodeShape(gpus=2))
    how = {"fails_after": "500ms", "exit_code": 3}
    job = jobs.submit("train", job_type, replicas=2, backoffLimit=0, pod=how)
    status = job.reaches("FAILED")
    assert status["failures"] == 1
    assert "exit code 3" in status["message"]
    assert job.condition("Failed")["status"] == "True"
    wait_until(lambda: not job.workers(), "its pods to be over")
    assert "exit code 3" in job.events()["Failed"][0]


def test_a_job_that_fails_waits_before_it_starts_again_and_longer_each_time(jobs, add_nodes, cluster):
    """Given two more chances, the pause before the first is the configured one, and then twice that."""
    add_nodes(1, NodeShape(gpus=1))
    mark = cluster.requests.mark()
    job = jobs.submit("train", backoffLimit=2, pod={"fails_after": "200ms", "exit_code": 3})
    said = wait_until(lambda: job.status if job.status.get("reason") == "RestartBackoff" else {}, "its pause")
    assert "exit code 3" in said["message"]
    status = job.reaches("FAILED")
    assert (status["failures"], status["run"]["start"]) == (3, 2)
    # When pods were made, by the clock of the API server.
    made_s = [
        one.at_s
        for one in cluster.requests.since(mark, USER)
        if (one.verb, one.resource, one.namespace) == ("create", "pods", jobs.namespace)
    ]
    pauses_s = [after_s - before_s for before_s, after_s in pairwise(made_s)]
    assert len(pauses_s) == 2
    assert pauses_s[0] >= RESTART_BACKOFF_S
    assert pauses_s[1] >= 2 * RESTART_BACKOFF_S
    assert sum(pauses_s) < 30.0  # the least with the default


def test_an_evicted_pod_is_no_failure(jobs, add_nodes):
    """Given a pod that the kubelet evicts, the job starts again, though it may not fail even once."""
    add_nodes(1, NodeShape(gpus=2))
    job = jobs.submit("train", replicas=2, backoffLimit=0)
    first = min(job.runs_with(2))
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}
    jobs.api.patch(f"{jobs.pods_path}/{first}/status", {"status": evicted})
    wait_until(lambda: job.starts() == {"1"}, "the next start")
    job.runs_with(2)
    assert job.status["failures"] == 0
    assert any("Evicted" in note for note in job.events()["Interrupted"])


def test_a_job_that_runs_too_long_fails(jobs, add_nodes):
    """Given a deadline, the job fails when it has run so long, and its pods are gone."""
    add_nodes(1, NodeShape(gpus=1))
    job = jobs.submit("train", activeDeadlineSeconds=2)
    ended = job.reaches("FAILED")
    assert ("activeDeadlineSeconds" in ended["message"], ended["reason"]) == (True, "DeadlineExceeded")
    wait_until(lambda: not job.workers(), "its pods to be gone")


def test_a_finished_job_is_deleted_when_its_time_has_come(jobs, add_nodes):
    """Given a time to live of one second, the job and its pods are gone soon after it is done."""
    add_nodes(1, NodeShape(gpus=1))
    job = jobs.submit("train", pod={"runs_for": "100ms"}, ttlSecondsAfterFinished=1)
    wait_until(job.is_gone, "the job to be deleted")
    wait_until(lambda: not job.pods(), "its pods to be deleted")


def test_a_job_can_be_deleted_and_made_again_under_the_same_name(jobs, add_nodes):
    """Given a job that replaces another at once, it runs with pods of its own."""
    add_nodes(1, NodeShape(gpus=2))
    job = jobs.submit("train", replicas=2)
    before = job.runs_with(2)
    jobs.api.delete(job.path)
    again = jobs.submit("train", replicas=2)
    wait_until(lambda: again.status.get("state") == "RUNNING", "the new one to run")
    after = again.runs_with(2)
    assert not set(before.values()) & set(after.values())
    assert again.starts() == {"0"}


def test_jobs_of_other_operators_are_left_alone(jobs, add_nodes):
    """Given a job that another operator manages, nothing is written on it, and nothing is made for it."""
    add_nodes(1, NodeShape(gpus=1))
    other = jobs.submit("other", managedBy="example.com/operator")
    jobs.submit("ours").runs_with(1)
    time.sleep(0.5)  # nothing happens, which cannot be waited for
    assert "status" not in other.get()
    assert not other.pods()
