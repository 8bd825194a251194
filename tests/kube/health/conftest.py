"""An operator that looks after health, with the rights that the chart gives it, and nodes that tell."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.health import RULES, Ward
from tests.support.kube.operator_process import OperatorProcess, grant, prepare, refused
from tests.support.kube.unified import Jobs

BURN_IN = {"image": "none", "runtimeClassName": ""}
HEALTH = {"enabled": True, "rules": RULES, "poolLabel": "tests/pool", "burnIn": BURN_IN}


@pytest.fixture(scope="module")
def operator(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    prepare(cluster)
    mark = cluster.requests.mark()
    kubeconfig = grant(cluster, config={"health": HEALTH})
    folder = tmp_path_factory.mktemp("operator")
    config: dict[str, Any] = {"health": HEALTH, "healthMemory": "tested-health", "restartBackoffSeconds": 1}
    with OperatorProcess(cluster, folder, kubeconfig=kubeconfig, **config) as running:
        yield running
    assert refused(cluster, mark) == []


@pytest.fixture
def jobs(cluster: ControlPlane, namespace: str, operator: OperatorProcess) -> Jobs:
    """The UnifiedJobs of a fresh namespace, with an operator that looks after them."""
    return Jobs(cluster, namespace)


@pytest.fixture
def ward(cluster: ControlPlane) -> Ward:
    """Nodes as patients."""
    return Ward(cluster)
