"""When `.ci/run` passes although a test failed in its first run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.known_races import (
    KNOWN_RACES,
    Outcome,
    main,
    read_known_races,
    reasons_to_refuse,
    unexplained_races,
)

REPO = Path(__file__).resolve().parents[2]

RACE = "tests/kube/test_a.py::test_that_races"
OTHER = "tests/unit/test_b.py::test_other[a b]"
KNOWN = {RACE: "two programs want one port"}

GREEN = Outcome(0, frozenset())


def failed(*tests: str) -> Outcome:
    return Outcome(1, frozenset(tests))


def exit_code(tmp_path: Path, first: Outcome, alone: Outcome, *, strict: bool) -> int:
    first.write(tmp_path / "first.json")
    alone.write(tmp_path / "alone.json")
    return main(tmp_path / "first.json", tmp_path / "alone.json", strict=strict)


def test_a_run_without_failures_is_green():
    assert reasons_to_refuse(GREEN, None) == []
    assert unexplained_races(GREEN, None, {}) == []


def test_a_test_that_fails_and_then_passes_alone_is_a_race():
    (race,) = unexplained_races(failed(OTHER), GREEN, KNOWN)
    assert race.startswith(f"{OTHER}: failed, and passed alone")


@pytest.mark.parametrize(("strict", "code"), [(True, 1), (False, 0)])
def test_a_race_makes_a_strict_run_red(tmp_path: Path, strict: bool, code: int):
    assert exit_code(tmp_path, failed(OTHER), GREEN, strict=strict) == code


def test_a_known_race_that_passes_alone_is_forgiven():
    assert reasons_to_refuse(failed(RACE), GREEN) == []
    assert unexplained_races(failed(RACE), GREEN, KNOWN) == []


@pytest.mark.parametrize("strict", [True, False])
def test_what_fails_alone_too_makes_the_run_red(tmp_path: Path, strict: bool):
    assert reasons_to_refuse(failed(RACE), failed(RACE)) == [f"{RACE}: fails alone, too"]
    assert exit_code(tmp_path, failed(RACE), failed(RACE), strict=strict) == 1


def test_a_known_race_does_not_hide_another():
    (race,) = unexplained_races(failed(RACE, OTHER), GREEN, KNOWN)
    assert OTHER in race


@pytest.mark.parametrize(
    ("first", "alone"),
    [
        (None, GREEN),
        (Outcome(3, frozenset({RACE})), GREEN),
        (Outcome(2, frozenset()), GREEN),
        (failed(), GREEN),
        (failed(RACE), None),
        (failed(RACE), Outcome(5, frozenset())),
    ],
    ids=[
        "no word",
        "internal error",
        "interrupted",
        "no test to blame",
        "not run alone",
        "nothing was run alone",
    ],
)
def test_a_run_that_did_not_come_to_its_end_is_red(first: Outcome | None, alone: Outcome | None):
    assert reasons_to_refuse(first, alone)


def test_a_race_has_an_explanation_below_its_name():
    text = f"# for the reader\n{RACE}\n    two programs\n    want one port\n\n{OTHER}\n\tslow disk\n"
    assert read_known_races(text) == {RACE: "two programs want one port", OTHER: "slow disk"}


@pytest.mark.parametrize("text", [f"{RACE}\n", f"{RACE}\n{OTHER}\n    slow disk\n", "    slow disk\n"])
def test_a_race_without_an_explanation_or_a_name_is_refused(text: str):
    with pytest.raises(ValueError, match="without"):
        read_known_races(text)


def test_every_known_race_is_a_test_that_exists():
    for test in read_known_races(KNOWN_RACES.read_text()):
        file, _, name = test.partition("::")
        assert f"def {name.rpartition('::')[2].partition('[')[0]}(" in (REPO / file).read_text()


@pytest.mark.slow
def test_pytest_says_how_a_run_ended(tmp_path: Path):
    """With two processes: a test that fails, one that cannot be set up, and one that passes."""
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "conftest.py").write_text("from tests.support.outcome import *\n")
    (suite / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef broken(): assert False\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert False\n"
        "def test_is_not_set_up(broken): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--outcome-to", "said.json"]
    environment = os.environ | {"PYTHONPATH": str(REPO), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)
    assert Outcome.read(suite / "said.json") == failed("test_it.py::test_fails", "test_it.py::test_is_not_set_up"), run


def test_a_run_that_leaves_no_file_has_said_nothing(tmp_path: Path):
    assert Outcome.read(tmp_path / "none.json") is None
