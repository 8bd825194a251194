"""docs/reference/cli.md has every verb and every option, and no other."""

import re
from pathlib import Path

from typer.main import get_command

from batuta.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
ELSEWHERE = {"simulate", "compare", "allocate", "policies", "trace"}
SHARED = {"--output", "--help", "--home", "--version"}


def commands(command, path=()):
    """All verbs, and `batuta` itself for the options before them."""
    if not path:
        yield ("batuta",), command
    for name, inner in getattr(command, "commands", {}).items():
        yield (*path, name), inner
        yield from commands(inner, (*path, name))


def test_every_verb_is_there():
    for path, _ in commands(get_command(app)):
        verb = " ".join(path)
        if path[0] not in ELSEWHERE or len(path) == 1:
            assert re.search(rf"\b{verb}\b", PAGE), verb


def test_every_option_is_there():
    for path, command in commands(get_command(app)):
        if path[0] in ELSEWHERE:
            continue
        for parameter in command.params:
            options = [one for one in (*parameter.opts, *parameter.secondary_opts) if one.startswith("--")]
            for option in set(options) - SHARED:
                assert option in PAGE, f"{' '.join(path)} {option}"


def test_no_option_is_invented():
    known = {
        option
        for _, command in commands(get_command(app))
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known | {"--help"}
