"""The scenario of the demo: which job arrives when, for real processes and for the simulator.

Made for two virtual nodes with four GPUs each. In two and a half minutes one sees a job take the whole
cluster, give GPUs back as others come, one job wait for a shorter one, and all grow again towards the end.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass
from importlib import resources

from batuta.demo.training import parse_options

RESTART_S = 2.0  # what a start or a resize of these jobs costs: a checkpoint within a step, and new processes
_TIMES = (
    *((0.0, "vision"), (10.0, "tabular"), (30.0, "language")),
    *((50.0, "speech"), (60.0, "eval"), (115.0, "smoke")),
)
_MODULE = "batuta.demo.trainer"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of the demo, and when it comes."""

    at_s: float  # seconds after the demo's beginning
    task_yaml_text: str  # the task file, with the Python that runs this in it: `python3` may be one without Batuta


def demo_workload(*, rigid: bool = False) -> str:
    """The same jobs as a workload for the simulator, in Batuta's JSON lines.

    `rigid` is what a cluster without elasticity would make of them: each has the size that it asks for.
    """
    name = "demo-rigid" if rigid else "demo"
    lines = [json.dumps({"batuta_workload": 1, "name": name, "notes": []})]
    lines += [json.dumps(_workload_job(at_s, _task_text(file), rigid)) for at_s, file in _TIMES]
    return "\n".join(lines) + "\n"


def _task_text(name: str) -> str:
    return resources.files("batuta.demo").joinpath("tasks", f"{name}.yaml").read_text(encoding="utf-8")


def _with_this_python(text: str) -> str:
    # A JSON text is a YAML text: quotes, spaces and backslashes in the path stay what they are.
    return re.sub(r"^  PYTHON: .*$", lambda _: f"  PYTHON: {json.dumps(sys.executable)}", text, flags=re.MULTILINE)


def _workload_job(at_s: float, text: str, rigid: bool) -> dict[str, object]:
    """Reads what our own task files say, which are plain enough for that; `batuta.spec` is not known here."""
    name, run = _value(text, "name"), _value(text, "run")
    if name is None or run is None:
        raise ValueError("a task of the demo needs name and run, on a line each")
    words = shlex.split(run)
    options = parse_options(words[words.index(_MODULE) + 1 :])
    size = int(_value(text, "num_nodes") or 1)
    least, most = (int(_value(text, key) or size) for key in ("min_nodes", "max_nodes"))
    alone_s = options.step_s(1)
    return {
        "id": name,
        "submit_s": at_s,
        "size": size,
        "min": size if rigid else least,
        "max": size if rigid else most,
        "work_s": options.steps * alone_s,
        # Speeds with 1, 2, … GPUs, relative to one; a rigid job has the curve of the elastic one.
        "curve": [round(alone_s / options.step_s(gpus), 4) for gpus in range(1, most + 1)],
        "name": name,
        "application": name,
        "restart_s": RESTART_S,
    }


def _value(text: str, key: str) -> str | None:
    found = re.search(rf"^ *{key}: (.+)$", text, re.MULTILINE)
    return found[1] if found else None


DEMO: tuple[Arrival, ...] = tuple(Arrival(at_s, _with_this_python(_task_text(file))) for at_s, file in _TIMES)
