"""The how-to's example is a whole policy: it runs as printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.result import summarise

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-policy.md"


def example(folder: Path) -> Path:
    found = re.search(r"```python title=\"widest_first.py\"\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    path = folder / "widest_first.py"
    path.write_text(found[1])
    return path


def test_the_example_is_about_thirty_lines_and_beats_fifo(tmp_path: Path) -> None:
    path = example(tmp_path)
    body = path.read_text().split("def allocate", 1)[1]
    assert len(body.splitlines()) <= 30

    def mean_jct_s(policy: str) -> float:
        run = run_experiment(Experiment(policy=policy, workload="sample", cluster="8x4"))
        told = summarise(run)
        assert told["finished"] == 120
        return float(json.loads(json.dumps(told))["jct_s"]["mean"])

    assert mean_jct_s(str(path)) < mean_jct_s("fifo")
