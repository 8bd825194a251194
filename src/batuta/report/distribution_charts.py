"""Charts of job completion time and fairness: bars by policy or application, cumulative distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batuta.backends.sim.result import RunResult
from batuta.core.arrays import FloatArray
from batuta.core.job import JobId, JobState
from batuta.report import plot
from batuta.report.comparison import Comparison, Ratio, Study, ratio_text
from batuta.report.formatting import duration, escape, join, leaf, number, shorten, significant, tag
from batuta.report.metrics import MEAN_JCT
from batuta.report.plot import FULL, HALF, SERIES, Area, Axis, Key

_ROW = 32
_NAMES = 168


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: a mean with its median and its 90th percentile, in seconds."""

    name: str
    style: str
    mean_s: float
    p50_s: float
    p90_s: float
    best: bool = False
    ratio: Ratio | None = None

    @property
    def lead(self) -> str:
        return " lead" if self.best else ""


def policy_bars(study: Study) -> str:
    """Mean JCT of every policy, and beside it the ratio to the baseline."""
    comparison = study.comparison
    bars = []
    for row in comparison.rows:
        mean, p50, p90 = (row.values[key] for key in (MEAN_JCT, "jct_p50_s", "jct_p90_s"))
        style, best = study.styles[row.policy], row.policy == study.best
        bars.append(Bar(row.policy, style, mean, p50, p90, best, row.ratios[MEAN_JCT]))
    return bar_chart("jct-bars", "Mean job completion time by policy", bars, comparison if len(bars) > 1 else None)


def bar_chart(key: str, title: str, bars: Sequence[Bar], comparison: Comparison | None = None) -> str:
    """Horizontal bars, first on top; with a comparison, a second panel has ratios on a log scale."""
    height = len(bars) * _ROW
    left = Area(_NAMES, 34, 640 if comparison else FULL - 90, 34 + height)
    longest = max((value for bar in bars for value in (bar.mean_s, bar.p90_s) if math.isfinite(value)), default=1.0)
    # Room for the number behind the longest whisker.
    times_axis = plot.time_axis(longest * 1.16, left.x, "Job completion time", count=6)
    parts = [_bands(bars, left.top), plot.x_axis(times_axis, left), _key(left)]
    parts += [_bar(bar, left.top + k * _ROW, times_axis) for k, bar in enumerate(bars)]
    described = "; ".join(f"{bar.name}: mean {duration(bar.mean_s)}, p90 {duration(bar.p90_s)}" for bar in bars)
    if comparison:
        right = Area(736, 34, FULL - 146, 34 + height)
        parts.append(_ratios(bars, comparison, right))
    return plot.svg(key, FULL, 34 + height + 46, title, described, *parts, class_="bars")


def _bands(bars: Sequence[Bar], top: float) -> str:
    """A tint behind the winner, through both panels."""
    tops = (top + k * _ROW for k, bar in enumerate(bars) if bar.best)
    return join(leaf("rect", x=0, y=y, width=FULL, height=_ROW, rx=4, class_="winner-band") for y in tops)


def _bar(bar: Bar, top: float, axis: Axis) -> str:
    middle = top + _ROW / 2
    name = plot.label(_NAMES - 10, middle + 4, shorten(bar.name, 22), "row-name end" + bar.lead)
    if not math.isfinite(bar.mean_s):
        return name + plot.label(_NAMES + 8, middle + 4, "no job finished", "tick")
    x0, mean, p50, p90 = (axis.px(value) for value in (0.0, bar.mean_s, bar.p50_s, bar.p90_s))
    whisker = f"M{number(mean)} {number(middle)}H{number(p90)}M{number(p90)} {number(middle - 5)}v10"
    tip = f"{bar.name}\nmean {duration(bar.mean_s)}\nmedian {duration(bar.p50_s)}\np90 {duration(bar.p90_s)}"
    mean_text = f"{significant(bar.mean_s / axis.unit.seconds)} {axis.unit.name}"
    return name + tag(
        "g",
        tag("title", escape(tip)),
        # Invisible, so that the whole row answers to the pointer.
        leaf("rect", x=x0, y=top, width=max(p90, mean) - x0 + 60, height=_ROW, class_="hit"),
        leaf("rect", x=x0, y=top + 6.0, width=max(mean - x0, 0.5), height=_ROW - 12.0, rx=2.0, class_="fill"),
        leaf("path", d=whisker, class_="whisker"),
        leaf("path", d=f"M{number(p50)} {number(top + 6)}v{_ROW - 12}", class_="median"),
        plot.label(max(p90, mean) + 8, middle + 4, mean_text, "value" + bar.lead),
        class_=bar.style,
    )


