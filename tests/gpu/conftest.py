"""Virtual GPUs for each test, and the packages that are run on them."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.vgpu import VirtualNode, client_python, compiler


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Skipping here, and not in the fixtures, lets pytest fold all of them into one line of its summary.
    compiler()
    if "equipped" in getattr(item, "fixturenames", ()):
        client_python()


@pytest.fixture
def node(tmp_path: Path) -> VirtualNode:
    """Two virtual T4s."""
    return VirtualNode.make(tmp_path)


@pytest.fixture
def equipped(node: VirtualNode) -> VirtualNode:
    """The same, with a Python that has nvitop, numba-cuda and the like; skips where they cannot be had."""
    return replace(node, python=client_python())
