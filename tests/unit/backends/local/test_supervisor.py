"""The small parts of a runner."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.local import runner
from batuta.backends.local.supervisor import lean_stdlib
from batuta.backends.local.supervisor.report import StatusFile

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_json_is_that_of_everybody_else(value: object):
    assert json.loads(lean_stdlib.dump(value)) == value
    assert lean_stdlib.parse(json.dumps(value)) == value
    assert lean_stdlib.parse(json.dumps(value, ensure_ascii=False)) == value


@pytest.mark.parametrize("text", ["", "{", '{"a": ', "nul", "[1,"])
def test_bad_json_is_a_value_error(text: str):
    with pytest.raises(ValueError):  # noqa: PT011 (what it says differs between interpreters)
        lean_stdlib.parse(text)


def test_status_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "state.json"
    file = StatusFile(str(path))
    assert not path.exists()
    assert file.replace('{"long": "' + "x" * 2000 + '"}')
    with open(path, encoding="utf-8") as reader:
        assert file.replace('{"short": 1}')
        assert len(json.load(reader)["long"]) == 2000  # whoever has opened the old one keeps it
    assert json.loads(path.read_text()) == {"short": 1}
    file.close()
    assert list(tmp_path.iterdir()) == [path]


def test_status_that_cannot_be_written_is_told_and_tried_again(tmp_path: Path):
    folder = tmp_path / "gone"
    folder.mkdir()
    file = StatusFile(str(folder / "state.json"))
    (folder / "state.json.spare").unlink()
    folder.rmdir()
    assert not file.replace("{}")
    folder.mkdir()
    assert file.replace("{}")
    file.close()


def test_runner_loads_nothing_slow():
    """It starts once per replica: what it loads is counted in milliseconds and megabytes."""
    code = f"""
import sys
globals_ = {{"__file__": {runner.__file__!r}, "__name__": "runner"}}
with open({runner.__file__!r}) as file:
    exec(compile(file.read(), {runner.__file__!r}, "exec"), globals_)
globals_["_find_supervisor"]()
import batuta.backends.local.supervisor.loop, batuta.backends.local.supervisor.report
from batuta.backends.local.supervisor.lean_stdlib import dump, parse, prctl
parse(dump({{}})), prctl(15, b"test")
print(*sorted(sys.modules))
"""
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, cwd=os.sep
    )
    loaded = set(result.stdout.split())
    assert "batuta.backends.local.supervisor.loop" in loaded
    assert not loaded & {"re", "enum", "typing", "json", "ctypes", "subprocess", "threading", "dataclasses"}
    assert not {name for name in loaded if name.startswith("batuta.") and "supervisor" not in name} - {
        "batuta.backends",
        "batuta.backends.local",
    }