def _key(area: Area) -> str:
    """How to read a bar, drawn as one."""
    x, y = area.left, area.top - 18
    return tag(
        "g",
        leaf("rect", x=x, y=y - 6, width=34, height=12, rx=2, class_="fill"),
        leaf("path", d=f"M{x + 14} {y - 6}v12", class_="median"),
        leaf("path", d=f"M{x + 34} {y}h18M{x + 52} {y - 5}v10", class_="whisker"),
        plot.label(x + 60, y + 4, "bar: mean · notch: median · whisker: to the 90th percentile", "key-text"),
        class_="p0 key-only",
    )


def _ratios(bars: Sequence[Bar], comparison: Comparison, area: Area) -> str:
    """A dot per policy with its interval, on a log scale around 1."""
    known = [bar.ratio for bar in bars if bar.ratio is not None and bar.ratio.pairs]
    ends = [end for ratio in known for end in (ratio.value, ratio.low, ratio.high) if math.isfinite(end)]
    # An interval of two runs can reach to the moon: the axis follows the dots, and cuts what is beyond.
    middle = [ratio.value for ratio in known]
    low = max(min([*ends, 1.0]), min([*middle, 1.0]) / 3) / 1.08
    high = min(max([*ends, 1.0]), max([*middle, 1.0]) * 3) * 1.08
    axis = plot.log_axis(low, high, area.x, f"Mean JCT relative to {shorten(comparison.baseline, 22)} (log scale)")
    interval = any(ratio.has_interval for ratio in known)
    head = "dot: geometric mean · line: 95 % confidence interval" if interval else "less is better"
    one = axis.px(1.0)
    parts = [
        plot.x_axis(axis, area),
        plot.label(area.left, area.top - 14, head, "key-text"),
        plot.line(one, area.top, one, area.bottom, "reference"),
    ]
    for k, bar in enumerate(bars):
        y = area.top + (k + 0.5) * _ROW
        ratio = bar.ratio
        if ratio is None or not ratio.pairs:
            parts.append(plot.label(area.right + 12, y + 4, "n/a", "tick"))
            continue
        marks = []
        if ratio.has_interval and bar.name != comparison.baseline:
            x1, x2 = axis.px(ratio.low), axis.px(ratio.high)
            marks.append(leaf("path", d=f"M{number(x1)} {number(y)}H{number(x2)}", class_="interval"))
        marks.append(leaf("circle", cx=axis.px(ratio.value), cy=y, r=5.0, class_="fill"))
        parts.append(tag("g", *marks, class_=bar.style))
        text = "baseline" if bar.name == comparison.baseline else ratio_text(ratio)
        parts.append(plot.label(area.right + 12, y + 4, text, "value" + bar.lead))
    return join(parts)


UNNAMED = "no application"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Applications:
    """The applications with the most GPU time, numbered from 1; number 0 holds the rest."""

    names: tuple[str, ...]
    of_job: Mapping[JobId, int]
    has_rest: bool

    @property
    def keys(self) -> list[Key]:
        named = [Key(name or UNNAMED, plot.series_class(k + 1)) for k, name in enumerate(self.names)]
        return [*named, Key(OTHER, plot.series_class(0))] if self.has_rest else named


def find_applications(runs: Sequence[RunResult]) -> Applications:
    """The colours of applications, the same in every run."""
    held: dict[str, float] = {}
    for run in runs:
        for job in run.jobs:
            held[job.application] = held.get(job.application, 0.0) + job.gpu_s
    largest = sorted(held, key=lambda name: (-held[name], name))[: SERIES - 1]
    # By name, so that a change of policy does not move the colours.
    names = tuple(sorted(largest))
    numbers = {name: k + 1 for k, name in enumerate(names)}
    of_job = {job.id: numbers.get(job.application, 0) for run in runs for job in run.jobs}
    return Applications(names, of_job, len(held) > len(names))


