"""An operator is killed at any moment, and the next one goes on: with its journal, or without."""

import time
from collections.abc import Iterator

import pytest

from tests.kube.cli.fake_kubelet import FakeKubelet
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess, grant
from tests.support.kube.unified import Jobs

KEPT = pytest.mark.parametrize("keeps_journal", [True, False], ids=["with-journal", "without-journal"])


@pytest.fixture(scope="module")
def killed(broken: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator that is killed and started again by each test."""
    with OperatorProcess(broken, tmp_path_factory.mktemp("killed"), kubeconfig=grant(broken)) as running:
        yield running


@pytest.fixture
def jobs(broken: ControlPlane, killed: OperatorProcess) -> Iterator[Jobs]:
    """Two nodes with four GPUs each, for the UnifiedJobs of a fresh namespace."""
    jobs = Jobs(broken, broken.new_namespace())
    nodes = broken.add_nodes(2, NodeShape(gpus=4), prefix=jobs.namespace)
    yield jobs
    broken.clear_namespace(jobs.namespace)
    broken.delete_nodes(nodes)


def restart(operator: OperatorProcess, keeps_journal: bool) -> None:
    operator.kill()
    if not keeps_journal:
        operator.forget()
    operator.start()


@KEPT
def test_what_runs_goes_on_where_it_is(jobs, killed, keeps_journal):
    """Given jobs that run and one that waits, a new operator moves nobody, and starts nobody twice."""
    rigid = jobs.submit("rigid", "Pods", replicas=2)
    batch = jobs.submit("batch", "Job", replicas=2)
    elastic = jobs.submit("elastic", replicas=(1, 2))
    waits = jobs.submit("waits", replicas=8)
    before = [(one.runs_with(2), one.places()) for one in (rigid, batch, elastic)]
    waits.reaches("PENDING")
    restart(killed, keeps_journal)
    # The next decision has been made when a job that came since has been placed.
    jobs.api.delete(waits.path)
    jobs.submit("late", "Pods", replicas=1, pod={"runs_for": "100ms"}).reaches("SUCCEEDED")
    after = [(one.runs_with(2), one.places()) for one in (rigid, batch, elastic)]
    assert after == before
    assert [one.status["restarts"] for one in (rigid, batch, elastic)] == [0, 0, 0]


@KEPT
def test_what_was_done_is_not_done_again(jobs, killed, keeps_journal):
    """Given a job that ended while nobody looked and one before that, neither runs again."""
    done = jobs.submit("done", "Pods", replicas=2, pod={"runs_for": "100ms"})
    done.reaches("SUCCEEDED")
    ending = jobs.submit("ending", "Pods", replicas=2)
    pods = ending.runs_with(2)
    killed.kill()
    for name in pods:
        jobs.api.patch(f"{jobs.pods_path}/{name}/status", {"status": {"phase": "Succeeded"}})
    restart(killed, keeps_journal)
    assert ending.reaches("SUCCEEDED")["run"]["start"] == 0
    assert done.reaches("SUCCEEDED")["run"]["start"] == 0
    assert {pod["metadata"]["uid"] for pod in ending.pods().values()} == set(pods.values())


@pytest.mark.parametrize(
    ("pause_s", "keeps_journal"), [(0.0, True), (0.03, False), (0.06, True), (0.1, False), (0.2, True)]
)
def test_a_start_that_was_cut_short_is_finished_once(jobs, killed, keeps_journal, pause_s):
    """Given an operator killed while pods are made and bound, all members run in the end, each once."""
    job = jobs.submit("train", replicas=4, gpus=2)
    time.sleep(pause_s)  # the moment of the kill is the test's parameter
    ran = set(job.running().values()) if len(job.running()) == 4 else set()
    restart(killed, keeps_journal)
    after = job.runs_with(4)
    assert len(set(job.places().values())) == 4
    assert ran <= set(after.values())


@KEPT
def test_a_growth_that_was_cut_short_leaves_old_members_alone(jobs, killed, keeps_journal):
    """Given an operator killed while a job grows, the members that ran before run on."""
    job = jobs.submit("train", replicas=(1, 8), replica_spec={"targetReplicas": 2})
    before = job.runs_with(2)
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 8}}})
    wait_until(lambda: len(job.pods()) > 2, "new members")
    restart(killed, keeps_journal)
    assert before.items() <= job.runs_with(8).items()
    assert job.starts() == {"0"}


@KEPT
def test_what_a_job_reports_while_nobody_listens_is_heard_by_the_next_operator(
    jobs, killed, broken, tmp_path, keeps_journal
):
    """Given reports from before, from meanwhile and from after, the status has the last of them."""

    def report(step: int) -> None:
        kubelet.print(jobs.namespace, "train-0", f'batuta-report {{"step":{step},"total_steps":100}}\n')

    def shows(step: int) -> None:
        wait_until(lambda: job.status.get("progress") == f"{step}%", f"{step}%: {job.status}")

    with FakeKubelet(tmp_path / "kubelet") as kubelet:
        own = (node["metadata"]["name"] for node in broken.api.items("/api/v1/nodes"))
        kubelet.serve(broken, [name for name in own if name.startswith(jobs.namespace)])
        report(10)
        job = jobs.submit("train", "Pods", pod={"runs_for": "3600s"})
        shows(10)
        killed.kill()
        report(20)
        restart(killed, keeps_journal)
        shows(20)
        report(30)
        shows(30)
