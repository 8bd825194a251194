"""No line of a kernel log is missed or counted twice between an agent and the operator."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[5]


@pytest.mark.slow
def test_over_a_hundred_kills_of_both_each_line_counts_once(tmp_path: Path) -> None:
    """Given agents and operators that are killed at any line of their code, each error is counted once."""
    program = [sys.executable, "-m", "tests.unit.backends.kube.health.killed_agents", str(tmp_path), "3"]
    done = subprocess.run(program, cwd=REPO, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert min(told["agents"], told["operators"]) >= 100
    assert told["rotations"] > 10
    # Most of it got through while they were killed, and not in the quiet afterwards.
    assert told["midway"] > told["written"] // 2
    assert told["pids"] == [*range(1, told["written"] + 1)]
