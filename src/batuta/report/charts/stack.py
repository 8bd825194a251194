"""Who holds the GPUs: GPUs in use over time, stacked by application or by the size of the jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batuta.backends.sim.result import RunResult
from batuta.core.arrays import FloatArray, IntArray
from batuta.report.axis import Axis, number_axis, time_axis
from batuta.report.charts.applications import Applications
from batuta.report.charts.over_time import NAMES, RIGHT
from batuta.report.markup import join, leaf, tag
from batuta.report.palette import SERIES, SIZES, size_shades
from batuta.report.plot import FULL, Area, step_path, svg, x_axis, y_axis
from batuta.report.sampling import mean_per_bin, step_sum, thin_steps
from batuta.report.study import Study
from batuta.report.units import percent

BINS = 240


def stack(study: Study, run: RunResult, applications: Applications) -> str:
    """Both stacks in one picture; the page shows the one that is chosen."""
    area = Area(NAMES, 8, FULL - RIGHT, 188)
    x = time_axis(study.span_s, area.x, "Time since the first submission")
    most = max(
        (int(one.timeline.capacity_gpus.max()) for one in study.shown_runs if len(one.timeline.time_s)),
        default=1,
    )
    y = number_axis(float(max(most, run.gpus)), area.y, "GPUs held", count=4, kind="whole")
    held = [segment for segment in run.segments if segment.gpus > 0]
    start = np.array([segment.start_s for segment in held], dtype=np.float64) - study.start_s
    end = np.array([segment.end_s for segment in held], dtype=np.float64) - study.start_s
    gpus = np.array([segment.gpus for segment in held], dtype=np.float64)
    by_application = np.array([applications.of_job.get(segment.job, 0) for segment in held], dtype=np.int64)
    by_size = size_shades(gpus)
    edges = np.linspace(0.0, study.span_s, BINS + 1)
    # Named applications from the bottom, the rest on top; sizes from small to large.
    app_order = [*range(1, SERIES), 0]
    layers_app = _layers(by_application, app_order, start, end, gpus, edges)
    layers_size = _layers(by_size, range(SIZES), start, end, gpus, edges)
    mean = study.comparison.cells[run.policy, study.shown]["gpu_utilisation"]
    return svg(
        f"stack-{study.policies.index(run.policy)}",
        FULL,
        area.bottom + 46,
        f"GPUs held over time under {run.policy}",
        f"Stacked by application or by GPUs per job; {percent(mean)} of the GPUs are in use on average.",
        x_axis(x, area),
        y_axis(y, area),
        tag("g", _draw(layers_app, [f"p{k}" for k in app_order], edges, x, y), class_="by-app"),
        tag("g", _draw(layers_size, [f"z{k}" for k in range(SIZES)], edges, x, y), class_="by-size"),
        _capacity(study, run, x, y),
        class_="stack",
    )


def _layers(
    kind: IntArray,
    order: Sequence[int],
    start: FloatArray,
    end: FloatArray,
    gpus: FloatArray,
    edges: FloatArray,
) -> list[FloatArray]:
    """The upper edge of every kind, bottom first: mean GPUs per bin, added up."""
    total = np.zeros(len(edges) - 1)
    layers = []
    for one in order:
        mine = kind == one
        if mine.any():
            changes = np.r_[gpus[mine], -gpus[mine]]
            time, level = step_sum(np.r_[start[mine], end[mine]], changes)
            total = total + mean_per_bin(time, level, edges)
        layers.append(total)
    return layers


def _draw(layers: Sequence[FloatArray], styles: Sequence[str], edges: FloatArray, x: Axis, y: Axis) -> str:
    """From the top layer down, each painted over the former: half the points of separate bands."""
    parts = []
    below = [np.zeros_like(layers[0]), *layers[:-1]]
    for layer, under, style in reversed(list(zip(layers, below, styles, strict=True))):
        if np.array_equal(layer, under):
            continue
        steps = step_path(x.pxs(edges), y.pxs(np.r_[layer, layer[-1]]))
        parts.append(leaf("path", d=f"{steps}V{y.start_px:g}H{x.start_px:g}z", class_=f"fill {style}"))
    return join(parts)


def _capacity(study: Study, run: RunResult, x: Axis, y: Axis) -> str:
    if not len(run.timeline.time_s):
        return ""
    time, gpus = thin_steps(
        run.timeline.time_s - study.start_s, run.timeline.capacity_gpus.astype(np.float64), 400
    )
    return leaf("path", d=step_path(x.pxs(time), y.pxs(gpus)), class_="capacity")
