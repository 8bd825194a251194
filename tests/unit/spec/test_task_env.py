"""Variables come from the file, from dotenv files and from the command line, in that order."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.spec.problem import InputError
from batuta.spec.task import parse_task
from batuta.spec.task_env import Overrides, expand_variables, parse_env_file, parse_env_options, read_env


def test_a_null_value_has_to_be_given():
    text = "run: x\nenvs: {A: null, B: '', C: 1}"
    with pytest.raises(InputError, match=r"envs\.A has no value"):
        parse_task(text)
    assert dict(parse_task(text, overrides=Overrides(env={"A": "a"})).envs) == {"A": "a", "B": "", "C": "1"}


def test_what_is_declared_a_secret_stays_one_however_it_is_given():
    text = "run: x\nsecrets: {A: null}"
    for overrides in (Overrides(env={"A": "a"}), Overrides(secret={"A": "a"})):
        task = parse_task(text, overrides=overrides)
        assert (task.envs, task.secrets) == ((), (("A", "a"),))


def test_a_name_in_both_places_is_a_secret():
    task = parse_task("run: x\nenvs: {A: null}\nsecrets: {A: s}")
    assert (task.envs, task.secrets) == ((), (("A", "s"),))
    assert task.notes[0] == "envs.A is not used: the value in secrets is"


def test_what_batuta_sets_is_noted():
    task = parse_task("run: x\nenvs: {CUDA_VISIBLE_DEVICES: 0, BATUTA_X: 1, SKYPILOT_DOCKER_SERVER: a}")
    assert [note for note in task.notes if "set by Batuta" in note] == [
        "CUDA_VISIBLE_DEVICES is set by Batuta: the value in the task is not used",
        "BATUTA_X is set by Batuta: the value in the task is not used",
    ]


def test_a_value_that_no_process_can_have_is_refused():
    with pytest.raises(InputError, match="longer than 127 KiB"):
        parse_task("run: x\nenvs: {A: " + "a" * 2**17 + "}")


def test_an_option_without_a_value_takes_the_callers():
    assert parse_env_options(["A=1", "B=", "C=x=y", "HOME"], {"HOME": "/h"}) == {
        "A": "1",
        "B": "",
        "C": "x=y",
        "HOME": "/h",
    }


def test_bad_options_are_refused_together():
    with pytest.raises(InputError) as caught:
        parse_env_options(["=1", "A-B=1", "NOT_THERE"], {})
    assert [str(problem) for problem in caught.value.problems] == [
        "--env: '' is not a name for a variable (letters, digits and _, not beginning with a digit)",
        "--env: 'A-B' is not a name for a variable (letters, digits and _, not beginning with a digit)",
        "--env NOT_THERE: your environment has no NOT_THERE (--env NOT_THERE=VALUE)",
    ]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1", "1"),
        ("export A=1", "1"),
        ("A = a b", "a b"),
        ("A=a # why", "a"),
        ("A=a#b", "a#b"),
        ("A=", ""),
        ("A=# why", ""),
        ("A='a # b'", "a # b"),
        ("A='a\\n'", "a\\n"),
        ('A="a\\n\\"b\\" \\\\" # why', 'a\n"b" \\'),
        ("A=$HOME", "$HOME"),
    ],
)
def test_a_dotenv_file_is_read_as_people_write_it(line, value):
    assert parse_env_file(f"# top\n\n{line}\n", ".env") == {"A": value}


def test_a_bad_dotenv_file_is_refused_with_its_lines():
    with pytest.raises(InputError) as caught:
        parse_env_file('A=1\nB\n2=3\nC=\'x\nD="x" y\n', ".env")
    assert [(problem.file, problem.line) for problem in caught.value.problems] == [
        (".env", 2),
        (".env", 3),
        (".env", 4),
        (".env", 5),
    ]


def test_options_win_over_files_and_later_files_over_earlier(tmp_path):
    (tmp_path / "a").write_text("A=1\nB=1\nC=1\n")
    (tmp_path / "b").write_text("B=2\nC=2\n")
    assert read_env(["C=3"], [tmp_path / "a", tmp_path / "b"]) == {"A": "1", "B": "2", "C": "3"}
    with pytest.raises(InputError) as caught:
        read_env(["=x"], [tmp_path / "none"])
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("$A/x", "a/x"),
        ("${A}B", "aB"),
        ("$AB", "$AB"),
        ("$A$A", "aa"),
        ("$", "$"),
        ("${A", "${A"),
        ("$$A", "$a"),
    ],
)
def test_names_with_a_value_are_filled_in(text, filled):
    assert expand_variables(text, {"A": "a"}) == filled


@given(st.text(max_size=80))
def test_any_dotenv_file_is_read_or_refused(text):
    with contextlib.suppress(InputError):
        parse_env_file(text, ".env")


@pytest.mark.parametrize(
    "written",
    ["secrets: hunter2", "secrets: [hunter2]", "secrets: {TOKEN=hunter2: }", "secrets: {T: [hunter2]}"],
)
def test_what_stands_in_place_of_secrets_is_not_shown(written: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_task(f'run: "true"\n{written}\n')
    assert "secrets" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_secret_without_a_name_is_not_shown() -> None:
    with pytest.raises(InputError) as refused:
        parse_env_options(["hunter 2"], {}, "--secret")
    assert "hunter" not in str(refused.value)
