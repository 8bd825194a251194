"""Speed curves that the authors of ElasticFlow measured: iterations/s by global batch size and GPU count.

A folder `throughputs_T4` holds one CSV per model: `global_batch_size,1,2,4,…`, one row per batch size. A cell
that is empty, `nan` or 0 was not measured.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from batuta.backends.sim.speed import LARGEST_JOB_GPUS, measured_curve
from batuta.core.curve import SpeedCurve
from batuta.spec.problem import InputError, Problem
from batuta.spec.text_file import read_text


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """One model at one global batch size."""

    name: str
    curve: SpeedCurve
    sizes: frozenset[int]
    """GPU counts that were measured."""
    largest: int


@dataclass(frozen=True, slots=True)
class MeasuredModels:
    """What jobs may train, in the order of file and row."""

    models: tuple[MeasuredModel, ...]

    def draws(self, seed: int, jobs: int) -> list[float]:
        """One draw per job; the draw of job i does not depend on how many follow."""
        return list(map(float, np.random.Generator(np.random.PCG64(seed)).random(jobs)))

    def choose(self, draw: float, size: int) -> MeasuredModel:
        """A model that was measured at this size; where none was, one that was measured beyond it."""
        able = [model for model in self.models if size in model.sizes]
        if not able:
            able = [model for model in self.models if model.largest >= size]
        if not able:
            most = max(model.largest for model in self.models)
            able = [model for model in self.models if model.largest == most]
        return able[int(draw * len(able))]


def read_measured_models(folder: Path) -> MeasuredModels:
    """All models of a folder, files in the order of their names."""
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
    return MeasuredModels(tuple(models))


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
            "the header must be global_batch_size and ascending GPU counts from 1",
            file=str(path),
            line=line,
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
