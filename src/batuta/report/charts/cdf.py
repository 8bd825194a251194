"""How values are spread over jobs: cumulative distributions, one line per policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.report.axis import Axis, log_axis, log_time_axis, share_axis
from batuta.report.markup import leaf, shorten, tag
from batuta.report.plot import HALF, Area, Key, label, legend, line, step_path, svg, x_axis, y_axis
from batuta.report.sampling import cumulative_shares
from batuta.report.study import Study
from batuta.report.units import significant

_HEIGHT = 320
_POINTS = 400


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of one policy out of `total` jobs; jobs without a value hold the line below 100 %."""

    policy: str
    style: str
    values: FloatArray
    total: int
    best: bool


def jct_cdf(study: Study) -> str:
    """The share of jobs that were done within a time."""
    spreads = [
        Spread(one.policy, study.styles[one.policy], one.jct_s, one.jobs, one.policy == study.best)
        for one in study.outcomes
    ]

    def axis(low: float, high: float, px: tuple[float, float]) -> Axis:
        return log_time_axis(low, high, px, "Job completion time (log scale)")

    return _cdf(
        "jct-cdf", "Distribution of job completion times", spreads, axis, "Jobs done within this time"
    )


def fairness_cdf(study: Study) -> str:
    """The share of jobs up to a finish-time fairness ρ, with the line that fair schedulers stay left of."""
    spreads = [
        Spread(
            one.policy, study.styles[one.policy], one.fairness, len(one.fairness), one.policy == study.best
        )
        for one in study.outcomes
    ]

    def axis(low: float, high: float, px: tuple[float, float]) -> Axis:
        return log_axis(min(low, 0.8), max(high, 1.25), px, "Finish-time fairness ρ (log scale)")

    title = "Distribution of finish-time fairness"
    return _cdf("fairness-cdf", title, spreads, axis, "Jobs with at most this ρ", fair_at=1.0)


def _cdf(
    key: str,
    title: str,
    spreads: Sequence[Spread],
    make_axis: Callable[[float, float, tuple[float, float]], Axis],
    y_title: str,
    fair_at: float | None = None,
) -> str:
    width = float(HALF)
    keys = [Key(one.policy, one.style, f"s{k}") for k, one in enumerate(spreads)] if len(spreads) > 1 else []
    keys_markup, keys_height = legend(keys, 8, 4, width - 4)
    area = Area(62, 16 + keys_height, width - 14, _HEIGHT + keys_height)
    height = area.bottom + 46
    # A job that took no time at all has no place on a log axis: it counts at the left end.
    positive = [one.values[one.values > 0] for one in spreads]
    everything = np.concatenate(positive) if positive else np.zeros(0)
    if not len(everything):
        return svg(
            key, width, 80, title, "No values.", label(width / 2, 44, f"{title}: no values", "tick mid")
        )
    x = make_axis(float(everything.min()), float(everything.max()), area.x)
    y = share_axis(area.y, y_title)
    body = [keys_markup, x_axis(x, area), y_axis(y, area)]
    if fair_at is not None:
        at = x.px(fair_at)
        body.append(line(at, area.top, at, area.bottom, "reference"))
        if at < (area.left + area.right) / 2:
            body.append(label(at + 6, area.bottom - 8, "worse than a fair share →", "note"))
        else:
            body.append(label(at - 6, area.top + 16, "← better than a fair share", "note end"))
    # The winner is drawn last, on top of the others.
    order = sorted(range(len(spreads)), key=lambda k: spreads[k].best)
    body += [_curve(spreads[k], f"s{k}", x, y) for k in order]
    return svg(
        key,
        width,
        height,
        title,
        _describe(spreads),
        *body,
        class_="lines",
        data_x=x.describe(),
        data_y=y.describe(),
        data_area=f"{area.left:g} {area.top:g} {area.right:g} {area.bottom:g}",
    )


def _curve(spread: Spread, series: str, x: Axis, y: Axis) -> str:
    values, shares = cumulative_shares(spread.values, spread.total, _POINTS)
    if not len(values):
        return ""
    # From 0 at the left end, and level to the right end: every line spans the axis.
    xs = x.pxs(np.r_[x.low, values, x.high])
    ys = y.pxs(np.r_[0.0, shares, shares[-1]])
    style = f"series {spread.style}" + (" lead" if spread.best else "")
    return tag(
        "g",
        leaf("path", d=step_path(xs, ys), class_="stroke"),
        class_=style,
        data_series=series,
        data_label=shorten(spread.policy, 40),
    )


def _describe(spreads: Sequence[Spread]) -> str:
    medians = [
        f"{one.policy} {significant(float(np.median(one.values)))}" for one in spreads if len(one.values)
    ]
    return f"Median by policy: {', '.join(medians)}."