def application_bars(run: RunResult, applications: Applications) -> str:
    """Mean JCT by application, for a report of one run."""
    bars = []
    for k, key in enumerate(applications.keys):
        number = k + 1 if k < len(applications.names) else 0
        mine = (job for job in run.jobs if applications.of_job[job.id] == number)
        jct = np.array([job.jct_s for job in mine if job.state is JobState.SUCCEEDED])
        p50, p90 = (float(q) for q in np.percentile(jct, (50, 90))) if len(jct) else (np.nan, np.nan)
        bars.append(Bar(key.label, key.style, float(jct.mean()) if len(jct) else np.nan, p50, p90))
    return bar_chart("application-bars", "Mean job completion time by application", bars)


_HEIGHT = 320
_POINTS = 400


def policy_keys(study: Study, policies: Sequence[str]) -> list[Key]:
    """Legend entries that switch the curves `s0`, `s1` … on and off; none for a single one."""
    keys = [Key(policy, study.styles[policy], f"s{k}") for k, policy in enumerate(policies)]
    return keys if len(keys) > 1 else []


def jct_cdf(study: Study) -> str:
    """The share of jobs that were done within a time; jobs that did not finish hold a curve below 100 %."""
    curves = [(one.jct_s, one.jobs) for one in study.outcomes]

    def axis(low: float, high: float, px: tuple[float, float]) -> Axis:
        return plot.log_time_axis(low, high, px, "Job completion time (log scale)")

    title = "Distribution of job completion times"
    return _cdf(study, "jct-cdf", title, curves, axis, "Jobs done within this time")


def fairness_cdf(study: Study) -> str:
    """The share of jobs up to a finish-time fairness ρ, with the line that fair schedulers stay left of."""
    curves = [(one.fairness, len(one.fairness)) for one in study.outcomes]

    def axis(low: float, high: float, px: tuple[float, float]) -> Axis:
        return plot.log_axis(min(low, 0.8), max(high, 1.25), px, "Finish-time fairness ρ (log scale)")

    title = "Distribution of finish-time fairness"
    return _cdf(study, "fairness-cdf", title, curves, axis, "Jobs with at most this ρ", fair_at=1.0)


def _cdf(
    study: Study,
    key: str,
    title: str,
    curves: Sequence[tuple[FloatArray, int]],
    make_axis: Callable[[float, float, tuple[float, float]], Axis],
    y_title: str,
    fair_at: float | None = None,
) -> str:
    """A curve for each policy: its values, out of so many jobs."""
    width, policies = float(HALF), [one.policy for one in study.outcomes]
    keys_markup, keys_height = plot.legend(policy_keys(study, policies), 8, 4, width - 4)
    area = Area(62, 16 + keys_height, width - 14, _HEIGHT + keys_height)
    # A job that took no time at all has no place on a log axis: it counts at the left end.
    positive = np.concatenate([np.zeros(0), *(values[values > 0] for values, _ in curves)])
    if not len(positive):
        return plot.svg(
            key, width, 80, title, "No values.", plot.label(width / 2, 44, f"{title}: no values", "tick mid")
        )
    x = make_axis(float(positive.min()), float(positive.max()), area.x)
    y = plot.share_axis(area.y, y_title)
    body = [keys_markup, plot.x_axis(x, area), plot.y_axis(y, area)]
    if fair_at is not None:
        at = x.px(fair_at)
        body.append(plot.line(at, area.top, at, area.bottom, "reference"))
        if at < (area.left + area.right) / 2:
            body.append(plot.label(at + 6, area.bottom - 8, "worse than a fair share →", "note"))
        else:
            body.append(plot.label(at - 6, area.top + 16, "← better than a fair share", "note end"))
    # The winner is drawn last, on top of the others.
    for k in sorted(range(len(policies)), key=lambda k: policies[k] == study.best):
        values, shares = plot.cumulative_shares(*curves[k], _POINTS)
        if len(values):
            # From 0 at the left end, and level to the right end: every line spans the axis.
            path = plot.step_path(x.pxs(np.r_[x.low, values, x.high]), y.pxs(np.r_[0.0, shares, shares[-1]]))
            curve = leaf("path", d=path, class_="stroke")
            body.append(plot.series(curve, study.line_style(policies[k]), f"s{k}", policies[k]))
    medians = [
        f"{policy} {significant(float(np.median(values)))}"
        for policy, (values, _) in zip(policies, curves, strict=True)
        if len(values)
    ]
    text = f"Median by policy: {', '.join(medians)}."
    return plot.svg(key, width, area.bottom + 46, title, text, *body, class_="lines", **plot.hover_data(x, y, area))
