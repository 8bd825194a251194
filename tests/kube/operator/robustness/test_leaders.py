"""Several operators: one leads."""

from tests.support.kube.control_plane import wait_until
from tests.support.kube.operator_process import RELEASE, OperatorProcess, grant
from tests.support.kube.pods import make_gang, make_pod

FAST_LEASE = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 1}


def test_of_two_operators_one_leads_and_the_other_takes_over(broken, pods, nodes, tmp_path):
    """Given a gang that runs, when the leader is killed, then the other one goes on where it was."""
    account = grant(broken)

    def make(identity: str) -> OperatorProcess:
        lease = {"leaseName": f"{RELEASE}-operator", "leaderElection": FAST_LEASE}
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
