"""Jobs that fail: of their GPU, of something that they tell themselves, or by their own doing."""

import time

from tests.support.kube.control_plane import wait_until
from tests.support.kube.health import Ward, pool
from tests.support.kube.unified import Jobs


def crash(jobs: Jobs, pod: str) -> None:
    """A pod's program dies, as with a GPU that is gone."""
    ended = {"exitCode": 139, "reason": "Error", "finishedAt": "2026-01-02T03:04:05Z"}
    status = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    body = {"phase": "Failed", "containerStatuses": [{**status, "state": {"terminated": ended}}]}
    jobs.api.patch(f"{jobs.pods_path}/{pod}/status", {"status": body})


def test_a_job_that_dies_before_anybody_heard_of_its_gpu_is_not_to_blame(jobs: Jobs, ward: Ward, add_nodes):
    """Given a job that may not fail once, when a pod dies and the agent tells why a bit later, it moves."""
    nodes = add_nodes(5, pool(jobs.namespace))
    job = jobs.submit("train", replicas=4, backoffLimit=0)
    job.runs_with(4)
    pod, (victim, _) = min(job.places().items())

    began_s = time.monotonic()
    crash(jobs, pod)
    time.sleep(1.0)
    ward.note(victim, 79)
    wait_until(lambda: {node for node, _ in job.places().values()} == set(nodes) - {victim}, "the job to move", 30)
    job.runs_with(4)
    assert time.monotonic() - began_s < 20
    assert job.status["failures"] == 0
    assert ward.is_shut(victim) == "Xid-79"


def test_what_a_pod_says_before_it_fails_is_understood(jobs: Jobs, ward: Ward, add_nodes):
    """Given a job that cannot find its GPU, it has three more tries, and then it has failed."""
    (node,) = add_nodes(1, pool(jobs.namespace))
    words = "RuntimeError: CUDA error: invalid device ordinal"
    # Each time after more than a second, or it would be the same incident.
    how = {"fails_after": "1500ms", "exit_code": 1, "last_words": words}
    job = jobs.submit("train", replicas=1, backoffLimit=0, pod=how)
    status = job.reaches("FAILED", within_s=90)
    assert (status["failures"], status["run"]["start"]) == (1, 3)
    assert "invalid device ordinal" in status["message"]
    # It proves little against the GPU: the same in three different jobs would.
    assert ward.taint(node) is None
    gpus = ward.shown(node)["gpus"]
    assert gpus["0"]["state"] == "suspect"
    assert "a GPU that the job was given is not there" in gpus["0"]["reason"]


def test_a_job_that_fails_by_itself_has_failed(jobs: Jobs, ward: Ward, add_nodes):
    """Given a program with a bug, nobody makes excuses for it."""
    (node,) = add_nodes(1, pool(jobs.namespace))
    how = {"fails_after": "200ms", "exit_code": 3, "last_words": "KeyError: 'loss'"}
    job = jobs.submit("train", replicas=1, backoffLimit=0, pod=how)
    status = job.reaches("FAILED", within_s=30)
    assert (status["failures"], status["run"]["start"]) == (1, 0)
    assert "KeyError: 'loss'" in status["message"]
    assert ward.shown(node) == {}
