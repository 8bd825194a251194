"""Charts over time: utilisation, waiting jobs, GPUs held, and a Gantt chart of the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from batuta.backends.sim.result import JobResult, RunResult, Segment
from batuta.core.arrays import FloatArray, IntArray
from batuta.core.job import JobId
from batuta.report import plot
from batuta.report.comparison import Study
from batuta.report.distribution_charts import Applications, policy_keys
from batuta.report.formatting import (
    count,
    duration,
    escape,
    join,
    leaf,
    number,
    percent,
    shorten,
    significant,
    tag,
)
from batuta.report.plot import FULL, SERIES, SIZES, Area, Axis

NAMES = 168  # left of every chart over time, so that their time axes lie below each other
RIGHT = 62
_STRIP = 42
_GAP = 18
_POINTS = 1500
_ALL_POINTS = 16_000  # of all policies of a chart together, so that a comparison of fifty stays small enough to open
_BLUR = 700  # more points than this on the width of a page are not seen one by one
_BINS = 240


def points_per_run(runs: int) -> int:
    return max(min(_POINTS, _ALL_POINTS // max(runs, 1)), 200)


def utilisation_strips(study: Study) -> str:
    """The share of GPUs in use, a strip for each policy; where a strip ends, all jobs are over."""
    runs = study.shown_runs
    area = Area(NAMES, 10, FULL - RIGHT, 10 + len(runs) * (_STRIP + _GAP) - _GAP)
    x = _time_axis(study, area)
    parts, means = [plot.x_axis(x, area)], []
    for k, run in enumerate(runs):
        top = area.top + k * (_STRIP + _GAP)
        strip = Area(area.left, top, area.right, top + _STRIP)
        mean = study.comparison.cells[run.policy, study.shown]["gpu_utilisation"]
        means.append(f"{run.policy} {percent(mean)}")
        parts.append(_strip(study, run, strip, x, mean))
    title, text = "GPU utilisation over time", "Mean utilisation: " + ", ".join(means)
    return plot.svg("utilisation", FULL, area.bottom + 46, title, text, *parts, class_="strips")


def _time_axis(study: Study, area: Area) -> Axis:
    return plot.time_axis(study.span_s, area.x, "Time since the first submission")


def _strip(study: Study, run: RunResult, area: Area, x: Axis, mean: float) -> str:
    y = plot.share_axis(area.y, "", count=1)
    capacity = run.timeline.capacity_gpus
    used: FloatArray = np.where(capacity > 0, run.timeline.used_gpus / np.maximum(capacity, 1), 0.0)
    time: FloatArray = run.timeline.time_s - study.start_s
    lead = " lead" if run.policy == study.best else ""
    frame = [
        leaf("rect", x=area.left, y=area.top, width=area.right - area.left, height=float(_STRIP), class_="strip"),
        *(plot.label(area.left - 6, y.px(tick.value) + 4, tick.label, "tick small end") for tick in y.ticks),
        plot.label(area.left - 44, area.top + _STRIP / 2 + 4, shorten(run.policy, 18), "row-name end" + lead),
        plot.label(area.right + 8, area.top + _STRIP / 2 + 4, percent(mean), "value" + lead),
    ]
    if not len(time):
        return join(frame)
    steps, curve = _curve(time, used, x, y, points_per_run(len(study.shown_runs)))
    first, last = (f"{x.px(float(at)):.1f}" for at in (time[0], time[-1]))
    under = leaf("path", d=f"{steps}V{y.start_px:g}H{first}z", class_="under")
    drawn = plot.series(under + curve, study.styles[run.policy], "s", run.policy, **plot.hover_data(x, y, area))
    return join(frame) + drawn + plot.line(float(last), area.top, float(last), area.bottom, "ended")


def _curve(time: FloatArray, value: FloatArray, x: Axis, y: Axis, limit: int) -> tuple[str, str]:
    """The path data of a step function, and its drawing.

    So many changes that they would blur become a shade, and the mean of each stretch is drawn on top of it.
    """
    thin_time, thin_value = plot.thin_steps(time, value, limit)
    steps = plot.step_path(x.pxs(thin_time), y.pxs(thin_value))
    if len(thin_time) <= _BLUR:
        return steps, leaf("path", d=steps, class_="stroke")
    edges = np.linspace(float(time[0]), float(time[-1]), _BINS + 1)
    level = plot.mean_per_bin(time, value, edges)
    mean = plot.step_path(x.pxs(edges), y.pxs(np.r_[level, level[-1]]))
    return steps, leaf("path", d=steps, class_="shade") + leaf("path", d=mean, class_="stroke")


def queue_lines(study: Study) -> str:
    runs = study.shown_runs
    keys_markup, keys_height = plot.legend(policy_keys(study, [run.policy for run in runs]), NAMES, 4, FULL - RIGHT)
    area = Area(NAMES, 16 + keys_height, FULL - RIGHT, 276 + keys_height)
    x = _time_axis(study, area)
    most = max((int(run.timeline.pending.max()) for run in runs if len(run.timeline.pending)), default=0)
    y = plot.number_axis(float(most), area.y, "Waiting jobs", kind="whole")
    order = sorted(range(len(runs)), key=lambda k: runs[k].policy == study.best)
    body = [keys_markup, plot.x_axis(x, area), plot.y_axis(y, area)]
    for k in order:
        timeline, policy = runs[k].timeline, runs[k].policy
        if not len(timeline.time_s):
            continue
        time: FloatArray = timeline.time_s - study.start_s
        _, curve = _curve(time, timeline.pending.astype(np.float64), x, y, points_per_run(len(runs)))
        body.append(plot.series(curve, study.line_style(policy), f"s{k}", policy))
    text = f"At most {most} jobs wait at a time, within {duration(study.span_s)}."
    data = plot.hover_data(x, y, area)
    return plot.svg("queue", FULL, area.bottom + 46, "Waiting jobs over time", text, *body, class_="lines", **data)


def stack(study: Study, run: RunResult, applications: Applications) -> str:
    """GPUs held over time, stacked by application and by job size; the page shows one of the two."""
    area = Area(NAMES, 8, FULL - RIGHT, 188)
    x = _time_axis(study, area)
    sizes = [int(one.timeline.capacity_gpus.max()) for one in study.shown_runs if len(one.timeline.time_s)]
    y = plot.number_axis(float(max(max(sizes, default=1), run.gpus)), area.y, "GPUs held", count=4, kind="whole")
    held = [segment for segment in run.segments if segment.gpus > 0]
    numbers = np.array([(one.start_s, one.end_s, one.gpus) for one in held], dtype=np.float64).reshape(-1, 3)
    start, end, gpus = numbers[:, 0] - study.start_s, numbers[:, 1] - study.start_s, numbers[:, 2]
    by_application = np.array([applications.of_job.get(segment.job, 0) for segment in held], dtype=np.int64)
    edges = np.linspace(0.0, study.span_s, _BINS + 1)
    # Named applications from the bottom, the rest on top; sizes from small to large.
    app_order = [*range(1, SERIES), 0]
    layers_app = _layers(by_application, app_order, start, end, gpus, edges)
    layers_size = _layers(plot.size_shades(gpus), range(SIZES), start, end, gpus, edges)
    mean = study.comparison.cells[run.policy, study.shown]["gpu_utilisation"]
    return plot.svg(
        f"stack-{study.policies.index(run.policy)}",
        FULL,
        area.bottom + 46,
        f"GPUs held over time under {run.policy}",
        f"Stacked by application or by GPUs per job; {percent(mean)} of the GPUs are in use on average.",
        plot.x_axis(x, area),
        plot.y_axis(y, area),
        tag("g", _draw(layers_app, [f"p{k}" for k in app_order], edges, x, y), class_="by-app"),
        tag("g", _draw(layers_size, [f"z{k}" for k in range(SIZES)], edges, x, y), class_="by-size"),
        _capacity(study, run, x, y),
        class_="stack",
    )


def _layers(
    kind: IntArray, order: Sequence[int], start: FloatArray, end: FloatArray, gpus: FloatArray, edges: FloatArray
) -> list[FloatArray]:
    """The upper edge of every kind, bottom first: mean GPUs per bin, added up."""
    total = np.zeros(len(edges) - 1)
    layers = []
    for one in order:
        mine = kind == one
        if mine.any():
            changes = np.r_[gpus[mine], -gpus[mine]]
            time, level = plot.step_sum(np.r_[start[mine], end[mine]], changes)
            total = total + plot.mean_per_bin(time, level, edges)
        layers.append(total)
    return layers


def _draw(layers: Sequence[FloatArray], styles: Sequence[str], edges: FloatArray, x: Axis, y: Axis) -> str:
    """From the top layer down, each painted over the former: half the points of separate bands."""
    parts = []
    below = [np.zeros_like(layers[0]), *layers[:-1]]
    for layer, under, style in reversed(list(zip(layers, below, styles, strict=True))):
        if np.array_equal(layer, under):
            continue
        steps = plot.step_path(x.pxs(edges), y.pxs(np.r_[layer, layer[-1]]))
        parts.append(leaf("path", d=f"{steps}V{y.start_px:g}H{x.start_px:g}z", class_=f"fill {style}"))
    return join(parts)


def _capacity(study: Study, run: RunResult, x: Axis, y: Axis) -> str:
    if not len(run.timeline.time_s):
        return ""
    time, gpus = plot.thin_steps(
        run.timeline.time_s - study.start_s, run.timeline.capacity_gpus.astype(np.float64), 400
    )
    return leaf("path", d=plot.step_path(x.pxs(time), y.pxs(gpus)), class_="capacity")


MAX_JOBS = 120
_ALL_STRETCHES = 80_000
"""Of all policies together; a row that would take more than its part is drawn in evenly spaced samples."""
Stretch: TypeAlias = tuple[float, float, int]  # a part of a row: from, to (pixels) and GPUs


def choose_jobs(study: Study) -> tuple[JobId, ...]:
    """The jobs that are drawn, in order of submission: all, or those that held the most GPU time."""
    first = {job.id: job for run in reversed(study.shown_runs) for job in run.jobs}
    if len(first) > MAX_JOBS:
        held = dict.fromkeys(first, 0.0)
        for run in study.shown_runs:
            for job in run.jobs:
                held[job.id] += job.gpu_s
        largest = sorted(first, key=lambda name: (-held[name], first[name].submit_s, name))[:MAX_JOBS]
        first = {name: first[name] for name in largest}
    return tuple(sorted(first, key=lambda name: (first[name].submit_s, name)))


def gantt(study: Study, run: RunResult, jobs: Sequence[JobId], applications: Applications) -> str:
    """The chosen jobs of one run on the time axis that all policies share."""
    row_height = min(max(840 / max(len(jobs), 1), 7.0), 20.0)
    area = Area(NAMES, 8, FULL - RIGHT, 8 + row_height * max(len(jobs), 1))
    x = _time_axis(study, area)
    results = {job.id: job for job in run.jobs}
    rows = _collect(run, jobs)
    budget = max(_ALL_STRETCHES // max(len(jobs) * len(study.shown_runs), 1), 60)
    thick: dict[tuple[int, int], list[str]] = {}
    waiting: list[str] = []
    for k, name in enumerate(jobs):
        y = number(area.top + (k + 0.5) * row_height)
        for left, right, gpus in _stretches(rows[name], x, study.start_s, budget):
            path = thick.setdefault((applications.of_job[name], gpus), [])
            path.append(f"M{number(left)} {y}h{number(max(right - left, 0.4))}")
        waits = _waits(results[name], rows[name], x, study) if name in results else []
        waiting += [f"M{number(left)} {y}h{number(right - left)}" for left, right in waits]
    bars = join(
        leaf("path", d=join(d), class_=f"p{app} g{plot.size_shade(gpus)}", data_gpus=gpus)
        for (app, gpus), d in sorted(thick.items())
    )
    return plot.svg(
        f"gantt-{study.policies.index(run.policy)}",
        FULL,
        area.bottom + 46,
        f"Jobs over time under {run.policy}",
        f"{count(len(jobs), 'job')}, one row each, in order of submission.",
        plot.x_axis(x, area),
        _names(jobs, area, row_height),
        leaf("path", d=join(waiting), class_="waiting"),
        tag("g", bars, class_="jobs", stroke_width=row_height * 0.74),
        class_="gantt",
        data_rows="\n".join(_tip(results.get(name), name) for name in jobs),
        data_top=area.top,
        data_row=f"{row_height:.3f}",
    )


def _collect(run: RunResult, jobs: Sequence[JobId]) -> dict[JobId, list[Segment]]:
    rows: dict[JobId, list[Segment]] = {name: [] for name in jobs}
    for segment in sorted(run.segments, key=lambda segment: segment.start_s):
        if segment.job in rows and segment.gpus > 0:
            rows[segment.job].append(segment)
    return rows


def _stretches(segments: Sequence[Segment], x: Axis, start_s: float, budget: int) -> list[Stretch]:
    """What is drawn of a row: neighbours of the same size as one; samples when there are too many."""
    if not segments:
        return []
    left = x.pxs(np.array([segment.start_s for segment in segments]) - start_s)
    right = x.pxs(np.array([segment.end_s for segment in segments]) - start_s)
    gpus = np.array([segment.gpus for segment in segments])
    if len(segments) > budget:
        edges = np.linspace(left[0], right[-1], budget + 1)
        middle = (edges[:-1] + edges[1:]) / 2
        at = np.maximum(np.searchsorted(left, middle, side="right") - 1, 0)
        inside = (left[at] <= middle) & (middle <= right[at])
        left, right, gpus = edges[:-1][inside], edges[1:][inside], gpus[at][inside]
    merged: list[Stretch] = []
    for a, b, size in zip(left.tolist(), right.tolist(), gpus.tolist(), strict=True):
        # Half a pixel is no gap.
        if merged and merged[-1][2] == size and a - merged[-1][1] < 0.5:
            merged[-1] = (merged[-1][0], b, size)
        else:
            merged.append((a, b, size))
    return merged


def _waits(job: JobResult, segments: Sequence[Segment], x: Axis, study: Study) -> list[tuple[float, float]]:
    """Where a job is in the system without GPUs: before its first start, and while it is preempted."""
    over = job.end_s if job.end_s == job.end_s else study.start_s + study.span_s
    if not job.size and job.first_start_s == job.first_start_s:
        over = job.first_start_s  # a CPU-only job runs from then on
    begins = [job.submit_s, *(segment.end_s for segment in segments)]
    ends = [*(segment.start_s for segment in segments), over]
    lefts, rights = (x.pxs(np.array(times) - study.start_s).tolist() for times in (begins, ends))
    waits = [(left, right) for left, right in zip(lefts, rights, strict=True) if right - left > 0.5]
    # Hundreds of short gaps look like one line: the budget of a row holds for them too.
    return waits if len(waits) <= 200 else [(waits[0][0], waits[-1][1])]


def _names(jobs: Sequence[JobId], area: Area, row_height: float) -> str:
    """Every name when there is room, else every tenth with its number."""
    parts = []
    for k, name in enumerate(jobs):
        if row_height >= 11 or k % 10 == 0:
            text = shorten(name, 24) if row_height >= 11 else f"{shorten(name, 18)}  ({k + 1})"
            parts.append(plot.label(area.left - 8, area.top + (k + 0.5) * row_height + 3.5, text, "tick small end"))
    return join(parts)


def _tip(job: JobResult | None, name: str) -> str:
    """The tooltip of a row: a line of the SVG's data-rows, parts separated by tabs."""
    title = " ".join(name.split())
    if job is None:
        return f"{title}\tnot in this run"
    application = " ".join(job.application.split())
    asked = f"asked for {count(job.size, 'GPU')}" if job.size else "runs on CPU"
    parts = (
        shorten(title, 60),
        f"{shorten(application, 40) or 'no application'}, {asked}",
        f"waited {duration(job.wait_s)}, JCT {duration(job.jct_s)}, ρ {significant(job.fairness)}",
        ", ".join(count(getattr(job, f"{noun}s"), noun) for noun in ("restart", "migration", "preemption")),
    )
    return "\t".join(parts)


