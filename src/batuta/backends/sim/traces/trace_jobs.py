"""From the requests of a rigid trace to a workload: order, time zero, ids, size ranges, speed curves, work.

Curves come from a speed model, or from the measurements of ElasticFlow's authors: a folder `throughputs_T4`
has one CSV per model with `global_batch_size,1,2,4,…`, one row of iterations/s per batch size. A cell that is
empty, `nan` or 0 was not measured.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from batuta.backends.sim.speed_models import LARGEST_JOB_GPUS, measured_curve, parse_speed
from batuta.backends.sim.traces.trace_format import CellParser, Elasticity, TraceFile, TraceOptions
from batuta.backends.sim.workload import SimJob, Workload
from batuta.core.curve import SpeedCurve
from batuta.core.job import ANY_TYPE, Job, Share
from batuta.spec.problem import InputError, Problem, read_text


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """One model at one global batch size."""

    name: str
    curve: SpeedCurve
    sizes: frozenset[int]
    largest: int


def read_measured_models(folder: Path) -> list[MeasuredModel]:
    """All models of a folder, in the order of the files' names and their rows."""
    models: list[MeasuredModel] = []
    problems: list[Problem] = []
    for path in sorted(folder.glob("*.csv")):
        try:
            models.extend(_read_model(path))
        except InputError as error:
            problems.extend(error.problems)
    if not models and not problems:
        problems.append(Problem("holds no throughput table (*.csv)", str(folder)))
    if problems:
        raise InputError(problems)
    return models


def _read_model(path: Path) -> list[MeasuredModel]:
    rows = [
        (line, row)
        for line, row in enumerate(csv.reader(read_text(path).splitlines()), start=1)
        if any(cell.strip() for cell in row)
    ]
    line, header = rows[0]
    counts = [int(cell) if cell.strip().isdecimal() else 0 for cell in header[1:]]
    ascending = counts == sorted(set(counts)) and counts[:1] == [1] and counts[-1] <= LARGEST_JOB_GPUS
    if header[0].strip() != "global_batch_size" or not ascending:
        raise InputError.of(
            "the header must be global_batch_size and ascending GPU counts from 1", file=str(path), line=line
        )
    found: list[MeasuredModel] = []
    problems: list[Problem] = []
    for line, row in rows[1:]:
        try:
            found.append(_measured_model(path.stem, counts, row))
        except ValueError as error:
            problems.append(Problem(str(error), str(path), line))
    if problems:
        raise InputError(problems)
    return found


def _measured_model(name: str, counts: Sequence[int], row: Sequence[str]) -> MeasuredModel:
    batch = row[0].strip()
    if not batch.isdecimal() or len(row) > len(counts) + 1:
        raise ValueError(f"a batch size and at most {len(counts)} throughputs were expected, found {row}")
    points = []
    for gpus, cell in zip(counts, row[1:], strict=False):
        speed = float(cell) if cell.strip() else math.nan
        if speed < 0 or math.isinf(speed):
            raise ValueError(f"throughput on {gpus} GPUs must be a finite number ≥ 0, found {cell}")
        if speed > 0:
            points.append((gpus, speed))
    if not points or points[0][0] != 1:
        raise ValueError("the throughput on 1 GPU was not measured")
    sizes = frozenset(gpus for gpus, _ in points)
    return MeasuredModel(f"{name}-{batch}", measured_curve(tuple(points)), sizes, points[-1][0])


class Shape(NamedTuple):
    """The size range and the curve of a job of some recorded size."""

    min: int
    max: int
    curve: SpeedCurve
    application: str = ""


Shaper = Callable[[int, int], Shape]  # from a job's index (in submit order) and its recorded size


