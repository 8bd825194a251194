"""Ranks that hold a job up on a cluster: the job goes on without their node, which is suspect then."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.backends.kube import names
from tests.kube.cli.fake_kubelet import FakeKubelet
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.health import Ward, pool
from tests.support.kube.unified import Jobs, Submitted


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(tmp_path / "kubelet") as running:
        yield running


class Script:
    """Replica 0 of a job, which reports for all its ranks."""

    def __init__(self, kubelet: FakeKubelet, job: Submitted) -> None:
        self._kubelet, self._job, self._step = kubelet, job, 0

    def steps(self, count: int, own_s: list[float], each_s: float = 0.02) -> None:
        for _ in range(count):
            self._step += 1
            said = {"step": self._step, "total_steps": 1_000_000, "own_s": own_s}
            line = f"{names.REPORT_PREFIX}{json.dumps(said)}\n"
            self._kubelet.print(self._job.jobs.namespace, f"{self._job.name}-0", line)
            time.sleep(each_s)


def node_of(job: Submitted, replica: int) -> str:
    return job.places()[f"{job.name}-{replica}"][0]


def test_a_job_leaves_the_node_of_a_rank_that_is_twice_as_slow(
    jobs: Jobs, ward: Ward, add_nodes, kubelet: FakeKubelet, cluster: ControlPlane
):
    """Given 20 steps in which one of four ranks is slow, the job moves, and its node is suspect."""
    nodes = add_nodes(5, pool(jobs.namespace))
    kubelet.serve(cluster, nodes)
    job = jobs.submit("train", replicas=4, annotations={names.CHECKPOINT: "10"})
    job.runs_with(4)
    slow = node_of(job, 2)
    script = Script(kubelet, job)
    script.steps(10, [0.2, 0.2, 0.2, 0.2])
    script.steps(20, [0.2, 0.2, 0.4, 0.2])
    wait_until(lambda: {node for node, _ in job.places().values()} == set(nodes) - {slow}, "a move", 30)
    job.runs_with(4)
    ward.becomes(slow, "suspect")
    assert ward.shown(slow)["node"]["reason"] == "jobs run slower here than elsewhere"
    # One job may be wrong about a node: others may still go there.
    assert ward.taint(slow) is None


def test_a_job_that_hangs_begins_again(jobs: Jobs, ward: Ward, add_nodes, kubelet: FakeKubelet, cluster: ControlPlane):
    """Given a job that used to report and says nothing any more, it is restarted."""
    kubelet.serve(cluster, add_nodes(2, pool(jobs.namespace)))
    job = jobs.submit("train", replicas=2, annotations={names.CHECKPOINT: "10"})
    job.patch({"metadata": {"labels": {"batuta.dev/hang-after": "3s"}}})
    job.runs_with(2)
    Script(kubelet, job).steps(10, [0.2, 0.2], each_s=0.05)
    wait_until(lambda: job.starts() == {"1"}, "the next start", 40)
    job.runs_with(2)
