"""Who finishes jobs fastest: bars of mean JCT, and the ratio to the baseline with its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from batuta.report.axis import Axis, log_axis, time_axis
from batuta.report.columns import ratio_text
from batuta.report.compare_table import Comparison, Ratio
from batuta.report.markup import escape, join, leaf, number, shorten, tag
from batuta.report.metrics import MEAN_JCT
from batuta.report.plot import FULL, Area, label, line, svg, x_axis
from batuta.report.study import Study
from batuta.report.units import duration, significant

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


def policy_bars(study: Study) -> str:
    """Mean JCT of every policy, and beside it the ratio to the baseline."""
    comparison = study.comparison
    bars = [
        Bar(
            row.policy,
            study.styles[row.policy],
            row.values[MEAN_JCT],
            row.values["jct_p50_s"],
            row.values["jct_p90_s"],
            row.policy == study.best,
            row.ratios[MEAN_JCT],
        )
        for row in comparison.rows
    ]
    return bar_chart(
        "jct-bars", "Mean job completion time by policy", bars, comparison if len(bars) > 1 else None
    )


def bar_chart(key: str, title: str, bars: Sequence[Bar], comparison: Comparison | None = None) -> str:
    """Horizontal bars, first on top; with a comparison, a second panel has ratios on a log scale."""
    height = len(bars) * _ROW
    left = Area(_NAMES, 34, 640 if comparison else FULL - 90, 34 + height)
    longest = max(
        (value for bar in bars for value in (bar.mean_s, bar.p90_s) if math.isfinite(value)), default=1.0
    )
    # Room for the number behind the longest whisker.
    times_axis = time_axis(longest * 1.16, left.x, "Job completion time", count=6)
    parts = [_bands(bars, left.top), x_axis(times_axis, left), _key(left)]
    parts += [_bar(bar, left.top + k * _ROW, times_axis) for k, bar in enumerate(bars)]
    described = "; ".join(
        f"{bar.name}: mean {duration(bar.mean_s)}, p90 {duration(bar.p90_s)}" for bar in bars
    )
    if comparison:
        right = Area(736, 34, FULL - 146, 34 + height)
        parts.append(_ratios(bars, comparison, right))
    return svg(key, FULL, 34 + height + 46, title, described, *parts, class_="bars")


def _bands(bars: Sequence[Bar], top: float) -> str:
    """A tint behind the winner, through both panels."""
    return join(
        leaf("rect", x=0, y=top + k * _ROW, width=FULL, height=_ROW, rx=4, class_="winner-band")
        for k, bar in enumerate(bars)
        if bar.best
    )


def _bar(bar: Bar, top: float, axis: Axis) -> str:
    middle = top + _ROW / 2
    name = label(
        _NAMES - 10, middle + 4, shorten(bar.name, 22), "row-name end" + (" lead" if bar.best else "")
    )
    if not math.isfinite(bar.mean_s):
        return name + label(_NAMES + 8, middle + 4, "no job finished", "tick")
    x0, mean, p50, p90 = (axis.px(value) for value in (0.0, bar.mean_s, bar.p50_s, bar.p90_s))
    whisker = f"M{number(mean)} {number(middle)}H{number(p90)}M{number(p90)} {number(middle - 5)}v10"
    tip = f"{bar.name}\nmean {duration(bar.mean_s)}\nmedian {duration(bar.p50_s)}\np90 {duration(bar.p90_s)}"
    return name + tag(
        "g",
        tag("title", escape(tip)),
        # Invisible, so that the whole row answers to the pointer.
        leaf("rect", x=x0, y=top, width=max(p90, mean) - x0 + 60, height=_ROW, class_="hit"),
        leaf("rect", x=x0, y=top + 6.0, width=max(mean - x0, 0.5), height=_ROW - 12.0, rx=2.0, class_="fill"),
        leaf("path", d=whisker, class_="whisker"),
        leaf("path", d=f"M{number(p50)} {number(top + 6)}v{_ROW - 12}", class_="median"),
        label(
            max(p90, mean) + 8,
            middle + 4,
            f"{significant(bar.mean_s / axis.unit.seconds)} {axis.unit.name}",
            "value" + (" lead" if bar.best else ""),
        ),
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
        label(x + 60, y + 4, "bar: mean · notch: median · whisker: to the 90th percentile", "key-text"),
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
    axis = log_axis(low, high, area.x, f"Mean JCT relative to {shorten(comparison.baseline, 22)} (log scale)")
    interval = any(ratio.has_interval for ratio in known)
    head = "dot: geometric mean · line: 95 % confidence interval" if interval else "less is better"
    one = axis.px(1.0)
    parts = [
        x_axis(axis, area),
        label(area.left, area.top - 14, head, "key-text"),
        line(one, area.top, one, area.bottom, "reference"),
    ]
    for k, bar in enumerate(bars):
        y = area.top + (k + 0.5) * _ROW
        ratio = bar.ratio
        if ratio is None or not ratio.pairs:
            parts.append(label(area.right + 12, y + 4, "n/a", "tick"))
            continue
        marks = []
        if ratio.has_interval and bar.name != comparison.baseline:
            x1, x2 = axis.px(ratio.low), axis.px(ratio.high)
            marks.append(leaf("path", d=f"M{number(x1)} {number(y)}H{number(x2)}", class_="interval"))
        marks.append(leaf("circle", cx=axis.px(ratio.value), cy=y, r=5.0, class_="fill"))
        parts.append(tag("g", *marks, class_=bar.style))
        text = "baseline" if bar.name == comparison.baseline else ratio_text(ratio)
        parts.append(label(area.right + 12, y + 4, text, "value" + (" lead" if bar.best else "")))
    return join(parts)
