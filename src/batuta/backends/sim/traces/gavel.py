"""Gavel: jobs with a number of steps, and their throughput on K80, P100 and V100.

A `.trace` has ten columns between tabs and no header: job type, command, working directory, name of the steps
argument, whether it needs data, total steps, scale factor (GPUs), priority weight, SLO (-1: none), arrival
time in seconds. `simulation_throughputs.json` beside it (or in `--profiles`) gives steps/s by GPU type, job
type and scale factor. The reference type is V100: a job's run time is its steps over that throughput, and its
speed on the other types is measured. Weights and SLOs are not carried over. Narayanan et al.,
"Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from batuta.backends.sim.traces.assembly import Request, assemble
from batuta.backends.sim.traces.table import Cells
from batuta.backends.sim.traces.trace_format import TraceFile, TraceFormat, TraceOptions
from batuta.backends.sim.workload import Workload
from batuta.spec.problem import InputError, did_you_mean
from batuta.spec.text_file import read_text

THROUGHPUTS = "simulation_throughputs.json"
GPU_TYPES = ("v100", "p100", "k80")
"""The first that a job can run on is its reference."""
_COLUMNS = 10
_MOST_STEPS = 10**15

Throughputs = dict[tuple[str, int], dict[str, float]]
"""Steps/s by (job type, scale factor), then GPU type; a type that the job cannot run on is absent."""


def read(file: TraceFile, options: TraceOptions) -> Workload:
    cells = Cells(file)
    throughputs = _read_throughputs(file, options)
    requests: list[Request] = []
    other_weights = 0
    for line, text in enumerate(file.text.split("\n"), start=1):
        if not text.strip():
            continue
        fields = text.rstrip("\r").split("\t")
        if len(fields) != _COLUMNS:
            cells.fault(line, f"{len(fields)} columns between tabs, expected {_COLUMNS}")
            continue
        request = _request(cells, line, fields, throughputs)
        other_weights += fields[7].strip() not in ("1", "1.0")
        if request is not None:
            requests.append(request)
    notes = ["run times are steps over the throughput on V100; jobs run on K80, P100 and V100 only"]
    if other_weights:
        notes.append(f"{other_weights} jobs have a priority weight other than 1, which is not used")
    return assemble(file, FORMAT.name, requests, cells, options, notes)


def _request(cells: Cells, line: int, fields: list[str], throughputs: Throughputs) -> Request | None:
    job_type = fields[0].strip()
    steps = cells.whole(line, "total steps", fields[5], 0, _MOST_STEPS)
    gpus = cells.gpus(line, "scale factor", fields[6])
    arrival_s = cells.seconds(line, "arrival time", fields[9])
    speeds = throughputs.get((job_type, gpus))
    if not speeds:
        cells.fault(line, f"no throughput of {job_type} on {gpus} GPUs", _nearest(job_type, throughputs))
        return None
    reference = next(iter(speeds.values()))
    gpu_types = tuple((name.upper(), speed / reference) for name, speed in speeds.items())
    duration_s = steps / reference
    return Request(line, "", arrival_s, duration_s, gpus, application=job_type, gpu_types=gpu_types)


def _nearest(job_type: str, throughputs: Throughputs) -> str:
    counts = sorted(gpus for name, gpus in throughputs if name == job_type)
    if counts:
        return f"measured on {', '.join(map(str, counts))}"
    return did_you_mean(job_type, sorted({name for name, _ in throughputs}))


def _read_throughputs(file: TraceFile, options: TraceOptions) -> Throughputs:
    path = (options.profiles if options.profiles is not None else file.path.parent) / THROUGHPUTS
    if not path.exists():
        raise InputError.of(
            f"a Gavel trace counts steps: {THROUGHPUTS} is needed to turn them into seconds",
            file=file.name,
            fix=f"put it into {path.parent}, or name its folder with --profiles",
        )
    try:
        return _throughputs(json.loads(read_text(path)))
    except json.JSONDecodeError as error:
        raise InputError.of(f"is not JSON: {error.msg}", file=str(path), line=error.lineno) from None
    except (ValueError, TypeError, AttributeError, KeyError, SyntaxError, RecursionError) as error:
        raise _not_throughputs(path, error) from None


def _throughputs(tables: dict[str, dict[str, dict[str, Any]]]) -> Throughputs:
    found: Throughputs = {}
    for gpu_type in GPU_TYPES:
        for key, alone_and_paired in tables[gpu_type].items():
            job_type, gpus = ast.literal_eval(key)
            speed = float(alone_and_paired["null"])
            if 0 < speed < float("inf"):
                found.setdefault((str(job_type), int(gpus)), {})[gpu_type] = speed
    return found


def _not_throughputs(path: Path, error: Exception) -> InputError:
    return InputError.of(
        f"is not a table of throughputs by {', '.join(GPU_TYPES)}: {type(error).__name__}: {error}",
        file=str(path),
    )


def _recognises(first_line: str) -> bool:
    fields = first_line.split("\t")
    return len(fields) == _COLUMNS and fields[5].strip().isdecimal() and fields[6].strip().isdecimal()


FORMAT = TraceFormat(
    "gavel",
    "ten columns between tabs without a header (job type, command, …, steps, scale factor, …, arrival)",
    _recognises,
    read,
)
