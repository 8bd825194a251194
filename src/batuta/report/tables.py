"""Tables of the report: the summary with its best values, ratios with intervals, mean JCT by workload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import count, groupby

from batuta.report.comparison import (
    Column,
    Comparison,
    Ratio,
    Row,
    Study,
    columns_for,
    interval_text,
    paired_ratio,
    ratio_text,
)
from batuta.report.formatting import decimals_for, escape, fixed, scrolling_table, shorten, tag, times, unit_for
from batuta.report.metrics import MEAN_JCT, METRICS


def summary_table(study: Study) -> str:
    """One row per policy, one column per metric; the best of each column is marked."""
    comparison = study.comparison
    columns = columns_for(comparison)
    several = len(comparison.rows) > 1
    head = _summary_head(columns, comparison.baseline if several else "")
    rows = [_summary_row(row, columns, study) for row in comparison.rows]
    runs = "mean over all runs" if len(comparison.pairs) > 1 else "one run each" if several else "one run"
    caption = f"Results ({runs})."
    if several:
        caption = (
            f"Results by policy ({runs}). The best value of a column is bold on green;"
            f" the small number is the ratio to {comparison.baseline}."
            " Ranked by mean JCT; less is better everywhere but in GPUs used."
        )
    class_ = "summary sortable" if several else "summary"
    return scrolling_table(caption, head, tag("tbody", *rows), class_=class_)


def _summary_head(columns: Sequence[Column], baseline: str) -> str:
    """Two rows of heads: groups, and below them what they consist of."""
    place = count()

    def head(text: str, **attributes: object) -> str:
        return tag("th", text, scope="col", data_column=next(place), **attributes)

    upper = [head("Policy", rowspan=2, data_sort="text", class_="name")]
    if baseline:
        meaning = f"Mean JCT over that of {baseline}, geometric mean over paired runs"
        text = f"vs {escape(shorten(baseline, 20))}"
        upper.append(head(text, rowspan=2, data_sort="number", title=meaning, class_="edge"))
    lower = []
    for group, members in groupby(columns, lambda column: column.metric.group):
        mine = list(members)
        name = escape(group) + (_unit(mine[0].unit) if mine[0].unit != "%" else "")
        if not mine[0].metric.label:
            meaning = mine[0].metric.meaning
            upper.append(head(name, rowspan=2, data_sort="number", title=meaning, class_="edge"))
            continue
        upper.append(tag("th", name, scope="colgroup", colspan=len(mine), class_="group edge"))
        for column in mine:
            text = escape(column.metric.label) + (_unit("%") if column.unit == "%" else "")
            edge = "edge" if column is mine[0] else None
            lower.append(head(text, data_sort="number", title=column.metric.meaning, class_=edge))
    return tag("thead", tag("tr", *upper), tag("tr", *lower))


def _unit(name: str) -> str:
    return " " + tag("span", escape(name), class_="unit") if name else ""


def _summary_row(row: Row, columns: Sequence[Column], study: Study) -> str:
    comparison = study.comparison
    several = len(comparison.rows) > 1
    mark = tag("span", class_=f"swatch {study.styles[row.policy]}")
    name = f"{mark}{escape(shorten(row.policy, 32))}"
    if several and row.policy == comparison.baseline:
        name += " <small>baseline</small>"
    if row.policy == study.best:
        name += ' <small class="crown">best</small>'
    if row.finished < row.jobs or not row.comparable:
        name += f" <small>{row.finished:,} of {row.jobs:,} jobs</small>"
    cells = [tag("th", name, scope="row", class_="name", data_value=row.policy)]
    if several:
        cells.append(_ratio_cell(row, comparison.baseline))
    previous = ""
    for column in columns:
        key = column.metric.key
        best = key in row.best
        content = escape(column.show(row.values[key]))
        ratio = row.ratios[key]
        is_other = row.policy != comparison.baseline
        if several:
            content += tag("small", escape(times(ratio.value)) if is_other and ratio.pairs else "")
        classes = ["best"] * best + ["edge"] * (column.metric.group != previous)
        previous = column.metric.group
        hint = f"ratio {ratio_text(ratio)}" if ratio.has_interval and is_other else None
        cells.append(
            tag("td", content, class_=" ".join(classes) or None, data_value=_sortable(row.values[key]), title=hint)
        )
    return tag("tr", *cells, class_="winner" if row.policy == study.best else None)


def _ratio_cell(row: Row, baseline: str) -> str:
    ratio = row.ratios[MEAN_JCT]
    content = escape(times(ratio.value)) if ratio.pairs else "n/a"
    content += tag("small", escape(interval_text(ratio)) if row.policy != baseline else "")
    class_ = "edge best" if MEAN_JCT in row.best else "edge"
    return tag("td", content, class_=class_, data_value=_sortable(ratio.value))


def ratio_table(study: Study) -> str:
    comparison = study.comparison
    head = [
        tag("th", escape(f"{metric.group} {metric.label}".strip()), scope="col", title=metric.meaning)
        for metric in METRICS
    ]

    def cell(ratio: Ratio) -> str:
        small = tag("small", escape(interval_text(ratio)))
        return tag("td", escape(times(ratio.value)) + small if ratio.pairs else "n/a")

    rows = [
        _row(row.policy, (cell(row.ratios[metric.key]) for metric in METRICS))
        for row in comparison.rows
        if row.policy != comparison.baseline
    ]
    caption = (
        f"Ratio to {comparison.baseline}: geometric mean over {len(comparison.pairs)} pairs (same workload,"
        " cluster and seed), and below it the 95 % confidence interval (Student's t on log ratios)."
        " n/a where a value is 0."
    )
    return _by_policy(caption, head, rows)


def _row(policy: str, cells: Iterable[str]) -> str:
    return tag("tr", tag("th", escape(policy), scope="row", class_="name"), *cells)


def _by_policy(caption: str, head: Iterable[str], rows: Iterable[str]) -> str:
    first = tag("th", "Policy", scope="col", class_="name")
    return scrolling_table(caption, tag("thead", tag("tr", first, *head)), tag("tbody", *rows))


def workload_table(study: Study) -> str:
    """Mean JCT of every policy on every workload, over its seeds, and the ratio to the baseline there."""
    comparison = study.comparison
    workloads = list(dict.fromkeys(pair[0] for pair in comparison.pairs))
    everything = [values[MEAN_JCT] for values in comparison.cells.values() if math.isfinite(values[MEAN_JCT])]
    unit = unit_for(sorted(everything)[len(everything) // 2] if everything else 0.0)
    decimals = decimals_for(value / unit.seconds for value in everything)
    head = [tag("th", escape(workload), scope="col") for workload in workloads]
    means = {
        (row.policy, workload): _values(comparison, row.policy, workload)
        for row in comparison.rows
        for workload in workloads
    }
    least = {
        w: min((_mean(means[row.policy, w]) for row in comparison.rows if row.comparable), default=0) for w in workloads
    }
    rows = []
    for row in comparison.rows:
        cells = []
        for workload in workloads:
            mine, base = means[row.policy, workload], means[comparison.baseline, workload]
            ratio = paired_ratio(mine, base) if len(mine) == len(base) else paired_ratio([], [])
            text = escape(fixed(_mean(mine) / unit.seconds, decimals))
            if row.policy != comparison.baseline:
                text += tag("small", escape(times(ratio.value) if ratio.pairs else "n/a"))
            cells.append(tag("td", text, class_="best" if _mean(mine) == least[workload] else None))
        rows.append(_row(row.policy, cells))
    caption = f"Mean JCT by workload ({unit.name}, mean over seeds), and its ratio to {comparison.baseline}."
    return _by_policy(caption, head, rows)


def _values(comparison: Comparison, policy: str, workload: str) -> list[float]:
    pairs = [pair for pair in comparison.pairs if pair[0] == workload and (policy, pair) in comparison.cells]
    return [comparison.cells[policy, pair][MEAN_JCT] for pair in pairs]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _sortable(value: float) -> str | None:
    """Return what the sorting script compares; cells without a value go last."""
    return f"{value!r}" if math.isfinite(value) else None
