"""The workload that comes with Batuta: 120 elastic jobs that fill a cluster of eight nodes with four GPUs."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from batuta.backends.sim.traces import batuta_jsonl
from batuta.backends.sim.traces.trace_format import RIGID_OPTIONS, TraceFile
from batuta.backends.sim.workload import Workload

SAMPLE = "sample"


def sample_workload() -> Workload:
    """The shipped jobs. `generator.SAMPLE_OPTIONS` made them."""
    text = resources.files("batuta").joinpath("data", "sample.jsonl").read_text(encoding="utf-8")
    return batuta_jsonl.read(TraceFile(Path(SAMPLE), text), RIGID_OPTIONS)
