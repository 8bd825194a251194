"""Results on a terminal: one run as a short list, many as a table that fits the window.

Rich leaves colours out where there is no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from batuta.backends.sim.result import RunResult, summarise
from batuta.report.comparison import Column, Comparison, Row, columns_for, explanation, headline, ratio_text
from batuta.report.formatting import count, duration, percent, shorten, significant
from batuta.report.metrics import MEAN_JCT, metric_values

BEST = "bold green"

# The order in which columns are dropped in a narrow window.
_DROPPED_FIRST = (
    *("decide_p99_ms", "fragmentation", "preemptions", "migrations", "fairness_mean", "decide_mean_ms", "lost_gpu_s"),
    *("fairness_above_one", "jct_p50_s", "makespan_s", "restarts", "wait_mean_s", "jct_p99_s", "fairness_max"),
    *("gpu_utilisation", "jct_p90_s"),
)


def run_view(run: RunResult) -> Group:
    """What `batuta simulate` prints: the headline numbers of one run, a line for each kind."""
    summary = summarise(run)
    values = metric_values(summary)
    jct, wait = (cast("dict[str, float]", summary[key]) for key in ("jct_s", "wait_s"))
    decide = cast("dict[str, float]", summary["decide_ms"])
    finished = cast("int", summary["finished"])
    lines = [
        ("jobs", f"{finished:,} of {len(run.jobs):,} finished" + ("" if run.complete else "; stopped early")),
        ("JCT", _spread(jct) if finished else "no job finished"),
        ("wait", _spread(wait)),
        ("makespan", duration(values["makespan_s"])),
        (
            "fairness ρ",
            f"mean {significant(values['fairness_mean'])}   max {significant(values['fairness_max'])}   "
            f"{percent(values['fairness_above_one'])} of jobs above 1",
        ),
        ("GPUs", f"{percent(values['gpu_utilisation'])} used   {percent(values['fragmentation'])} fragmentation"),
        (
            "changes",
            "   ".join(count(int(values[f"{noun}s"]), noun) for noun in ("restart", "migration", "preemption"))
            + f"   {significant(values['lost_gpu_s'] / 3600)} GPU-h lost",
        ),
        (
            "decide",
            f"mean {significant(decide['mean'])} ms   p99 {significant(decide['p99'])} ms   "
            f"{count(len(run.decide_ms), 'cycle')}   {duration(run.cpu_s)} of CPU time",
        ),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, text in lines:
        grid.add_row(name, Text(text))
    title = Text.assemble((run.policy, "bold"), f" on {run.workload}, {run.cluster}, seed {run.seed}")
    return Group(title, grid, *(Text(f"note: {note}", style="yellow") for note in run.notes))


def comparison_view(comparison: Comparison, width: int = 120) -> Group:
    """What `batuta compare` prints: the headline, the table, and the explanation."""
    notes = [Text(line, style="dim") for line in explanation(comparison)]
    return Group(Text(headline(comparison), style="bold"), comparison_table(comparison, width), *notes)


def comparison_table(comparison: Comparison, width: int = 120) -> Table:
    """One row per policy, as many columns as fit into the width; the best of each is bold green."""
    columns = list(columns_for(comparison))
    wide = Console(width=10_000, color_system=None)
    table = _build(comparison, columns)
    for key in _DROPPED_FIRST:
        if wide.measure(table).maximum <= width:
            break
        columns = [column for column in columns if column.metric.key != key]
        table = _build(comparison, columns)
    return table


def _build(comparison: Comparison, columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("policy", no_wrap=True, overflow="ellipsis", vertical="bottom")
    several = len(comparison.rows) > 1
    if several:
        table.add_column(f"JCT vs\n{shorten(comparison.baseline, 16)}", no_wrap=True, justify="right")
    for column in columns:
        # Two short lines: the group, then the metric with its unit.
        group = {"Fairness ρ": "ρ", "Changes": "", "Makespan": "make-"}.get(column.metric.group, column.metric.group)
        head = f"{group}\n{column.metric.label or 'span'} {column.unit}".rstrip()
        table.add_column(Text(head), no_wrap=True, justify="right")
    for row in comparison.rows:
        cells = [_cell(column.show(row.values[column.metric.key]), column.metric.key in row.best) for column in columns]
        if several:
            base = row.policy == comparison.baseline
            ratio = "baseline" if base else ratio_text(row.ratios[MEAN_JCT])
            cells.insert(0, _cell(ratio, MEAN_JCT in row.best))
        table.add_row(_name(row, comparison), *cells)
    return table


def _name(row: Row, comparison: Comparison) -> Text:
    name = Text(shorten(row.policy, 24))
    if len(comparison.rows) > 1 and row is comparison.winner:
        name.stylize(BEST)
    if not row.comparable:
        name.append(f" ({row.finished}/{row.jobs})", style="yellow")
    return name


def _cell(text: str, best: bool) -> Text:
    return Text(text, style=BEST if best else "")


def _spread(values: dict[str, float]) -> str:
    return "   ".join(f"{name} {duration(values[name])}" for name in ("mean", "p50", "p90", "p99", "max"))
