"""An operator for a few namespaces: it has rights in those only, and needs no others."""

from tests.support.kube.operator_process import OperatorProcess, grant, refused
from tests.support.kube.pods import Pods, make_gang, make_pod
from tests.support.kube.unified import Jobs


def test_an_operator_of_some_namespaces_leaves_the_others_alone(broken, pods, nodes, tmp_path):
    """Given work in two namespaces, only that of the named one is done; what the other holds is counted."""
    named, other = pods.namespace, broken.new_namespace()
    elsewhere = Pods(broken, other)
    elsewhere.create(make_pod("theirs", gpus=3), make_pod("waits"))
    broken.bind(other, "theirs", nodes[0])
    account, mark = grant(broken, namespaces=[named]), broken.requests.mark()
    with OperatorProcess(broken, tmp_path, kubeconfig=account, namespaces=[named]):
        pods.create(*make_gang("gang", 2, gpus=2))
        pods.wait_for("gang-0", "gang-1")
        assert set(pods.bound().values()) == {nodes[1]}
        job = Jobs(broken, named).submit("torch", replicas=1)
        job.runs_with(1)
        assert elsewhere.bound().keys() == {"theirs"}
        assert refused(broken, mark) == []
    broken.clear_namespace(other)
