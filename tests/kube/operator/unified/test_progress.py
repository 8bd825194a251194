"""What scripts report in their logs is in the status of their jobs, and they are asked before they end."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.backends.kube import names
from tests.kube.cli.fake_kubelet import FakeKubelet
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess
from tests.support.kube.unified import Jobs, Submitted


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(tmp_path / "kubelet") as running:
        yield running


class Script:
    """The script of a job's replica 0, as the SDK speaks for it."""

    def __init__(self, kubelet: FakeKubelet, job: Submitted) -> None:
        self.job, self._kubelet = job, kubelet

    def say(self, **report: object) -> None:
        self.print(names.REPORT_PREFIX + json.dumps(report))

    def print(self, line: str) -> None:
        self._kubelet.print(self.job.jobs.namespace, f"{self.job.name}-0", f"{line}\n")

    def shows(self, **wanted: object) -> None:
        """Waits until its status says so."""

        def look() -> bool:
            status = self.job.status
            said = {"progress": status.get("progress"), **status.get("trainerStatus", {})}
            return wanted.items() <= said.items()

        try:
            wait_until(look, f"{self.job.name} to show {wanted}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {self.job.status}") from None


def succeed(job: Submitted) -> None:
    """All its pods have done their work."""
    for name in job.running():
        job.jobs.api.patch(f"{job.jobs.pods_path}/{name}/status", {"status": {"phase": "Succeeded"}})


def test_progress_is_shown_whatever_else_the_script_prints_and_the_result_is_there_at_the_end(
    jobs: Jobs, add_nodes: AddNodes, kubelet: FakeKubelet, cluster: ControlPlane, operator: OperatorProcess
) -> None:
    """Given reports between noise and lies, the status has the honest ones, and with the end the result."""
    kubelet.serve(cluster, add_nodes(1, NodeShape(gpus=2)))
    job = jobs.submit("train", "Pods", replicas=2, pod={"runs_for": "3600s"})
    job.runs_with(2)
    script = Script(kubelet, job)
    script.say(step=10, total_steps=100, loss=0.75)
    script.shows(progress="10%", progressPercentage=10)
    script.print(f"{names.REPORT_PREFIX}{{oops")
    script.say(step=-5, total_steps=100)
    script.say(step="many")
    script.print("x" * 100_000)
    script.say(step=20, total_steps=100, loss=0.5, lr=0.1)
    script.shows(progress="20%")
    metrics = {one["name"]: one["value"] for one in job.status["trainerStatus"]["metrics"]}
    assert (metrics["step"], metrics["loss"]) == ("20", "0.5")
    assert operator.metrics()["batuta_reports_refused_total"] == 3
    head, row = cluster.kubectl("get", "uj", "--namespace", jobs.namespace).splitlines()
    shown = dict(zip(head.split(), row.split(), strict=False))
    assert shown["PROGRESS"] == "20%"
    assert shown["ETA"][-1] in "smhd"
    script.say(step=100, total_steps=100)
    script.say(event="result", value={"accuracy": 0.9})
    succeed(job)
    status = job.reaches("SUCCEEDED")
    assert json.loads(status["result"]) == {"accuracy": 0.9}
    assert (status["progress"], status.get("eta")) == ("100%", None)


def test_members_that_save_when_asked_stay_until_they_have_saved(
    jobs: Jobs, add_nodes: AddNodes, kubelet: FakeKubelet, cluster: ControlPlane
) -> None:
    """Given a job that is to shrink, all its pods hear the request, and go after its answer."""
    kubelet.serve(cluster, add_nodes(1, NodeShape(gpus=2)))
    saves = {names.CHECKPOINT: "on-signal"}
    job = jobs.submit("train", "Pods", replicas=(1, 2), annotations=saves, replica_spec={"targetReplicas": 2})
    # Its template has one second of grace, in which nobody answers: it is made anew with an hour.
    job.patch({"spec": {"replicaSpec": {"template": {"spec": {"terminationGracePeriodSeconds": 3600}}}}})
    before = job.runs_with(2)
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 1}}})

    def requests() -> list[str]:
        pods = job.pods().values()
        return [pod["metadata"]["annotations"].get(names.CHECKPOINT_REQUEST, "") for pod in pods]

    wait_until(lambda: requests() == ["1", "1"], "all members to be asked")
    assert job.running() == before
    Script(kubelet, job).say(event="checkpoint", path="/c", step=7, request=1)
    after = job.runs_with(1)
    assert not after.items() & before.items()


def test_a_node_without_logs_does_no_harm(jobs: Jobs, add_nodes: AddNodes, operator: OperatorProcess) -> None:
    """Given nodes whose logs nobody can read, jobs run and end, and the operator is calm."""
    add_nodes(1, NodeShape(gpus=4))
    running = [jobs.submit(f"train-{k}", "Pods", pod={"runs_for": "3600s"}) for k in range(4)]
    for job in running:
        job.runs_with(1)
    operator.assert_calm()
    for job in running:
        succeed(job)
        assert "trainerStatus" not in job.reaches("SUCCEEDED")
