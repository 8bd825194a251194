"""What is submitted, in all the ways to say it."""

import json
from pathlib import Path

import pytest

from batuta.client.submission import Submission
from batuta.spec.problem import InputError


def body(submission: Submission) -> dict:
    return json.loads(submission.body())


def test_a_file_is_read_and_its_folder_is_where_paths_start(tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text("run: python train.py\n")
    for task in (file, str(file)):
        asked = body(Submission.of(task))
        assert asked == {
            "task": "run: python train.py\n",
            "overrides": {},
            "base_dir": str(tmp_path),
            "file": str(file),
        }


def test_a_text_of_several_lines_is_the_task():
    asked = body(Submission.of("name: x\nrun: echo\n"))
    assert (asked["task"], asked["base_dir"]) == ("name: x\nrun: echo\n", str(Path.cwd()))
    assert "file" not in asked


def test_a_mapping_is_the_task():
    assert body(Submission.of({"run": "echo"}))["task"] == {"run": "echo"}


@pytest.mark.parametrize(
    ("command", "line"),
    [("echo $HOME", "echo $HOME"), (["echo $HOME"], "echo $HOME"), (["echo", "a b"], "echo 'a b'")],
)
def test_a_command_runs_here(command, line):
    asked = body(Submission.of(command=command))
    assert asked["task"] == {"run": line}
    assert asked["overrides"] == {"workdir": str(Path.cwd())}
    assert body(Submission.of(command="x", overrides={"workdir": "/tmp"}))["overrides"]["workdir"] == "/tmp"


def test_only_overrides_that_say_something_are_sent():
    overrides: dict[str, object] = {"name": "x", "gpus": None, "env": {}, "priority": 0}
    assert body(Submission.of({"run": "x"}, overrides=overrides))["overrides"] == {"name": "x", "priority": 0}


def test_each_has_a_key_of_its_own_unless_it_is_given():
    first, second = Submission.of({"run": "x"}), Submission.of({"run": "x"})
    assert first.key != second.key
    assert Submission.of({"run": "x"}, key="mine").key == "mine"


@pytest.mark.parametrize("what", [{}, {"task": {"run": "x"}, "command": "x"}])
def test_one_of_both(what):
    with pytest.raises(InputError, match="what shall run"):
        Submission.of(**what)


def test_what_is_too_large_is_not_sent():
    with pytest.raises(InputError, match="larger than 1 MiB"):
        Submission.of({"run": "x" * (1 << 20)}).body()


def test_secrets_are_not_shown():
    assert "hush" not in repr(Submission.of({"run": "x"}, overrides={"secret": {"K": "hush"}}))
