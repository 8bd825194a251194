"""What is submitted, in all the ways to say it."""

import json
from pathlib import Path
from typing import cast

import pytest

from batuta.client.submission import Submission
from batuta.spec.problem import InputError


def body(submission: Submission) -> dict:
    return json.loads(submission.body())


def test_a_file_is_read_and_paths_start_where_it_is_submitted_and_then_beside_it(tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text("run: python train.py\n")
    for task in (file, str(file)):
        asked = body(Submission.of(task))
        assert asked == {
            "task": "run: python train.py\n",
            "overrides": {},
            "base_dir": str(Path.cwd()),
            "file": str(file),
            "file_dir": str(tmp_path),
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
    assert asked["overrides"] == {"workdir": str(Path.cwd()), "gpus": "1"}
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


@pytest.mark.parametrize(
    ("task", "overrides", "said"),
    [
        (["run: x"], {}, "task must be a path, a text or a mapping, got list ['run: x']"),
        ({"run": "x"}, {"gpus": 2}, 'gpus must be a text such as "H100:4" or "2", got int 2'),
        ({"run": "x"}, {"min_nodes": "4"}, "min_nodes must be a whole number, got str 4"),
        ({"run": "x"}, {"num_nodes": True}, 'num_nodes must be a whole number or "auto", got bool True'),
        ({"run": "x"}, {"env": ["A=1"]}, "env must be a mapping of names to texts, got list ['A=1']"),
        ({"run": "x"}, {"env": {"LR": 0.1}}, "env LR must be a text, got float"),
        ({"run": "x"}, {"gpu": "2"}, "gpu is not an argument of a submit: did you mean gpus?"),
    ],
)
def test_what_is_of_a_wrong_type_is_named_before_anything_is_sent(task, overrides, said):
    with pytest.raises(TypeError) as refused:
        Submission.of(task, overrides=overrides)
    assert str(refused.value) == said


def test_all_wrong_types_come_at_once_and_values_of_secrets_are_not_told():
    with pytest.raises(TypeError) as refused:
        Submission.of(command=["echo", cast("str", 1)], overrides={"secret": {"S": 12345}, "max_nodes": 1.5})
    told = str(refused.value)
    assert "command must be a text or a list of texts" in told
    assert "secret S must be a text, got int" in told
    assert "max_nodes must be a whole number" in told
    assert "12345" not in told


def test_a_workdir_may_be_a_path(tmp_path):
    assert body(Submission.of({"run": "x"}, overrides={"workdir": tmp_path}))["overrides"] == {"workdir": str(tmp_path)}
