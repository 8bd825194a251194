"""docs/how-to/install-on-kubernetes.md names options and values that there are."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from batuta.backends.kube.install.release import read_values
from batuta.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "install-on-kubernetes.md").read_text()
COMMANDS = [line for line in PAGE.splitlines() if line.startswith(("batuta install", "helm "))]


@pytest.mark.parametrize("command", COMMANDS)
def test_values_in_a_command_are_known(command: str):
    settings = re.findall(r"--set (\S+)", command)
    read_values([], settings)  # an unknown one raises


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("batuta")])
def test_options_in_a_command_are_known(command: str):
    install = get_command(app).commands["install"]  # type: ignore[attr-defined]
    known = {option for parameter in install.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"--[a-z-]+", command.partition("|")[0])) <= known


def test_the_file_of_values_is_accepted(tmp_path: Path):
    (text,) = re.findall(r'```yaml title="values.yaml"\n(.*?)```', PAGE, re.DOTALL)
    (tmp_path / "values.yaml").write_text(text)
    assert read_values([tmp_path / "values.yaml"], []).namespaces == ["team-vision", "team-speech"]
