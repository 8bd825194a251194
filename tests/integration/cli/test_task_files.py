"""Task files as people have them, each run for real; together they have every key.

What a file is about stands in its head, as comments:

    # launch: OPTIONS      beside the file
    # exit: CODE           0 by default
    # prints: LINE         of its output, as often as it is written
    # note: TEXT           in a note at its submit
    # says: TEXT           about its end
    # refused: TEXT        in a problem
"""

import contextlib
import os
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from batuta.cli.main import app
from batuta.client.errors import ClientError
from batuta.spec.problem import InputError
from batuta.spec.skypilot_keys import CLOUD_KEYS, IGNORED_KEYS, UNSUPPORTED_KEYS
from batuta.spec.task import _KEYS
from batuta.spec.task_resources import _KNOWN
from tests.support.cli_server import Cli

FOLDER = Path(__file__).parent / "task_files"
FILES = sorted(FOLDER.glob("*.yaml"))
ELSEWHERE = {"image_id", "priority_class"}
"""Keys that a machine or a server has to have something for: tests of containers and of quota have them."""


def expectations(text: str, about: str) -> list[str]:
    return re.findall(rf"^# {about}: (.*)$", text, re.MULTILINE)


def launch(cli: Cli, *words: str) -> tuple[int, str, str]:
    """`batuta launch` in this process: its exit code, its output, and what it says beside."""
    with contextlib.chdir(cli.cwd):
        done = CliRunner().invoke(app, ["launch", *words], env={"BATUTA_HOME": str(cli.home)})
    if isinstance(done.exception, InputError | ClientError):
        return 2, done.stdout, str(done.exception)  # as `main` tells it
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def project(cli: Cli, tmp_path: Path) -> Cli:
    """A folder with all the files, from which they are launched."""
    shutil.copytree(FOLDER, tmp_path / "files")
    return Cli(cli.home, tmp_path / "files")


@pytest.mark.parametrize("file", [one.name for one in FILES])
def test_a_task_file_does_what_it_says(project: Cli, file: str) -> None:
    text = (FOLDER / file).read_text()
    options = shlex.split(" ".join(expectations(text, "launch")))

    code, out, err = launch(project, file, *options)

    told = f"{out}\n{err}"
    (wanted,) = expectations(text, "exit") or ["0"]
    assert code == int(wanted), told
    if not expectations(text, "refused"):
        assert Counter(out.splitlines()) == Counter(expectations(text, "prints")), told
    notes = [line for line in err.splitlines() if line.startswith("note: ")]
    for note in expectations(text, "note"):
        assert any(note in line for line in notes), told
    for sentence in (*expectations(text, "says"), *expectations(text, "refused")):
        assert sentence in err, told
    for place in (Path("/"), Path.home()):
        assert not os.path.lexists(place / "batuta-task-files")
    # Other jobs of this user may be using it just now.
    assert not (Path.home() / "sky_workdir").is_symlink()


def test_every_key_is_in_one_of_the_files() -> None:
    tasks = [yaml.safe_load(one.read_text()) for one in FILES]
    found = {key for task in tasks for key in task}
    assert found >= {*_KEYS, *IGNORED_KEYS, *UNSUPPORTED_KEYS}
    resources = {key for task in tasks for key in task.get("resources") or ()}
    assert resources >= {*_KNOWN, *CLOUD_KEYS} - ELSEWHERE
