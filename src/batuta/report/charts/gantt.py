"""The life of jobs: a row for each, waiting thin, running thick, coloured by application or by GPU count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batuta.backends.sim.result import JobResult, RunResult, Segment
from batuta.core.job import JobId
from batuta.report.axis import Axis, time_axis
from batuta.report.charts.applications import Applications
from batuta.report.charts.over_time import NAMES, RIGHT
from batuta.report.markup import join, leaf, number, shorten, tag
from batuta.report.palette import size_shade
from batuta.report.plot import FULL, Area, label, svg, x_axis
from batuta.report.study import Study
from batuta.report.units import UNKNOWN, count, duration, significant

MOST_JOBS = 120
_ALL_STRETCHES = 80_000
"""Of all policies together; a row that would take more than its part is drawn in evenly spaced samples."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a row: from, to (pixels) and GPUs."""

    left: float
    right: float
    gpus: int


def choose_jobs(study: Study) -> tuple[JobId, ...]:
    """The jobs that are drawn, in order of submission: all, or those that held the most GPU time."""
    first = {job.id: job for run in reversed(study.shown_runs) for job in run.jobs}
    if len(first) > MOST_JOBS:
        held = dict.fromkeys(first, 0.0)
        for run in study.shown_runs:
            for job in run.jobs:
                held[job.id] += job.gpu_s
        largest = sorted(first, key=lambda name: (-held[name], first[name].submit_s, name))[:MOST_JOBS]
        first = {name: first[name] for name in largest}
    return tuple(sorted(first, key=lambda name: (first[name].submit_s, name)))


def gantt(study: Study, run: RunResult, jobs: Sequence[JobId], applications: Applications) -> str:
    """The chosen jobs of one run on the time axis that all policies share."""
    row_height = min(max(840 / max(len(jobs), 1), 7.0), 20.0)
    area = Area(NAMES, 8, FULL - RIGHT, 8 + row_height * max(len(jobs), 1))
    x = time_axis(study.span_s, area.x, "Time since the first submission")
    results = {job.id: job for job in run.jobs}
    rows = _collect(run, jobs)
    budget = max(_ALL_STRETCHES // max(len(jobs) * len(study.shown_runs), 1), 60)
    thick: dict[tuple[int, int], list[str]] = {}
    waiting: list[str] = []
    for k, name in enumerate(jobs):
        y = number(area.top + (k + 0.5) * row_height)
        for one in _stretches(rows[name], x, study.start_s, budget):
            path = thick.setdefault((applications.of_job[name], one.gpus), [])
            path.append(f"M{number(one.left)} {y}h{number(max(one.right - one.left, 0.4))}")
        if name in results:
            waiting += [
                f"M{number(left)} {y}h{number(right - left)}"
                for left, right in _waits(results[name], rows[name], x, study)
            ]
    bars = join(
        leaf("path", d=join(d), class_=f"p{app} g{size_shade(gpus)}", data_gpus=gpus)
        for (app, gpus), d in sorted(thick.items())
    )
    return svg(
        f"gantt-{study.policies.index(run.policy)}",
        FULL,
        area.bottom + 46,
        f"Jobs over time under {run.policy}",
        f"{count(len(jobs), 'job')}, one row each, in order of submission.",
        x_axis(x, area),
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
    for segment in run.segments:
        if segment.job in rows and segment.gpus > 0:
            rows[segment.job].append(segment)
    for segments in rows.values():
        segments.sort(key=lambda segment: segment.start_s)
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
        if merged and merged[-1].gpus == size and a - merged[-1].right < 0.5:
            merged[-1] = Stretch(merged[-1].left, b, size)
        else:
            merged.append(Stretch(a, b, size))
    return merged


def _waits(job: JobResult, segments: Sequence[Segment], x: Axis, study: Study) -> list[tuple[float, float]]:
    """Where a job is in the system without GPUs: before its first start, and while it is preempted."""
    over = job.end_s if job.end_s == job.end_s else study.start_s + study.span_s
    begins = [job.submit_s, *(segment.end_s for segment in segments)]
    ends = [*(segment.start_s for segment in segments), over]
    pixels = zip(
        x.pxs(np.array(begins) - study.start_s).tolist(),
        x.pxs(np.array(ends) - study.start_s).tolist(),
        strict=True,
    )
    waits = [(left, right) for left, right in pixels if right - left > 0.5]
    # Hundreds of short gaps look like one line: the budget of a row holds for them too.
    return waits if len(waits) <= 200 else [(waits[0][0], waits[-1][1])]


def _names(jobs: Sequence[JobId], area: Area, row_height: float) -> str:
    """Every name when there is room, else every tenth with its number."""
    parts = []
    for k, name in enumerate(jobs):
        y = area.top + (k + 0.5) * row_height + 3.5
        if row_height >= 11:
            parts.append(label(area.left - 8, y, shorten(name, 24), "tick small end"))
        elif k % 10 == 0:
            parts.append(label(area.left - 8, y, f"{shorten(name, 18)}  ({k + 1})", "tick small end"))
    return join(parts)


def _tip(job: JobResult | None, name: str) -> str:
    """The tooltip of a row: a line of the SVG's data-rows, parts separated by tabs."""
    title = " ".join(name.split())
    if job is None:
        return f"{title}\tnot in this run"
    rho = significant(job.fairness) if job.fairness == job.fairness else UNKNOWN
    application = " ".join(job.application.split())
    return "\t".join(
        (
            shorten(title, 60),
            f"{shorten(application, 40) or 'no application'}, asked for {count(job.size, 'GPU')}",
            f"waited {duration(job.wait_s)}, JCT {duration(job.jct_s)}, ρ {rho}",
            f"{count(job.restarts, 'restart')}, {count(job.migrations, 'migration')}, "
            f"{count(job.preemptions, 'preemption')}",
        )
    )
