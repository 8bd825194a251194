"""The result in a sentence or two, for the report and for the terminal."""

from __future__ import annotations

from batuta.report.columns import interval_text
from batuta.report.compare_table import Comparison, Row
from batuta.report.metrics import MEAN_JCT
from batuta.report.units import count, duration, percent, times

# Closer than this and a reader would laugh at the word "faster".
_SAME = 1.005


def headline(comparison: Comparison) -> str:
    """Who wins, by how much, against whom."""
    rows, winner = comparison.rows, comparison.winner
    if len(rows) == 1:
        return _alone(rows[0])
    if winner is None:
        return "No policy finished all jobs, so none is the winner"
    if winner.policy == comparison.baseline:
        return _baseline_wins(comparison)
    faster = winner.ratios[MEAN_JCT].inverse if winner.ratios[MEAN_JCT].pairs else None
    if faster is None:
        return f"{winner.policy} has the shortest mean JCT, {duration(winner.values[MEAN_JCT])}"
    return f"{winner.policy} finishes jobs {times(faster.value)} faster than {comparison.baseline} on average"


def explanation(comparison: Comparison) -> list[str]:
    """What has to be known to believe the headline: numbers, certainty, the runner-up, what was left out."""
    rows, winner = comparison.rows, comparison.winner
    if len(rows) == 1:
        return []
    told = []
    if winner is not None:
        told.append(_numbers(comparison, winner))
        ranked = [row for row in rows if row.comparable]
        if len(ranked) > 1 and ranked[1].policy != comparison.baseline:
            told.append(_second(comparison, ranked[1]))
    left_out = [row for row in rows if not row.comparable]
    if left_out and winner is not None:
        names = ", ".join(f"{row.policy} ({row.finished:,} of {row.jobs:,} jobs)" for row in left_out)
        told.append(f"Not ranked, because they finished fewer jobs or lack runs: {names}.")
    return told


def _alone(row: Row) -> str:
    if not row.finished:
        return f"{row.policy} finished none of {count(row.jobs, 'job')}"
    done = (
        f"{count(row.jobs, 'job')}"
        if row.finished == row.jobs
        else f"{row.finished:,} of {count(row.jobs, 'job')}"
    )
    used = percent(row.values["gpu_utilisation"])
    mean = duration(row.values[MEAN_JCT])
    return f"{row.policy} finishes {done} in {mean} on average, with {used} of the GPUs in use"


def _baseline_wins(comparison: Comparison) -> str:
    second = next((row for row in comparison.rows[1:] if row.comparable and row.ratios[MEAN_JCT].pairs), None)
    if second is None:
        return f"{comparison.baseline} is the only policy that can be ranked"
    slower = second.ratios[MEAN_JCT].value
    if slower < _SAME:
        return f"No policy finishes jobs faster than {comparison.baseline}; {second.policy} is level with it"
    return (
        f"No policy finishes jobs faster than {comparison.baseline}; next is {second.policy}, "
        f"{times(slower)} slower on average"
    )


def _numbers(comparison: Comparison, winner: Row) -> str:
    base = comparison.row(comparison.baseline)
    text = f"Mean JCT is {duration(winner.values[MEAN_JCT])}"
    if winner is base:
        return f"{text}."
    text += f", against {duration(base.values[MEAN_JCT])} under {base.policy}"
    ratio = winner.ratios[MEAN_JCT]
    if ratio.has_interval:
        sure = interval_text(ratio.inverse)
        text += f" (95 % confidence interval of the factor: {sure}, {ratio.pairs} paired runs)"
        if ratio.high >= 1:
            text += "; the interval includes 1, so this may be chance"
    elif ratio.pairs == 1:
        text += " (one run each, so no confidence interval)"
    return f"{text}."


def _second(comparison: Comparison, row: Row) -> str:
    ratio = row.ratios[MEAN_JCT]
    if not ratio.pairs:
        return f"Second is {row.policy} with {duration(row.values[MEAN_JCT])}."
    sure = f" ({interval_text(ratio.inverse)})" if ratio.has_interval else ""
    if ratio.value < 1:
        return (
            f"Second is {row.policy}, {times(ratio.inverse.value)}{sure} faster than {comparison.baseline}."
        )
    return f"Second is {row.policy}, no faster than {comparison.baseline}."
