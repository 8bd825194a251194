"""What `launch` understands, and what it says without a server."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.cli.main import app
from batuta.client.errors import NoServerError
from batuta.spec.problem import InputError

TASK = """\
name: resnet
num_nodes: 2
resources: {accelerators: "H100:8"}
elastic: {min_nodes: 1, max_nodes: 4}
secrets: {HF_TOKEN: null}
run: torchrun train.py
"""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, and no server."""
    monkeypatch.setenv("BATUTA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BATUTA_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text(TASK)


def launch(*arguments: str):
    result = CliRunner().invoke(app, ["launch", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_dry_run_without_a_server_shows_what_would_be_asked_for():
    result = launch("train.yaml", "--dryrun", "--secret", "HF_TOKEN=hush", "--env", "LR=0.1", "--queue", "night")
    assert "resnet: 2 nodes with 8 H100 GPUs each (elastic, 1–4 nodes), queue night" in result.output
    assert "torch-elastic" in result.output
    assert "LR=0.1" in result.output
    assert "HF_TOKEN (values hidden)" in result.output
    assert "hush" not in result.output
    assert "whether it fits was not checked" in result.output


def test_a_dry_run_as_json():
    result = launch("train.yaml", "--dryrun", "--env", "HF_TOKEN=x", "-o", "json")
    told = json.loads(result.stdout)
    assert told["fits"] is None
    assert (told["job"]["name"], told["job"]["gpus"]["wanted"], told["job"]["gpus"]["max"]) == (
        "resnet",
        16,
        32,
    )


def test_a_command_behind_two_dashes_keeps_its_own_options():
    result = launch("--dryrun", "-n", "hello", "--gpus", "2", "--", "python", "-c", "print(1)", "--gpus", "9")
    assert "hello: one node with 2 GPUs, queue default" in result.output
    assert "python -c 'print(1)' --gpus 9" in result.output


def test_a_text_with_spaces_is_a_command_as_for_sky():
    assert "runs      echo hello" in launch("echo hello", "--dryrun").output


def test_all_problems_of_a_task_come_at_once_with_places():
    Path("bad.yaml").write_text("nme: x\nnum_nodes: zero\nrun: x\n")
    with pytest.raises(InputError) as caught:
        launch("bad.yaml", "--dryrun", "--priority", "5000")
    told = [str(problem) for problem in caught.value.problems]
    assert any(text.startswith("bad.yaml:1:1: unknown key nme") for text in told)
    assert any("bad.yaml:2:" in text for text in told)
    assert any("--priority" in text for text in told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "what shall run?"),
        (["--"], "there is nothing behind --"),
        (["train.yaml", "--", "ls"], "a task file and a command"),
        (["missing.yaml"], "missing.yaml: no such file"),
        (["train.yaml", "--env", "1X=2"], "is not a name for a variable"),
        (["train.yaml", "--env", "SURELY_NOT_SET_ANYWHERE"], "your environment has no"),
        (["train.yaml", "--env-file", "missing.env"], "missing.env: no such file"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        launch(*arguments)


def test_bad_variables_of_all_kinds_are_told_together():
    with pytest.raises(InputError) as caught:
        launch("train.yaml", "--env", "1X=2", "--secret", "2Y=3", "--env-file", "missing.env")
    assert len(caught.value.problems) == 3


def test_without_a_server_nothing_is_submitted():
    with pytest.raises(NoServerError, match="start one with `batuta up`"):
        launch("train.yaml", "-d")
