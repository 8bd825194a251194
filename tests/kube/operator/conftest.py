"""One operator for all tests that do not break it, with the rights that the chart gives it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.modules import crds
from tests.support.kube.operator_process import OperatorProcess, grant, prepare, refused

OTHER_PROJECTS = ("jobset", "mpi-operator", "node-resource-topology", "scheduler-plugins")
QUEUES = [{"name": "narrow", "quota": {"*": 1}}, {"name": "default"}]
RESTART_BACKOFF_S = 1


@pytest.fixture(scope="session")
def prepared(cluster: ControlPlane) -> ControlPlane:
    """The shared control plane, on which other projects are installed."""
    for project in OTHER_PROJECTS:
        cluster.install_crds(crds(project))
    prepare(cluster)
    return cluster


@pytest.fixture(scope="module")
def operator(prepared: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator of the shared control plane."""
    cluster = prepared
    mark = cluster.requests.mark()
    folder = tmp_path_factory.mktemp("operator")
    config: dict[str, Any] = {"queues": QUEUES, "restartBackoffSeconds": RESTART_BACKOFF_S}
    with OperatorProcess(cluster, folder, kubeconfig=grant(cluster), tls=True, **config) as running:
        yield running
    assert refused(cluster, mark) == []