def shaper_for(file: TraceFile, options: TraceOptions, jobs: int) -> Shaper:
    """The function that gives each job of this trace its range and curve."""
    elasticity = options.elasticity
    if not elasticity.measured_on:
        model = parse_speed(elasticity.curve)

        @cache
        def by_size(size: int) -> Shape:
            low, high = _bounds(elasticity, size)
            return Shape(low, high, model.curve(high))

        return lambda index, size: by_size(size)
    models = read_measured_models(_profile_folder(file, options, elasticity.measured_on))
    # The draw of job i does not depend on how many follow.
    draws: list[float] = np.random.Generator(np.random.PCG64(options.seed)).random(jobs).tolist()

    def by_measurement(index: int, size: int) -> Shape:
        low, high = _bounds(elasticity, size)
        model = _choose(models, draws[index], size)
        # No size beyond the last measured one: the speed there is not known.
        return Shape(low, max(size, min(high, model.largest)), model.curve, model.name)

    return by_measurement


def _choose(models: Sequence[MeasuredModel], draw: float, size: int) -> MeasuredModel:
    """A model that was measured at this size; where none was, one that was measured beyond it."""
    able = [model for model in models if size in model.sizes] or [model for model in models if model.largest >= size]
    if not able:
        most = max(model.largest for model in models)
        able = [model for model in models if model.largest == most]
    return able[int(draw * len(able))]


def _bounds(elasticity: Elasticity, size: int) -> tuple[int, int]:
    low = max(1, math.floor(size * elasticity.min_factor))
    high = min(math.ceil(size * elasticity.max_factor), LARGEST_JOB_GPUS)
    return min(low, size), max(high, size)


def _profile_folder(file: TraceFile, options: TraceOptions, gpu_type: str) -> Path:
    around = options.profiles if options.profiles is not None else file.path.parent
    for folder in (around / f"throughputs_{gpu_type}", around):
        if folder.name == f"throughputs_{gpu_type}" and folder.is_dir():
            return folder
    found = sorted(path.name for path in around.glob("throughputs_*")) if around.is_dir() else []
    raise InputError.of(
        f"no folder throughputs_{gpu_type} in {around}",
        file=file.name,
        fix=f"there is {', '.join(found)}" if found else "name the folder of throughputs_* with --profiles",
    )


class TraceRequest(NamedTuple):
    """One job of a rigid trace, as recorded: it ran `duration_s` seconds on `gpus` GPUs."""

    line: int
    id: str  # empty where the trace has none: one is made from the format's name and the place in submit order
    submit_s: float
    duration_s: float
    gpus: int
    user: str = ""
    application: str = ""
    gpu_types: tuple[tuple[str, float], ...] = ANY_TYPE
    share: Share | None = None
    cpus_milli_per_gpu: int = 0
    memory_mib_per_gpu: int = 0


def assemble(
    file: TraceFile,
    format_name: str,
    requests: list[TraceRequest],
    cells: CellParser,
    options: TraceOptions,
    notes: Sequence[str] = (),
) -> Workload:
    """The workload, or every problem that was found on the way.

    Jobs are in submit order, ties as in the file; the first is submitted at 0. The true amount of work is
    such that a job takes its recorded time at its recorded size, whatever the curve.
    """
    requests.sort(key=attrgetter("submit_s"))
    cells.check(requests)
    shape = shaper_for(file, options, len(requests))
    width = max(5, len(str(len(requests))))
    start_s = requests[0].submit_s
    jobs = tuple(
        _sim_job(request, request.id or f"{format_name}-{index + 1:0{width}d}", index, start_s, shape)
        for index, request in enumerate(requests)
    )
    return Workload(file.title, format_name, jobs, tuple(notes))


def _sim_job(request: TraceRequest, job_id: str, index: int, start_s: float, shape: Shaper) -> SimJob:
    own = shape(index, request.gpus)
    # A job with a share of a GPU cannot be resized.
    low, high = (1, 1) if request.share is not None else (own.min, own.max)
    work_s = request.duration_s * own.curve.at(request.gpus)
    job = Job(
        id=job_id,
        submit_s=request.submit_s - start_s,
        size=request.gpus,
        min=low,
        max=high,
        user=request.user,
        application=request.application or own.application,
        gpu_types=request.gpu_types,
        share=request.share,
        cpus_milli_per_gpu=request.cpus_milli_per_gpu,
        memory_mib_per_gpu=request.memory_mib_per_gpu,
        curve=own.curve,
        work_s=work_s,
    )
    return SimJob(job, work_s, own.curve)
