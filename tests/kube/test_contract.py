"""The contract of all backends, on the one that runs pods."""

from collections.abc import Iterator

import pytest

from tests.contract.backend_cases import BackendCases, CpuOnlyCases
from tests.contract.backend_rig import Rig
from tests.kube.conftest import AddNodes
from tests.support.kube.backend_rig import kube_rig
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import CRD


@pytest.fixture(scope="module")
def prepared(cluster: ControlPlane) -> ControlPlane:
    """The shared control plane, which knows UnifiedJobs."""
    cluster.install_crds(CRD)
    return cluster


@pytest.fixture
def rig(prepared: ControlPlane, namespace: str, add_nodes: AddNodes) -> Iterator[Rig]:
    """A backend to which both jobs are submitted."""
    (node,) = add_nodes(1, NodeShape(gpus=2))
    with kube_rig(prepared, namespace, node) as made:
        made.wait_for_jobs()
        yield made


class TestKubeBackend(BackendCases):
    """All cases on pods that KWOK runs."""


@pytest.fixture
def cpu_rig(prepared: ControlPlane, namespace: str, add_nodes: AddNodes) -> Iterator[Rig]:
    """A backend to which both jobs are submitted, which hold no GPU; nor has the node any."""
    (node,) = add_nodes(1, NodeShape(gpus=0))
    with kube_rig(prepared, namespace, node, replicas=1, gpus=0) as made:
        made.wait_for_jobs()
        yield made


class TestCpuOnlyJobs(CpuOnlyCases):
    """All cases of jobs that hold no GPU."""
