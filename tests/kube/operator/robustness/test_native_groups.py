"""Groups of Kubernetes itself, which an API server has only when it is told to."""

from tests.support.kube.operator_process import OperatorProcess, grant
from tests.support.kube.pods import make_pod


def test_groups_of_kubernetes_itself_start_together(broken, pods, nodes, tmp_path):
    """Given an API server with pod groups of its own, their pods wait for each other."""
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "group", "namespace": pods.namespace},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    first, second = make_pod("member-0"), make_pod("member-1")
    for pod in (first, second):
        pod["spec"]["schedulingGroup"] = {"podGroupName": "group"}
    with OperatorProcess(broken, tmp_path, kubeconfig=grant(broken)):
        broken.apply(group)
        pods.create(first, make_pod("free"))
        pods.wait_for("free")
        pods.wait_for_word("member-0", "1 of 2 pods")
        pods.create(second)
        pods.wait_for("member-0", "member-1")
