"""What may happen to a cluster: nothing is lost, nothing hangs, and the operator stays calm."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
import yaml

from batuta.backends.kube import names
from tests.support.kube.api import ApiError
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.operator_process import CRD, OperatorProcess, grant
from tests.support.kube.pods import Pods, make_gang, make_pod
from tests.support.kube.unified import Jobs

AWAY_S = 60.0 if os.environ.get("CI") else 5.0


@pytest.fixture(scope="module")
def operator(broken: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with OperatorProcess(broken, tmp_path_factory.mktemp("trouble"), kubeconfig=grant(broken)) as running:
        yield running


def test_a_node_that_is_deleted_under_a_job_is_left(broken, operator, pods, nodes):
    """Given a Job on a node, when the node is gone, then the Job's next pods run on the other one."""
    template = make_pod("")["spec"] | {"restartPolicy": "Never"}
    size = {"parallelism": 2, "completions": 2, "backoffLimit": 9}
    broken.api.create(
        f"/apis/batch/v1/namespaces/{pods.namespace}/jobs",
        {"metadata": {"name": "train"}, "spec": size | {"template": {"spec": template}}},
    )
    wait_until(lambda: len(pods.bound()) == 2, "the Job to run")
    lost = set(pods.bound().values())
    assert len(lost) == 1
    (other,) = set(nodes) - lost
    broken.delete_nodes(list(lost))
    wait_until(lambda: list(pods.bound().values()).count(other) == 2, "the Job to run elsewhere", 60.0)


def test_cordons_taints_and_labels_are_obeyed_as_they_change(broken, operator, pods, nodes):
    """Given closed nodes, pods wait; when one opens, those that may go there do; who runs is left alone."""
    first, second = nodes
    pods.create(make_pod("runs"))
    pods.wait_for("runs")
    broken.api.patch(f"/api/v1/nodes/{first}", {"spec": {"unschedulable": True}})
    taint = {"key": "example.com/broken", "effect": "NoSchedule"}
    broken.api.patch(f"/api/v1/nodes/{second}", {"spec": {"taints": [taint]}})
    picky = make_pod("picky")
    picky["spec"]["nodeSelector"] = {"example.com/fast": "yes"}
    pods.create(*make_gang("gang", 2), picky)
    pods.wait_for_word("gang-0", "GPU")
    pods.wait_for_word("picky", "")
    assert pods.bound().keys() == {"runs"}
    broken.api.patch(f"/api/v1/nodes/{second}", {"spec": {"taints": None}})
    pods.wait_for("gang-0", "gang-1")
    assert "picky" not in pods.bound()
    broken.api.patch(f"/api/v1/nodes/{second}", {"metadata": {"labels": {"example.com/fast": "yes"}}})
    pods.wait_for("picky")
    assert {pods.bound()[name] for name in ("gang-0", "gang-1", "picky")} == {second}
    operator.assert_calm()


def test_edits_by_others_are_no_reason_to_fight(broken, operator, pods, nodes):
    """Given a gang that runs, when somebody takes its annotations away, then it runs on and nobody loops."""
    pods.create(*make_gang("gang", 2))
    pods.wait_for("gang-0", "gang-1")
    before = pods.uids()
    annotations = {names.GPUS: None, names.GANG_SIZE: "7"}
    broken.api.patch(f"{pods.path}/gang-0", {"metadata": {"annotations": annotations}})
    pods.create(make_pod("next", gpus=4))
    pods.wait_for("next")
    assert pods.uids().items() >= before.items()
    operator.assert_calm()


def test_a_namespace_with_work_in_it_can_be_deleted(broken, operator, pods, nodes):
    """Given jobs that run and wait in a namespace, when it is deleted, then others get the GPUs."""
    doomed = broken.new_namespace()
    inside, jobs = Pods(broken, doomed), Jobs(broken, doomed)
    inside.create(*make_gang("runs", 2, gpus=2), *make_gang("waits", 9, gpus=2))
    jobs.submit("torch", replicas=(1, 4))
    inside.wait_for("runs-0", "runs-1")
    wait_until(lambda: jobs.pods("torch"), "the job's pods")
    broken.api.delete(f"/api/v1/namespaces/{doomed}")
    wait_until(lambda: is_gone(broken, f"/api/v1/namespaces/{doomed}"), "the namespace to go", 90.0)
    pods.create(*make_gang("next", 4, gpus=2))
    pods.wait_for("next-0", "next-1", "next-2", "next-3")
    operator.assert_calm()


def test_the_definition_may_be_upgraded_while_jobs_run(broken, operator, pods, nodes):
    """Given a job that runs, when its definition gets another field and version, then it runs on."""
    jobs = Jobs(broken, pods.namespace)
    job = jobs.submit("before", replicas=2)
    running = job.runs_with(2)
    definition = yaml.safe_load(CRD.read_text())
    (version,) = definition["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["later"] = {"type": "string"}
    another = version | {"name": "v1alpha9", "storage": False, "deprecated": True}
    definition["spec"]["versions"] = [version, another]
    broken.apply(definition, "--force-conflicts")
    try:
        jobs.submit("after", replicas=2, later="x").runs_with(2)
        assert job.running() == running
        operator.assert_calm()
    finally:
        broken.apply(CRD, "--force-conflicts")


def test_an_api_server_that_is_gone_for_a_while_costs_nothing(broken, operator, pods, nodes):
    """Given a gang that runs and one that waits, when the API server is back, then all is as it was."""
    pods.create(*make_gang("runs", 3, gpus=2), *make_gang("waits", 2, gpus=2))
    pods.wait_for("runs-0", "runs-1", "runs-2")
    before, process = pods.uids(), operator.program
    broken.stop_api_server()
    time.sleep(AWAY_S)
    operator.check()
    broken.start_api_server()
    pods.create(make_pod("later"))
    pods.wait_for("later")
    assert {name: uid for name, uid in pods.uids().items() if name != "later"} == before
    assert pods.bound().keys() == {"runs-0", "runs-1", "runs-2", "later"}
    pods.delete("runs-0", "runs-1", "runs-2")
    pods.wait_for("waits-0", "waits-1")
    assert operator.program is process
    operator.assert_calm()


def test_history_that_was_compacted_is_made_good_by_a_list(broken, operator, pods, nodes):
    """Given an operator that sleeps, what happened meanwhile and was forgotten is found by it."""
    pods.create(*make_gang("old", 4, gpus=2))
    pods.wait_for("old-0", "old-1", "old-2", "old-3")
    assert operator.program is not None
    os.kill(operator.program.pid, signal.SIGSTOP)
    try:
        pods.delete("old-0", "old-1", "old-2", "old-3")
        pods.create(*make_gang("new", 4, gpus=2))
        broken.forget_history()
    finally:
        os.kill(operator.program.pid, signal.SIGCONT)
    pods.wait_for("new-0", "new-1", "new-2", "new-3")
    operator.assert_calm()


def is_gone(cluster: ControlPlane, path: str) -> bool:
    try:
        cluster.api.get(path)
    except ApiError as error:
        return error.status == 404
    return False
