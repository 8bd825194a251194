"""UnifiedJobs on the shared control plane, and what becomes of them."""

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.operator_process import OperatorProcess
from tests.support.kube.unified import Jobs


@pytest.fixture
def jobs(cluster: ControlPlane, namespace: str, operator: OperatorProcess) -> Jobs:
    """The UnifiedJobs of a fresh namespace, with an operator that looks after them."""
    return Jobs(cluster, namespace)
