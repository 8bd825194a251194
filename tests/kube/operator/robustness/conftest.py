"""A control plane that these tests break, and operators that they kill."""

from collections.abc import Iterator

import pytest

from tests.kube.conftest import LastingCluster
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import grant, prepare, refused
from tests.support.kube.pods import Pods

BREAKABLE = Options(
    controllers=True,
    # Groups of Kubernetes itself are alpha, and need an API server that is told to have them.
    feature_gates={"GenericWorkload": True},
    runtime_config=["scheduling.k8s.io/v1alpha2=true"],
)


@pytest.fixture(scope="session")
def broken(lasting_cluster: LastingCluster) -> Iterator[ControlPlane]:
    """A control plane for these tests only; the operator's account has the rights that the chart gives it."""
    with lasting_cluster("broken", BREAKABLE) as running:
        prepare(running)
        grant(running)
        mark = running.requests.mark()
        yield running
        assert refused(running, mark) == []


@pytest.fixture
def pods(broken: ControlPlane) -> Iterator[Pods]:
    namespace = broken.new_namespace()
    yield Pods(broken, namespace)
    broken.clear_namespace(namespace)


@pytest.fixture
def nodes(broken: ControlPlane, pods: Pods) -> Iterator[list[str]]:
    """Two nodes with four GPUs each."""
    names = broken.add_nodes(2, NodeShape(gpus=4), pods.namespace)
    yield names
    there = {node["metadata"]["name"] for node in broken.api.items("/api/v1/nodes")}
    broken.delete_nodes([name for name in names if name in there])
