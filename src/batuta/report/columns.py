"""How metrics are shown side by side: one unit per group, as many decimals as a column needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from batuta.report.compare_table import Comparison, Ratio
from batuta.report.metrics import METRICS, Kind, Metric
from batuta.report.units import HOUR, TimeUnit, decimals_for, fixed, times, unit_for


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as it is shown in one table: divided by its unit, with so many decimals."""

    metric: Metric
    unit: str
    divisor: float
    decimals: int

    def show(self, value: float) -> str:
        return fixed(value / self.divisor, self.decimals)


def columns_for(comparison: Comparison) -> tuple[Column, ...]:
    """One unit per group of columns and one number of decimals per column, from the values at hand."""
    columns = []
    units = {
        group: _group_unit(comparison, list(metrics))
        for group, metrics in groupby(METRICS, lambda m: m.group)
    }
    for metric in METRICS:
        unit, divisor = units[metric.group].name, units[metric.group].seconds
        if metric.kind is Kind.SHARE:
            unit, divisor = "%", 0.01
        elif metric.kind is Kind.MILLISECONDS:
            unit, divisor = "ms", 1.0
        elif metric.kind is Kind.GPU_TIME:
            unit, divisor = "", HOUR.seconds
        elif metric.kind is not Kind.TIME:
            unit, divisor = "", 1.0
        shown = [row.values[metric.key] / divisor for row in comparison.rows]
        decimals = min(decimals_for(shown), 1) if metric.kind is Kind.SHARE else decimals_for(shown)
        columns.append(Column(metric, unit, divisor, decimals))
    return tuple(columns)


def _group_unit(comparison: Comparison, metrics: Sequence[Metric]) -> TimeUnit:
    """The unit that suits the first metric of the group in the policy in the middle."""
    values = sorted(
        row.values[metrics[0].key] for row in comparison.rows if math.isfinite(row.values[metrics[0].key])
    )
    # A group of zeros would choose seconds, whatever the rest of the table says.
    positive = [value for value in values if value > 0]
    return unit_for(positive[len(positive) // 2] if positive else 0.0)


def ratio_text(ratio: Ratio) -> str:
    """0.70× (0.66–0.75); without an interval just 0.70×; n/a for none."""
    if not ratio.pairs:
        return "n/a"
    return f"{times(ratio.value)} ({interval_text(ratio)})" if ratio.has_interval else times(ratio.value)


def interval_text(ratio: Ratio) -> str:
    """0.66–0.75, or nothing."""
    return f"{times(ratio.low)[:-1]}–{times(ratio.high)[:-1]}" if ratio.has_interval else ""
