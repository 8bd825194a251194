"""One real node with two virtual GPUs, a device plugin beside its kubelet, and an operator."""

from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.kube.device_plugin.shares import PROBE, PluginProcess, ShareNode, SharePods, plugin_account
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options
from tests.support.kube.image import write_image
from tests.support.kube.operator_process import OperatorProcess, prepare
from tests.support.kube.programs import why_not
from tests.support.kube.real_node import RealNode, why_no_node
from tests.support.kube.real_node_enclosure import Enclosure
from tests.support.vgpu import VirtualNode

IMAGE = "batuta.test/probe:1"
HERE = Path(__file__).parent


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Skipping here, and not in a fixture, lets pytest fold all of them into one line of its summary.
    if "share_node" in getattr(item, "fixturenames", ()) and (problem := _problem()):
        pytest.skip(f"no real node: {problem}")


@cache
def _problem() -> str | None:
    return why_no_node() or why_not(["kubelet"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says where the logs of its node are."""
    report = yield
    node = getattr(item, "funcargs", {}).get("share_node")
    if report.failed and isinstance(node, ShareNode):
        report.sections.append(("real node", f"logs: {node.node.folder}/*.log"))
    return report


@pytest.fixture(scope="module")
def share_node(
    programs_for: Callable[[Options], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShareNode]:
    folder = tmp_path_factory.mktemp("shares")
    write_image(folder / "image.tar", IMAGE, [], {PROBE: HERE / "probe.py"})
    gpus = VirtualNode.make(folder, gpus=2, model="T4")
    with Enclosure(tmp_path_factory.mktemp("share-node")) as enclosure:
        options = Options(controllers=True, kwok=False, address=str(enclosure.gateway))
        programs_for(options)
        with ControlPlane(tmp_path_factory.mktemp("share-cluster"), options) as cluster:
            prepare(cluster)
            user = plugin_account(cluster)
            with (
                RealNode(cluster, enclosure, folder / "image.tar", IMAGE, 0) as node,
                OperatorProcess(cluster, tmp_path_factory.mktemp("operator")),
            ):
                plugin = PluginProcess(cluster, enclosure, gpus, user)
                plugin.is_watched_after(plugin.start)
                yield ShareNode(cluster, node, enclosure, gpus, plugin)


@pytest.fixture
def pods(share_node: ShareNode) -> Iterator[SharePods]:
    share_node.wait_for_offer(120, 200)
    with share_node.pods() as made:
        yield made
