"""The README can be followed in an empty folder, and names files, verbs and options that there are."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from batuta.cli.main import app
from tests.support.cli_server import Cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    {line.removeprefix("$ ").split(" #")[0] for line in PAGE.splitlines() if re.match(r"(\$ )?batuta ", line)}
)
LOCAL = PAGE.split("## On one machine")[1].split("\n## ")[0].split("```")[1].removeprefix("console\n")


def script() -> str:
    """What a reader types in the section about one machine, with another port than the usual one."""
    typed, in_file = [], False
    for line in LOCAL.splitlines():
        if line.startswith("$ ") or in_file:
            typed.append(line.removeprefix("$ "))
            in_file = "<<END" in line or (in_file and line != "END")
    return "\n".join(typed).replace("up --virtual", "up --virtual --port 0")


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    (tmp_path / "empty").mkdir()
    made = Cli(tmp_path / "home", tmp_path / "empty")
    yield made
    made.run("down")


def test_what_it_says_about_one_machine_works_in_an_empty_folder(cli: Cli) -> None:
    # given all that is typed there, but for the questions and the end
    start, _, rest = script().partition("batuta queue\n")
    questions = [line.split(" #")[0].strip() for line in rest.splitlines()]
    assert questions == ["batuta explain big", "batuta down"]
    programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-e", "-c", start],
        cwd=cli.cwd,
        env={"PATH": programs, "HOME": str(cli.cwd), "BATUTA_HOME": str(cli.home)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # then the jobs have the sizes that it shows
    shown = dict(re.findall(r"^ \d  (\w+) .*?  +(\d/\d)", LOCAL, re.MULTILINE))
    assert shown == {"big": "0/6", "eval": "4/4", "resnet": "4/2"}

    def sizes() -> dict[str, str]:
        jobs = cli.json("queue")
        return {job["name"]: f"{job['gpus']['now']}/{job['gpus']['wanted']}" for job in jobs}

    cli.until(sizes, lambda found: found == shown)
    # and the one that waits is told what would start it, once the server has had the time to try that out
    (expected,) = re.findall(r"^  if it asked .*$", LOCAL, re.MULTILINE)
    cli.until(lambda: cli.run("explain", "big").stdout, lambda told: f"\n{expected}\n" in told)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_verb_and_option_is_there(command: str) -> None:
    words = re.split(r" -- | \| ", command)[0].removeprefix("batuta ").removeprefix("--context tests ").split()
    verb = get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    known = {name for one in verb.params for name in (*one.opts, *one.secondary_opts)}
    assert {word for word in words[1:] if word.startswith("-")} <= known


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)", PAGE))))
def test_every_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()
