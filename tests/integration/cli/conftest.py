"""One server for all tests here: two nodes with four virtual GPUs each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_server import Cli


@pytest.fixture(scope="module")
def server_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("server")
    cli = Cli(folder / "home", folder)
    started = cli.run("up", "--virtual", "--port", "0", "-d")
    assert started.returncode == 0, started.stderr
    assert started.stdout.startswith("http://127.0.0.1:")
    yield folder / "home"
    done = cli.run("down")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def cli(server_home: Path, tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(server_home, tmp_path)
    yield cli
    cli.run("cancel", "--all", "-y")


@pytest.fixture
def nobody(tmp_path: Path) -> Cli:
    """A state directory without a server."""
    return Cli(tmp_path / "nobody", tmp_path)
