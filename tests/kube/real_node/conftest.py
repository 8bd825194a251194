"""A cluster with one real node and an operator: pods are processes, and what they train is kept on a disk."""

from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.kube.real_node.training import Training
from tests.support.kube.api import Json
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options
from tests.support.kube.image import write_image
from tests.support.kube.operator_process import OperatorProcess, prepare
from tests.support.kube.programs import why_not
from tests.support.kube.real_node import RealNode, why_no_node
from tests.support.kube.real_node_enclosure import Enclosure

IMAGE = "batuta.test/python:1"
HERE = Path(__file__).parent
GPUS = 4


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Skipping here, and not in a fixture, lets pytest fold all of them into one line of its summary.
    if "real_node" in getattr(item, "fixturenames", ()) and (problem := _problem()):
        pytest.skip(f"no real node: {problem}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says where the logs of its node are."""
    report = yield
    node = getattr(item, "funcargs", {}).get("real_node")
    if report.failed and isinstance(node, RealNode):
        report.sections.append(("real node", f"logs: {node.folder}/*.log, {node.folder}/pods/*/main/*.log"))
    return report


@cache
def _problem() -> str | None:
    return why_no_node() or why_not(["kubelet"])


@pytest.fixture(scope="module")
def enclosure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enclosure]:
    with Enclosure(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="module")
def real_cluster(
    enclosure: Enclosure,
    programs_for: Callable[[Options], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControlPlane]:
    """A control plane that a real node can reach, without fake ones."""
    options = Options(controllers=True, kwok=False, address=str(enclosure.gateway))
    programs_for(options)
    with ControlPlane(tmp_path_factory.mktemp("real-cluster"), options) as running:
        yield running


@pytest.fixture(scope="module")
def real_node(
    real_cluster: ControlPlane, enclosure: Enclosure, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealNode]:
    """A node with four virtual GPUs, and an operator that fills them."""
    folder = tmp_path_factory.mktemp("image")
    scripts = {f"/opt/{name}": HERE / name for name in ("agent.py", "train.py")}
    write_image(folder / "image.tar", IMAGE, ["batuta", "numpy"], scripts)
    prepare(real_cluster)
    with (
        RealNode(real_cluster, enclosure, folder / "image.tar", IMAGE, GPUS) as node,
        OperatorProcess(real_cluster, tmp_path_factory.mktemp("operator")),
    ):
        yield node


@pytest.fixture
def start_training(
    real_cluster: ControlPlane, real_node: RealNode, tmp_path: Path
) -> Iterator[Callable[..., Training]]:
    """Starts trainings in a fresh namespace; see `Training.start`."""
    namespace = real_cluster.new_namespace()

    def start(name: str, job_type: str, pod: Json, **how: Any) -> Training:
        training = Training(real_cluster, namespace, name, tmp_path / name)
        training.start(job_type, pod, **how)
        return training

    yield start
    real_cluster.delete_namespace(namespace)
