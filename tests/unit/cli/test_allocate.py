import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from batuta.cli.main import app
from batuta.spec.problem import InputError

JOBS = [
    {
        "id": name,
        "submit_s": k,
        "size": 2,
        "min": 1,
        "max": 4,
        "remaining_s": 60,
        "speed": [0, 1, 1.8, 2.5, 3.1],
    }
    for k, name in enumerate(["a", "b", "c"])
]
POOL = {"capacity": {"gpu": 2}, "jobs": JOBS}


def allocate(document: Any, *options: str, policy: str = "fifo") -> str:
    result = CliRunner().invoke(
        app, ["allocate", "--policy", policy, "--input", "-", *options], input=json.dumps(document)
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_prints_json_by_default() -> None:
    assert json.loads(allocate(POOL)) == {
        "policy": "fifo",
        "allocation": {"a": 1, "b": 1, "c": 0},
        "reasons": {
            "a": "1 of 4 GPUs: its minimum; the next step takes 1, 0 left",
            "b": "1 of 4 GPUs: its minimum; the next step takes 1, 0 left",
            "c": "0 GPUs: needs 1, 0 left",
        },
    }


def test_a_list_in_gives_a_list_out() -> None:
    answers = json.loads(allocate([POOL, {"capacity": {"gpu": 9}, "jobs": JOBS}], policy="elastic-fifo"))
    assert [answer["allocation"] for answer in answers] == [
        {"a": 1, "b": 1, "c": 0},
        {"a": 3, "b": 3, "c": 3},
    ]


def test_a_table_for_people() -> None:
    shown = allocate(POOL, "--output", "table")
    assert "fifo: 2 of 2 GPUs given" in shown
    assert "0 GPUs: needs 1, 0 left" in shown


def test_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pool.json"
    file.write_text(json.dumps(POOL))
    result = CliRunner().invoke(app, ["allocate", "-p", "srjf", "-i", str(file)])
    assert json.loads(result.output)["policy"] == "srjf"


def test_bad_policy_and_bad_input_are_told_together() -> None:
    with pytest.raises(InputError) as caught:
        allocate({"capacity": {"gpu": -1}, "jobs": []}, policy="fif")
    messages = [problem.message for problem in caught.value.problems]
    assert messages == [
        "unknown policy 'fif' (did you mean fifo?)",
        "capacity.gpu must be a whole number in 0..1000000000, found -1",
    ]


def test_no_such_file() -> None:
    result = CliRunner().invoke(app, ["allocate", "-p", "fifo", "-i", "no/such/file.json"])
    assert isinstance(result.exception, InputError)
    assert "no/such/file.json" in str(result.exception)
