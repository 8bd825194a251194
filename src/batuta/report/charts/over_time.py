"""The cluster over time: GPUs in use, one strip per policy; jobs that wait, one line per policy."""

from __future__ import annotations

import numpy as np

from batuta.backends.sim.result import RunResult
from batuta.core.arrays import FloatArray
from batuta.report.axis import Axis, number_axis, share_axis, time_axis
from batuta.report.markup import join, leaf, shorten, tag
from batuta.report.plot import FULL, Area, Key, label, legend, line, step_path, svg, x_axis, y_axis
from batuta.report.sampling import mean_per_bin, thin_steps
from batuta.report.study import Study
from batuta.report.units import duration, percent

NAMES = 168
"""Left of every chart over time, so that their time axes lie below each other."""
RIGHT = 62
_STRIP = 42
_GAP = 18
_POINTS = 1500
_ALL_POINTS = 16_000
"""Of all policies of a chart together: a comparison of fifty stays a file that opens."""
_BLUR = 700
"""More points than this on the width of a page are not seen one by one."""
_BINS = 240


def points_per_run(runs: int) -> int:
    return max(min(_POINTS, _ALL_POINTS // max(runs, 1)), 200)


def utilisation_strips(study: Study) -> str:
    """The share of GPUs in use, a strip for each policy; where a strip ends, all jobs are over."""
    runs = study.shown_runs
    area = Area(NAMES, 10, FULL - RIGHT, 10 + len(runs) * (_STRIP + _GAP) - _GAP)
    x = time_axis(study.span_s, area.x, "Time since the first submission")
    parts, means = [x_axis(x, area)], []
    for k, run in enumerate(runs):
        top = area.top + k * (_STRIP + _GAP)
        strip = Area(area.left, top, area.right, top + _STRIP)
        mean = study.comparison.cells[run.policy, study.shown]["gpu_utilisation"]
        means.append(f"{run.policy} {percent(mean)}")
        parts.append(_strip(study, run, strip, x, mean))
    return svg(
        "utilisation",
        FULL,
        area.bottom + 46,
        "GPU utilisation over time",
        "Mean utilisation: " + ", ".join(means),
        *parts,
        class_="strips",
    )


def _strip(study: Study, run: RunResult, area: Area, x: Axis, mean: float) -> str:
    y = share_axis(area.y, "", count=1)
    timeline = run.timeline
    capacity = np.maximum(timeline.capacity_gpus, 1)
    used: FloatArray = np.where(timeline.capacity_gpus > 0, timeline.used_gpus / capacity, 0.0)
    time: FloatArray = timeline.time_s - study.start_s
    lead = " lead" if run.policy == study.best else ""
    frame = [
        leaf(
            "rect",
            x=area.left,
            y=area.top,
            width=area.right - area.left,
            height=float(_STRIP),
            class_="strip",
        ),
        *(label(area.left - 6, y.px(tick.value) + 4, tick.label, "tick small end") for tick in y.ticks),
        label(area.left - 44, area.top + _STRIP / 2 + 4, shorten(run.policy, 18), "row-name end" + lead),
        label(area.right + 8, area.top + _STRIP / 2 + 4, percent(mean), "value" + lead),
    ]
    if not len(time):
        return join(frame)
    steps, curve = _curve(time, used, x, y, points_per_run(len(study.shown_runs)))
    first, last = (f"{x.px(float(at)):.1f}" for at in (time[0], time[-1]))
    under = leaf("path", d=f"{steps}V{y.start_px:g}H{first}z", class_="under")
    series = tag(
        "g",
        under,
        curve,
        class_=f"series {study.styles[run.policy]}",
        data_series="s",
        data_label=shorten(run.policy, 40),
        data_x=x.describe(),
        data_y=y.describe(),
        data_area=f"{area.left:g} {area.top:g} {area.right:g} {area.bottom:g}",
    )
    ended = line(float(last), area.top, float(last), area.bottom, "ended")
    return join(frame) + series + ended


def _curve(time: FloatArray, value: FloatArray, x: Axis, y: Axis, limit: int) -> tuple[str, str]:
    """The path data of a step function, and its drawing.

    So many changes that they would blur become a shade, and the mean of each stretch is drawn on top of it.
    """
    thin_time, thin_value = thin_steps(time, value, limit)
    steps = step_path(x.pxs(thin_time), y.pxs(thin_value))
    if len(thin_time) <= _BLUR:
        return steps, leaf("path", d=steps, class_="stroke")
    edges = np.linspace(float(time[0]), float(time[-1]), _BINS + 1)
    level = mean_per_bin(time, value, edges)
    mean = step_path(x.pxs(edges), y.pxs(np.r_[level, level[-1]]))
    return steps, leaf("path", d=steps, class_="shade") + leaf("path", d=mean, class_="stroke")


def queue_lines(study: Study) -> str:
    """The number of jobs that wait."""
    runs = study.shown_runs
    keys = (
        [Key(run.policy, study.styles[run.policy], f"s{k}") for k, run in enumerate(runs)]
        if len(runs) > 1
        else []
    )
    keys_markup, keys_height = legend(keys, NAMES, 4, FULL - RIGHT)
    area = Area(NAMES, 16 + keys_height, FULL - RIGHT, 276 + keys_height)
    x = time_axis(study.span_s, area.x, "Time since the first submission")
    most = max((int(run.timeline.pending.max()) for run in runs if len(run.timeline.pending)), default=0)
    y = number_axis(float(most), area.y, "Waiting jobs", kind="whole")
    order = sorted(range(len(runs)), key=lambda k: runs[k].policy == study.best)
    body = [keys_markup, x_axis(x, area), y_axis(y, area)]
    for k in order:
        run = runs[k]
        if not len(run.timeline.time_s):
            continue
        time: FloatArray = run.timeline.time_s - study.start_s
        waiting = run.timeline.pending.astype(np.float64)
        _, curve = _curve(time, waiting, x, y, points_per_run(len(runs)))
        style = f"series {study.styles[run.policy]}" + (" lead" if run.policy == study.best else "")
        body.append(tag("g", curve, class_=style, data_series=f"s{k}", data_label=shorten(run.policy, 40)))
    return svg(
        "queue",
        FULL,
        area.bottom + 46,
        "Waiting jobs over time",
        f"At most {most} jobs wait at a time, within {duration(study.span_s)}.",
        *body,
        class_="lines",
        data_x=x.describe(),
        data_y=y.describe(),
        data_area=f"{area.left:g} {area.top:g} {area.right:g} {area.bottom:g}",
    )