def jobs_over_time(study: Study, applications: Applications, figure: int) -> str:
    """Switches, legend, and a panel for each policy of the shown workload: GPUs held, and every job.

    One panel shows at a time. The switches are radio buttons and CSS, so they work without a script.
    """
    jobs = choose_jobs(study)
    # One colour for all would say nothing.
    by_size = len(applications.keys) < 2
    by_app_button = _radio("colour", "by-app", "application", checked=not by_size)
    by_size_button = _radio("colour", "by-size", "GPUs held", checked=by_size)
    switches = [tag("fieldset", tag("legend", "Colour by"), by_app_button, by_size_button)]
    if len(study.shown_runs) > 1:
        policies = [_radio("panel", f"panel-{k}", run.policy, checked=k == 0) for k, run in enumerate(study.shown_runs)]
        switches.insert(0, tag("fieldset", tag("legend", "Policy"), *policies))
    contents = (_panel(study, run, jobs, applications) for run in study.shown_runs)
    panels = [tag("div", content, class_=f"panel panel-{k}") for k, content in enumerate(contents)]
    most = max((segment.gpus for run in study.shown_runs for segment in run.segments), default=1)
    legends = tag("div", _legends(applications, plot.size_shade(most)), class_="legend")
    caption = tag("figcaption", f"<b>Figure {figure}.</b> {escape(_caption(study, len(jobs)))}")
    return tag("div", *switches, legends, tag("figure", *panels, caption), class_="switched")


