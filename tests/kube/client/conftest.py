"""A control plane that the tests of the client may break: they leave it running again."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options

FRAGILE = Options()


@pytest.fixture(scope="module")
def fragile(
    programs_for: Callable[[Options], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    programs_for(FRAGILE)
    with ControlPlane(tmp_path_factory.mktemp("fragile"), FRAGILE) as running:
        yield running
