"""Every verb explains itself with an example, and `batuta --help` loads next to nothing."""

import ast
import re
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from batuta.cli.main import app
from batuta.cli.verbs import VERBS

OF_THE_SPEC = frozenset(
    (
        *(
            "launch",
            "queue",
            "status",
            "logs",
            "explain",
            "eta",
            "result",
            "cancel",
            "stop",
            "start",
            "resize",
            "trial",
        ),
        *(
            "history",
            "top",
            "nodes",
            "gpus",
            "health",
            "queues",
            "policy",
            "shadow",
            "whatif",
            "replay",
            "events",
            "up",
            "down",
            "backup",
            "restore",
            "audit",
            "install",
            "operator",
            "agent",
            "device-plugin",
            "doctor",
            "dashboard",
            "report",
        ),
        *("token", "completion", "simulate", "compare", "allocate", "policies", "trace", "vgpu"),
        "share",
        *("create", "get", "delete"),
    )
)


def all_commands() -> list[tuple[str, ...]]:
    """Paths of all commands and groups below `batuta`."""

    def below(command, path):
        for name, inner in getattr(command, "commands", {}).items():
            yield (*path, name)
            yield from below(inner, (*path, name))

    return list(below(get_command(app), ()))


def test_all_verbs_of_the_spec_are_there():
    assert {path[0] for path in all_commands()} == OF_THE_SPEC
    families = {
        "nodes": {"list", "cordon", "uncordon", "drain", "mended"},
        "queues": {"list", "apply", "describe", "try", "delete", "export"},
        "policy": {"show", "set", "shadow", "list"},
        "token": {"create", "list", "revoke"},
        "completion": {"bash", "zsh", "fish", "install"},
        "get": {"jobs"},
        "vgpu": {"create", "status", "inject", "run"},
        "share": {"selftest", "status"},
        "health": {"rules", "check-rules"},
    }
    for family, members in families.items():
        assert {path[1] for path in all_commands() if path[0] == family and len(path) == 2} == members


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
def test_help_has_a_promise_and_an_example(path):
    result = CliRunner().invoke(app, [*path, "--help"], prog_name="batuta")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: batuta {' '.join(path)}")
    _, _, after_usage = result.output.partition("\n")
    assert re.search(r"Example|where", after_usage), result.output
    assert f"batuta {' '.join(path)}" in after_usage
    assert "..." not in after_usage, "a sentence is cut short"


def test_the_first_sentence_of_each_verb_fits_into_the_list():
    listed = CliRunner().invoke(app, ["--help"], terminal_width=80).output
    ours = listed.partition("Options:")[2].partition("Simulation")[0]
    assert "..." not in ours, ours


def test_verbs_that_talk_to_a_server_have_home_and_those_that_print_have_json():
    without_home = {
        "simulate",
        "compare",
        "allocate",
        "policies",
        "trace",
        "vgpu",
        "share",
        "health",
        "completion",
        "get",
        "install",
        "operator",
        "agent",
        "device-plugin",
    }
    without_json = {
        "launch",
        "logs",
        "up",
        "trace",
        "vgpu",
        "share",
        "health",
        "completion",
        "create",
        "delete",
        "token",
        "get",
        "operator",
        "device-plugin",
    }
    root = get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        options = {option for parameter in command.params for option in parameter.opts}
        if name not in without_home and name != "token":
            assert "--home" in options, name
        if name not in without_json:
            assert "--output" in options, name


def test_the_list_of_verbs_says_what_each_verb_says_of_itself():
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        (verb,) = (verb for verb in VERBS if verb.name == name)
        assert command.get_short_help_str(200) == verb.sentence


def test_help_loads_no_verb():
    # It has 0.3 s of CPU time (`make bench` shows how much it takes), of which Typer takes half.
    program = (
        "import sys; from batuta.cli.main import run\n"
        "sys.argv[1:] = ['--help']\n"
        "try: run()\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith('batuta.cli.')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.rpartition(".")[2] for name in ast.literal_eval(done.stderr)}
    assert loaded <= {"main", "verbs", "completion", "options"}


@pytest.mark.parametrize("arguments", [["--help"], ["launch", "--help"], ["top", "--help"], ["completion", "bash"]])
def test_help_loads_nothing_heavy(arguments):
    program = (
        "import sys; from batuta.cli.main import run; sys.argv[1:] = " + repr(arguments) + "\n"
        "try: run()\nexcept SystemExit: pass\n"
        # Typer itself uses pydantic.
        "heavy = {'numpy', 'httpx2', 'rich', 'yaml', 'fastapi'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
