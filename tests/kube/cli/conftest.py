"""`batuta` at a cluster with an operator, as its administrator and as people with fewer rights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.cli.command_line import Batuta
from tests.kube.cli.fake_kubelet import FakeKubelet
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.operator_process import OperatorProcess, prepare


@pytest.fixture(scope="module")
def operator(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator of the shared control plane."""
    prepare(cluster)
    with OperatorProcess(cluster, tmp_path_factory.mktemp("operator")) as running:
        yield running


@pytest.fixture
def batuta(cluster: ControlPlane, namespace: str, operator: OperatorProcess) -> Batuta:
    """The command line of somebody who may do everything, in a fresh namespace."""
    return Batuta(cluster.kubeconfig_path, namespace)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(tmp_path / "kubelet") as running:
        yield running
