"""Replicas as real processes. Each test has to leave none behind."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_backends import Bench
from tests.support.local_replicas import Replicas


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and not sys.platform.startswith("linux"):
            item.add_marker(pytest.mark.skip(reason="local mode is complete on Linux only"))


@pytest.fixture
def replicas(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Replicas]:
    made = Replicas(tmp_path, re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:60])
    yield made
    made.clean_up()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A machine with one node of four GPUs and one of two."""
    made = Bench(tmp_path, 4, 2)
    yield made
    made.clean_up()
