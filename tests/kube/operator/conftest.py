"""One operator for all tests that do not break it, with the rights that the chart gives it."""

from collections.abc import Iterator

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.modules import crds
from tests.support.kube.operator_process import OperatorProcess, grant, prepare, refused

OTHER_PROJECTS = ("jobset", "mpi-operator", "node-resource-topology", "scheduler-plugins")
QUEUES = [{"name": "narrow", "quota": {"*": 1}}]


@pytest.fixture(scope="module")
def operator(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator of the shared control plane, on which other projects are installed."""
    for project in OTHER_PROJECTS:
        cluster.install_crds(crds(project))
    prepare(cluster)
    mark = cluster.requests.mark()
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(cluster, folder, kubeconfig=grant(cluster), queues=QUEUES) as running:
        yield running
    assert refused(cluster, mark) == []
