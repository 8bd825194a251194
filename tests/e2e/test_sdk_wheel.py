"""`pip install batuta-sdk`: training scripts have the SDK without Batuta, and beside it."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import batuta.sdk
from tests.support.server_process import PlainServers

REPO = Path(__file__).resolve().parents[2]
SDK = REPO / "packaging" / "sdk"
WITHIN_S = 60.0
SCRIPT = """
import os, signal, sys, threading
from batuta import sdk

sdk.report(step=1, total_steps=2, epoch=0.5, samples=64, loss=float("nan"), accuracy=0.5)
with sdk.waiting():
    pass
said = sdk.own_s(), sdk.checkpoint_requested(), sdk.checkpointed("a.pt", step=1), sdk.result({"a": object()})
sdk.report(step=2, loss=[])
print(said, os.listdir(), threading.active_count(), signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)
"""
NOTHING = "(0.0, False, None, None) [] 1 True\n"
WHERE = "import batuta.sdk; print(batuta.sdk.__file__, getattr(batuta, '__version__', 'no Batuta'))"


def build(project: Path, into: Path, target: str = "wheel") -> Path:
    """What `python -m build` makes of a folder, without asking a registry for the build tools."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    built = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (made,) = into.iterdir()
    return made


class Environment:
    """A new virtual environment, with nothing in it, and no way to a registry."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)

    def pip(self, *words: str | Path) -> None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "--disable-pip-version-check",
            *words,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def install(self, wheel: Path) -> None:
        self.pip("install", "--quiet", "--no-index", "--no-deps", wheel)

    def run(self, code: str, folder: Path) -> str:
        """What a script says on both outputs, without Batuta around it: any warning is an error."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("BATUTA", "PYTHON"))}
        command = [str(self.python), "-W", "error", "-c", code]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SDK, tmp_path_factory.mktemp("sdk-wheel"))


@pytest.fixture
def alone(tmp_path: Path, wheel: Path) -> Environment:
    """An environment that has the SDK and nothing else."""
    made = Environment(tmp_path / "env")
    made.install(wheel)
    return made


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_where_batuta_is_absent_a_script_imports_it_and_it_does_nothing(alone: Environment, empty: Path):
    assert alone.run(SCRIPT, empty) == NOTHING


def test_the_source_distribution_makes_the_same_wheel(tmp_path: Path, wheel: Path):
    (tmp_path / "dist").mkdir()
    with tarfile.open(build(SDK, tmp_path / "dist", "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    (tmp_path / "again").mkdir()
    assert build(source, tmp_path / "again").read_bytes() == wheel.read_bytes()


def test_beside_batuta_neither_is_in_the_way_of_the_other(tmp_path: Path, alone: Environment, empty: Path):
    # given an environment that has Batuta as well
    (tmp_path / "batuta").mkdir()
    alone.install(build(REPO, tmp_path / "batuta"))
    # then Batuta is whole
    path, version = alone.run(WHERE, empty).split()
    assert (Path(path).parts[-4:], version) == (("site-packages", "batuta", "sdk", "__init__.py"), "0.1.0")
    # and whichever is removed, the other stays as it was
    alone.pip("uninstall", "--yes", "--quiet", "batuta")
    assert alone.run(WHERE, empty).endswith("batuta_sdk/batuta/sdk/__init__.py no Batuta\n")
    alone.install(next((tmp_path / "batuta").iterdir()))
    alone.pip("uninstall", "--yes", "--quiet", "batuta-sdk")
    assert alone.run(WHERE, empty).split() == [path, version]


def test_its_folder_beside_a_script_will_do(tmp_path: Path):
    # given a script's folder into which the SDK's was copied, and a Python that has nothing installed
    shutil.copytree(REPO / "src" / "batuta" / "sdk", tmp_path / "project" / "batuta" / "sdk")
    found = Environment(tmp_path / "env").run(WHERE, tmp_path / "project")
    assert found == f"{tmp_path}/project/batuta/sdk/__init__.py no Batuta\n"


def test_both_have_the_same_version():
    assert batuta.__version__ == batuta.sdk.__version__


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[PlainServers]:
    with PlainServers(tmp_path) as started:
        yield started


def test_a_job_in_an_environment_of_its_own_reports_through_it(
    tmp_path: Path, alone: Environment, servers: PlainServers
):
    # given a server, and a job whose Python has the SDK alone, and does not look at PYTHONPATH
    server = servers.start(tmp_path / "home", "--nodes", "1", "--gpus", "1")
    server.wait_ready()
    code = "from batuta import sdk; sdk.report(step=7, total_steps=8); sdk.result({'steps': 7})"
    with server.client() as client:
        job = client.submit(command=[str(alone.python), "-E", "-c", code])
        over = client.wait(job, timeout_s=WITHIN_S)
        # then the server has heard of it
        assert over.state == "SUCCEEDED", list(client.logs(job, follow=False))
        assert over.progress is not None
        assert (over.progress.step, client.result(job)) == (7, {"steps": 7})
    server.end()