def switch_css(panels: int) -> str:
    """Rules that tie each radio button to what it shows."""
    rules = [".switched:has(#by-size:checked) .by-app,.switched:has(#by-app:checked) .by-size{display:none}"]
    rules += [f".switched:has(#by-size:checked) .g{k}{{color:var(--z{k})}}" for k in range(SIZES)]
    if panels > 1:
        rules += [f".switched:has(#panel-{k}:checked) .panel:not(.panel-{k}){{display:none}}" for k in range(panels)]
    return "\n".join(rules)


def _radio(group: str, key: str, text: str, *, checked: bool) -> str:
    box = f'<input type="radio" name="{group}" id="{key}"{" checked" if checked else ""}>'
    return tag("label", box, tag("span", escape(text)))


def _panel(study: Study, run: RunResult, jobs: tuple[str, ...], applications: Applications) -> str:
    values = study.comparison.cells[run.policy, study.shown]
    facts = [f"mean JCT {duration(values['jct_mean_s'])}", f"{percent(values['gpu_utilisation'])} of GPUs used"]
    facts += [count(int(values[f"{noun}s"]), noun) for noun in ("restart", "preemption")]
    mark = tag("span", class_=f"swatch {study.styles[run.policy]}")
    head = tag("h3", mark, escape(run.policy), tag("small", escape(" · ".join(facts))))
    charts = (stack(study, run, applications), gantt(study, run, jobs, applications))
    return head + join(tag("div", chart, class_="plot") for chart in charts)


def _legends(applications: Applications, largest: int) -> str:
    apps = [_chip(key.style, key.label) for key in applications.keys]
    sizes = [_chip(f"z{k}", plot.SIZE_LABELS[k]) for k in range(largest + 1)]
    by_size = tag("span", tag("span", "GPUs per job", class_="chip"), *sizes, class_="by-size")
    waiting = tag("span", tag("span", class_="wait-line"), "waiting", class_="chip")
    return tag("span", *apps, class_="by-app") + by_size + waiting


def _chip(style: str, text: str) -> str:
    return tag("span", tag("span", class_=f"swatch {style}"), escape(text), class_="chip")


def _caption(study: Study, drawn: int) -> str:
    jobs = max((len(run.jobs) for run in study.shown_runs), default=0)
    text = "Above: GPUs held over time; dashed, the GPUs there are. Below: a row per job, in order of submission"
    if drawn < jobs:
        text += f"; {drawn} of {jobs:,} jobs are drawn, those that held the most GPU time"
    return f"{text}.{study.drawn_for}"
