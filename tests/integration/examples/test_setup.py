"""The setup of an example: into an environment of its own, once, whoever else comes at the same time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scripts import read_task
from tests.support.torch_install import REPO

WITH_SETUP = sorted(path.parent.name for path in (REPO / "examples").glob("*/train.py"))
WITHIN_S = 120.0


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """All that pip may find: a lightning that is nothing but its name."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "lightning.py").write_text("")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "lightning"\nversion = "1"\n'
    )
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "index")]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    return tmp_path / "index"


def test_two_nodes_of_one_machine_install_once_and_into_an_environment_of_the_example(tmp_path: Path, index: Path):
    # given two nodes whose `python` and `pip` are those of another environment, Batuta's for example
    task = read_task(REPO / "examples" / "lightning" / "task.yaml")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    env = {**os.environ, **dict(task.envs), "PATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    folder = tmp_path / "workdir"
    folder.mkdir()
    # when both do their setup at the same time
    pipe = subprocess.PIPE
    nodes = [
        subprocess.Popen(["bash", "-c", task.setup], cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True)
        for _ in range(2)
    ]
    said = [node.communicate(timeout=WITHIN_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    # then one has installed it, beside the script, where `run` looks for it
    assert sum("Successfully installed lightning-1" in out for out, _ in said) == 1, said
    ask = '. "$VENV/bin/activate" && python -c "import lightning as found; print(found.__file__)"'
    found = subprocess.run(["sh", "-c", ask], cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(f"{folder}/.venv/lib/")
    # and the other environment does not have it
    other = subprocess.run([sys.executable, "-c", "import lightning"], capture_output=True, check=False)
    assert other.returncode == 1


@pytest.mark.parametrize("example", WITH_SETUP)
def test_nothing_is_installed_before_the_example_has_its_environment(example: str):
    task = read_task(REPO / "examples" / example / "task.yaml")
    lines = task.setup.splitlines()
    activate = lines.index('. "$VENV/bin/activate"')
    assert lines[0] == "set -e"  # an environment that cannot be made ends the setup there
    assert not any("install" in line for line in lines[:activate])
    # `python -m pip` is of the environment in any case, `pip` may be another's
    assert all("python -m pip install" in line for line in lines[activate:] if "pip" in line)
    assert task.run.startswith('. "$VENV/bin/activate" &&')
