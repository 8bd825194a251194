"""From the recorded size and run time of a job to its size range, speed curve and amount of work."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from batuta.backends.sim.speed import LARGEST_JOB_GPUS, parse_speed
from batuta.backends.sim.traces.elasticity import Elasticity
from batuta.backends.sim.traces.measured import MeasuredModels, read_measured_models
from batuta.backends.sim.traces.trace_format import TraceFile, TraceOptions
from batuta.core.curve import SpeedCurve
from batuta.spec.problem import InputError


class Shape(NamedTuple):
    """What a job of some size can be stretched to."""

    min: int
    max: int
    curve: SpeedCurve
    application: str = ""


Shaper = Callable[[int, int], Shape]
"""From a job's index (in submit order) and its recorded size."""


def shaper_for(file: TraceFile, options: TraceOptions, jobs: int) -> Shaper:
    """The one rule that all jobs of this trace are shaped by."""
    elasticity = options.elasticity
    if not elasticity.measured_on:
        return _by_model(elasticity)
    folder = _profile_folder(file, options, elasticity.measured_on)
    return _by_measurement(elasticity, read_measured_models(folder), options.seed, jobs)


def _bounds(elasticity: Elasticity, size: int) -> tuple[int, int]:
    low = max(1, math.floor(size * elasticity.min_factor))
    high = min(math.ceil(size * elasticity.max_factor), LARGEST_JOB_GPUS)
    return min(low, size), max(high, size)


def _by_model(elasticity: Elasticity) -> Shaper:
    model = parse_speed(elasticity.curve)
    known: dict[int, Shape] = {}

    def shape(index: int, size: int) -> Shape:
        found = known.get(size)
        if found is None:
            low, high = _bounds(elasticity, size)
            found = known[size] = Shape(low, high, model.curve(high))
        return found

    return shape


def _by_measurement(elasticity: Elasticity, models: MeasuredModels, seed: int, jobs: int) -> Shaper:
    draws = models.draws(seed, jobs)

    def shape(index: int, size: int) -> Shape:
        low, high = _bounds(elasticity, size)
        model = models.choose(draws[index], size)
        # Beyond its last measured size nothing is known of a model: do not offer it.
        return Shape(low, max(size, min(high, model.largest)), model.curve, model.name)

    return shape


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
