"""What `python` and `pip` are in a job: never those of Batuta's own environment; each has the SDK."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.client.client import Client
from tests.support.server_process import PlainServers

WITHIN_S = 60.0
BATUTAS = Path(sys.executable).parent
_QUIETLY = "install --quiet --no-index --no-deps"
INSTALL = (
    f"pip {_QUIETLY} --disable-pip-version-check",
    f"python3 -m pip {_QUIETLY} --disable-pip-version-check",
    f"uv pip {_QUIETLY} --offline",
)


@pytest.fixture
def activated() -> dict[str, str]:
    """The environment of who has said `source .venv/bin/activate`."""
    path = os.pathsep.join((str(BATUTAS), os.environ.get("PATH", os.defpath)))
    return {**os.environ, "PATH": path, "VIRTUAL_ENV": sys.prefix}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[PlainServers]:
    with PlainServers(tmp_path) as started:
        yield started


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A wheel that nothing else has."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "batuta_test_marker.py").write_text("")
    (source / "pyproject.toml").write_text("""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "batuta-test-marker"
version = "1"
""")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    return next((tmp_path / "dist").iterdir())


def run(client: Client, task: dict[str, str]) -> list[str]:
    """What a job prints. It has to succeed."""
    job = client.submit(task)
    over = client.wait(job, timeout_s=WITHIN_S)
    log = list(client.logs(job, follow=False))
    assert over.state == "SUCCEEDED", log
    return log


def test_what_a_setup_installs_is_for_jobs_and_not_for_batuta(
    tmp_path: Path, servers: PlainServers, activated: dict[str, str], package: Path
):
    # given a server that was started in Batuta's environment
    home = tmp_path / "home"
    server = servers.start(home, "--nodes", "1", "--gpus", "1", env=activated)
    server.wait_ready()
    use = "python -c 'import batuta_test_marker as m; print(m.__file__)'"
    remove = "pip uninstall --quiet --yes batuta-test-marker"
    with server.client() as client:
        for install in INSTALL:
            # when a task installs a package as task files do
            log = run(client, {"setup": f"{install} {package}", "run": f"{use}\n{remove}"})
            # then its run has it, in an environment of the jobs of this server
            assert log[-1].startswith(str(home.resolve())), log
        # and jobs see what Batuta's environment has
        trainer = "python -m batuta.demo.trainer --steps 2 --work-ms 1"
        run(
            client,
            {"setup": f"{INSTALL[0]} {package}", "run": f"{trainer}\npython -c 'import batuta, scipy'"},
        )
        assert run(client, {"run": "which batuta"}) == [str(BATUTAS / "batuta")]
    server.end()
    # and Batuta's environment is as it was
    ask = [sys.executable, "-c", "import batuta_test_marker"]
    assert subprocess.run(ask, capture_output=True, check=False).returncode == 1
    # and jobs of the next server have what was installed last
    server = servers.start(home, "--nodes", "1", "--gpus", "1", env=activated)
    server.wait_ready()
    with server.client() as client:
        assert run(client, {"run": use}) == log[-1:]
    server.end()


def test_a_python_that_comes_first_on_the_path_is_the_one_that_jobs_find(
    tmp_path: Path, servers: PlainServers, activated: dict[str, str]
):
    # given somebody with an environment of their own before Batuta's
    mine = tmp_path / "mine"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", mine], check=True)
    path = f"{mine}/bin{os.pathsep}{activated['PATH']}"
    env = activated | {"PATH": path, "VIRTUAL_ENV": str(mine)}
    server = servers.start(tmp_path / "home", "--nodes", "1", "--gpus", "1", env=env)
    server.wait_ready()
    with server.client() as client:
        found = run(client, {"run": 'python -c "import sys; print(sys.prefix)"\necho $VIRTUAL_ENV'})
    server.end()
    # then it is that of their jobs
    assert found == [str(mine), str(mine)]


def test_a_script_in_an_environment_of_its_own_has_the_sdk(tmp_path: Path, servers: PlainServers):
    # given a job whose Python has nothing installed, and which has a PYTHONPATH of its own
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "mine.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text("""
import mine
from batuta import sdk
sdk.report(step=3, total_steps=4)
sdk.result(sdk.__version__)
try:
    import batuta.core
except ImportError as error:
    print(error)
""")
    server = servers.start(tmp_path / "home", "--nodes", "1", "--gpus", "1")
    server.wait_ready()
    with server.client() as client:
        own_path = {"PYTHONPATH": str(tmp_path / "modules")}
        job = client.submit(command=[f"{bare}/bin/python", "-W", "error", str(script)], env=own_path)
        over = client.wait(job, timeout_s=WITHIN_S)
        # then the SDK is there, and nothing else of Batuta
        assert list(client.logs(job, follow=False)) == ["No module named 'batuta.core'"]
        assert over.progress is not None
        assert (over.state, over.progress.step, client.result(job)) == ("SUCCEEDED", 3, "0.1.0")
    server.end()
