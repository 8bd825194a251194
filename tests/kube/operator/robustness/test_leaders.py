"""Several operators: one leads."""

import urllib.error
import urllib.request
from typing import Any

from tests.support.kube.control_plane import wait_until
from tests.support.kube.operator_process import NAMESPACE, RELEASE, OperatorProcess, grant
from tests.support.kube.pods import make_gang, make_pod

FAST_LEASE = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 1}


def test_of_two_operators_one_leads_and_the_other_takes_over(broken, pods, nodes, tmp_path):
    """Given a gang that runs, when the leader is killed, then the other one goes on where it was."""
    account = grant(broken)

    def make(identity: str) -> OperatorProcess:
        lease: dict[str, Any] = {"leaseName": f"{RELEASE}-operator", "leaderElection": FAST_LEASE}
        return OperatorProcess(broken, tmp_path, kubeconfig=account, elect=True, identity=identity, **lease)

    with make("first") as first, make("second") as second:
        wait_until(lambda: first.leads or second.leads, "one to lead")
        if second.leads:
            first, second = second, first
        pods.create(*make_gang("gang", 3, gpus=2))
        pods.wait_for("gang-0", "gang-1", "gang-2")
        before = pods.uids(), pods.gpus()
        wait_until(second.metrics, "the other one to answer")
        assert first.leads
        assert not second.leads
        first.kill()
        second.wait_until_leading(30.0)
        pods.create(make_pod("next", gpus=2), make_pod("waits", gpus=2))
        pods.wait_for("next")
        assert pods.uids().items() >= before[0].items()
        assert pods.gpus().items() >= before[1].items()
        assert "waits" not in pods.bound()
        second.assert_calm()


def test_who_asks_the_one_that_does_not_lead_is_answered_by_the_one_that_does(broken, tmp_path):
    """Given two operators, each a pod with an address, then both know what only one of them knows."""
    account, lease = grant(broken), {"leaseName": f"{RELEASE}-operator", "leaderElection": FAST_LEASE}
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    container = {"name": "main", "image": "none"}
    made = broken.api.create(pods, {"metadata": {"name": "first"}, "spec": {"containers": [container]}})
    assert made["metadata"]["name"] == "first"

    def run(identity: str, **more: Any) -> OperatorProcess:
        config = lease | more
        return OperatorProcess(broken, tmp_path, kubeconfig=account, elect=True, identity=identity, **config)

    def ask(host: str, path: str) -> tuple[int, str]:
        asked = urllib.request.Request(f"http://{host}:{first.port}{path}")
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    with run("first-1") as first:
        first.wait_until_leading()
        api = {"listen": "127.0.0.2", "port": first.port}
        with run("second-1", api=api):
            wait_until(lambda: _answers(lambda: ask("127.0.0.2", "/healthz")), "the other one to answer")
            wait_until(lambda: "no address" in ask("127.0.0.2", "/api/v1/cluster")[1], "it to look for the first")
            broken.api.patch(f"{pods}/first/status", {"status": {"podIP": "127.0.0.1"}})
            wait_until(lambda: ask("127.0.0.2", "/api/v1/cluster")[0] == 401, "the leader's own refusal")
            assert "say who you are" in ask("127.0.0.2", "/api/v1/jobs/a%2Fb")[1]
            first.kill()
            wait_until(lambda: ask("127.0.0.2", "/api/v1/cluster")[0] == 401, "the other one to lead")


def _answers(ask) -> bool:
    try:
        return ask()[0] == 200
    except OSError:
        return False
