"""A cluster of its own in which both operators work: Batuta's, and the real mpi-operator."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.chart import policies_of
from tests.support.kube.control_plane import ADMIN, ControlPlane
from tests.support.kube.flags import Options
from tests.support.kube.mpi_operator import PROGRAM, start_mpi_operator
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import NAMESPACE as HOME
from tests.support.kube.operator_process import OperatorProcess, prepare
from tests.support.kube.programs import program, why_not
from tests.support.kube.unified import Jobs

OPTIONS = Options(controllers=True)
GPUS = 4
MANAGERS = ("system:kube-controller-manager", "system:serviceaccount:kube-system:job-controller")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "mpi_cluster" in getattr(item, "fixturenames", ()) and (problem := _problem()):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no mpi-operator: {problem}")


@cache
def _problem() -> str | None:
    return why_not([PROGRAM])


@pytest.fixture(scope="module")
def mpi_cluster(
    programs_for: Callable[[Options], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """One fake node with four GPUs; an MPIJob of another test would be in the way on the shared cluster."""
    programs_for(OPTIONS)
    program(PROGRAM)
    folder: Path = tmp_path_factory.mktemp("mpi")
    with ControlPlane(folder / "cluster", OPTIONS) as cluster:
        prepare(cluster)
        start_mpi_operator(cluster)
        cluster.add_nodes(1, NodeShape(gpus=GPUS))
        # Both operators act as these users here.
        cluster.apply(
            policies_of({"admissionPolicy": {"users": ["operator"], "controllers": [ADMIN, *MANAGERS]}}, HOME)
        )
        with OperatorProcess(cluster, folder):
            yield cluster


@pytest.fixture
def jobs(mpi_cluster: ControlPlane) -> Iterator[Jobs]:
    """The UnifiedJobs of a fresh namespace."""
    namespace = mpi_cluster.new_namespace()
    yield Jobs(mpi_cluster, namespace)
    mpi_cluster.clear_namespace(namespace)
