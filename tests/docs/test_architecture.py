"""docs/architecture.md is true: every file and every function that it names is there."""

import ast
import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
FILE = r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`"
NAMED = re.findall(FILE + r"(?: \| | )`(\w+)`", PAGE)
HOPS = re.findall(r"^\| [^|]+ \| `([^`]+\.py)` \| `(\w+)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(FILE, PAGE))))
def test_every_file_is_there(path: str) -> None:
    places = (REPO / "src" / "batuta" / path, REPO / path)
    assert any(place.exists() for place in places), path


@pytest.mark.parametrize(("path", "name"), sorted({*NAMED, *HOPS}))
def test_every_function_and_class_is_there(path: str, name: str) -> None:
    tree = ast.parse((REPO / "src" / "batuta" / path).read_text(encoding="utf-8"))
    defined = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    assert name in defined, f"{path} does not define {name}"


def test_the_walk_of_a_local_job_has_every_step_of_a_cycle() -> None:
    steps = {name for _, name in HOPS}
    assert steps >= {
        "launch",
        "submit_job",
        "apply",
        "decide",
        "admit",
        "allocate",
        "place",
        "weigh",
        "explain",
    }
