from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.served_api import ServedApi, served_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ServedApi]:
    with served_api(tmp_path) as served:
        yield served


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """For tests that do not care what others have done before."""
    with served_api(tmp_path_factory.mktemp("api")) as served:
        yield served
