"""docs/reference/coming-from.md names verbs, options and policies that there are."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.cli.main import app
from batuta.policies.registry import policy_summaries

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "coming-from.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"`batuta ((?:--context NAME )?[a-z][^`]*)`", PAGE)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one(command: str) -> None:
    words = command.removeprefix("--context NAME ").split()
    verbs = [word for word in words[:2] if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
    told = CliRunner().invoke(app, [*verbs, "--help"], prog_name="batuta")
    assert told.exit_code == 0, told.output
    for option in (word for word in words if word.startswith("-")):
        assert re.search(rf"{option}\b", told.output), f"{option} of batuta {command}"


def test_every_policy_of_voda_is_named_and_installed() -> None:
    known = {name for name, _ in policy_summaries() if not name.endswith("-replay")}
    named = re.search(r"^\| FIFO, .*? \| (.*?), and \[seven more\]", PAGE, re.MULTILINE)
    assert named is not None
    voda = re.findall(r"`([a-z-]+)`", named[1])
    assert len(voda) == 8
    assert set(voda) <= known
    assert len(known - set(voda)) == 7
