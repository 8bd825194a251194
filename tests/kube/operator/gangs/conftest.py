"""Pods without a UnifiedJob, with an operator that looks after them."""

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.operator_process import OperatorProcess
from tests.support.kube.pods import Pods


@pytest.fixture
def pods(cluster: ControlPlane, namespace: str, operator: OperatorProcess) -> Pods:
    """The pods of a fresh namespace."""
    return Pods(cluster, namespace)
