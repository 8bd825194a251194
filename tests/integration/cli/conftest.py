"""One server for all tests here: two nodes with four virtual GPUs each."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from batuta.client.client import Client
from batuta.client.errors import ClientError
from tests.support.cli_server import Cli
from tests.support.server_process import fork_server


@pytest.fixture(scope="module")
def server_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("server")
    cli = Cli(folder / "home", folder)
    fork_server().start(folder / "home").wait_ready()
    yield folder / "home"
    done = cli.run("down")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def cli(server_home: Path, tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(server_home, tmp_path)
    yield cli
    with Client(home=server_home) as client:
        for job in client.jobs(active=True):
            with suppress(ClientError):  # it has just ended
                client.cancel(job)


@pytest.fixture
def nobody(tmp_path: Path) -> Cli:
    """A state directory without a server."""
    return Cli(tmp_path / "nobody", tmp_path)
