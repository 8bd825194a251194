"""Many runs as one comparison: means, and ratios to a baseline paired by workload, cluster and seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TypeAlias, cast

import numpy as np
from scipy.special import stdtrit

from batuta.backends.sim.result import RunResult, summarise
from batuta.core.arrays import FloatArray
from batuta.core.job import JobState
from batuta.report.formatting import HOUR, TimeUnit, count, decimals_for, duration, fixed, percent, times, unit_for
from batuta.report.metrics import MEAN_JCT, METRICS, Metric, MetricKind, metric_values
from batuta.report.plot import series_class

Summary: TypeAlias = Mapping[str, object]  # what `summarise` returns for one run
Pair: TypeAlias = tuple[str, str, int]
"""Workload, cluster and seed: runs of two policies with the same pair had the same jobs."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A policy's value over the baseline's: geometric mean over pairs, with the 95 % confidence interval."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low)

    @property
    def inverse(self) -> Ratio:
        """How many times less: 0.70 (0.65–0.75) of the time is 1.43 (1.33–1.54) times as fast."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low, self.pairs)


NO_RATIO = Ratio(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True, slots=True)
class Row:
    """One policy over all its runs."""

    policy: str
    runs: int
    jobs: int
    finished: int
    comparable: bool  # it has every pair and finished as many jobs as any other; else it may have skipped long jobs
    values: Mapping[str, float]  # mean over runs by metric; NaN for what does not exist
    ratios: Mapping[str, Ratio]
    best: frozenset[str]  # metrics in which no ranked policy is better


@dataclass(frozen=True, slots=True)
class Comparison:
    """The table, best mean JCT first; policies that cannot be ranked come last."""

    baseline: str
    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    cells: Mapping[tuple[str, Pair], Mapping[str, float]]  # the metrics of every single run

    @property
    def winner(self) -> Row | None:
        """The policy with the least mean JCT against the baseline, if any can be ranked."""
        return self.rows[0] if self.rows and self.rows[0].comparable else None

    def row(self, policy: str) -> Row:
        return next(row for row in self.rows if row.policy == policy)


def compare(runs: Sequence[RunResult], baseline: str | None = None) -> Comparison:
    """Compare all policies of the runs; the baseline is fifo, or else the first, when not named."""
    by_policy: dict[str, dict[Pair, Summary]] = {}
    for run in runs:
        summaries, pair = by_policy.setdefault(run.policy, {}), _pair_of(run)
        if pair in summaries:
            raise ValueError(f"two runs of {run.policy} on {pair[0]}, cluster {pair[1]}, seed {pair[2]}")
        summaries[pair] = summarise(run)
    baseline = _choose_baseline(list(by_policy), baseline)
    pairs = tuple(dict.fromkeys(_pair_of(run) for run in runs))
    runs_of = ((policy, pair, own[pair]) for policy, own in by_policy.items() for pair in own)
    cells = {(policy, pair): metric_values(summary) for policy, pair, summary in runs_of}
    most = {pair: max(_int(own[pair], "finished") for own in by_policy.values() if pair in own) for pair in pairs}
    rows = []
    for policy, own in by_policy.items():
        comparable = len(own) == len(pairs) and all(_int(own[p], "finished") == most[p] > 0 for p in pairs)
        shared = [pair for pair in pairs if pair in own and pair in by_policy[baseline]]
        jobs, finished = (sum(_int(summary, key) for summary in own.values()) for key in ("jobs", "finished"))
        values = {m.key: _mean([cells[policy, pair][m.key] for pair in own]) for m in METRICS}
        ratios = {
            m.key: paired_ratio(*([cells[one, pair][m.key] for pair in shared] for one in (policy, baseline)))
            for m in METRICS
        }
        rows.append(Row(policy, len(own), jobs, finished, comparable, values, ratios, best=frozenset()))
    return Comparison(baseline, tuple(_rank(_mark_best(rows))), pairs, cells)


def paired_ratio(values: Sequence[float], baselines: Sequence[float]) -> Ratio:
    """exp(mean log ratio ± Student's t); no ratio if a value is not positive, no interval for one pair.

    A pair without a ratio (nothing waited, nothing was lost) is never left out: that would choose by result.
    """
    pairs = np.array([values, baselines], dtype=np.float64).reshape(2, -1)
    n = pairs.shape[1]
    if not n or not (np.isfinite(pairs) & (pairs > 0)).all():
        return NO_RATIO
    logs: FloatArray = np.log(pairs[0]) - np.log(pairs[1])
    middle = float(logs.mean())
    if n == 1:
        return Ratio(math.exp(middle), math.nan, math.nan, 1)
    reach = float(stdtrit(n - 1, 0.975)) * float(logs.std(ddof=1)) / math.sqrt(n)
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach), n)


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """The object that `batuta compare -o json` prints; null for what does not exist."""
    winner = comparison.winner
    return {
        "baseline": comparison.baseline,
        "winner": winner.policy if winner else None,
        "pairs": [{"workload": w, "cluster": c, "seed": s} for w, c, s in comparison.pairs],
        "policies": [_row_json(row) for row in comparison.rows],
    }


def _row_json(row: Row) -> dict[str, object]:
    return {
        **{key: getattr(row, key) for key in ("policy", "runs", "jobs", "finished", "comparable")},
        "mean": _finite(row.values),
        "ratio": {key: _finite(asdict(ratio)) if ratio.pairs else None for key, ratio in row.ratios.items()},
        "best": [metric.key for metric in METRICS if metric.key in row.best],
    }


def _choose_baseline(policies: Sequence[str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in policies:
            raise ValueError(f"the baseline {wanted} is none of the policies: {', '.join(policies)}")
        return wanted
    if not policies:
        raise ValueError("there is no run to compare")
    return "fifo" if "fifo" in policies else policies[0]


def _rank(rows: list[Row]) -> list[Row]:
    """Best first, by ratio, as a mean over workloads is that of the longest one; ties keep their order."""
    paired = all(row.ratios[MEAN_JCT].pairs for row in rows if row.comparable)

    def order(row: Row) -> tuple[bool, float]:
        value = row.ratios[MEAN_JCT].value if paired else row.values[MEAN_JCT]
        return not row.comparable, value if math.isfinite(value) else math.inf

    return sorted(rows, key=order)


def _mark_best(rows: list[Row]) -> list[Row]:
    ranked = [row for row in rows if row.comparable]
    best: dict[str, set[str]] = {row.policy: set() for row in rows}
    for metric in METRICS:
        sign = 1.0 if metric.higher_is_better else -1.0
        values = ((row.policy, row.values[metric.key]) for row in ranked)
        known = [(policy, sign * value) for policy, value in values if math.isfinite(value)]
        top = max((good for _, good in known), default=0.0)
        # Where all are equal, none is marked.
        if any(good < top for _, good in known):
            for policy, good in known:
                if math.isclose(good, top, rel_tol=1e-9, abs_tol=1e-12):
                    best[policy].add(metric.key)
    return [replace(row, best=frozenset(best[row.policy])) for row in rows]


def _int(summary: Summary, key: str) -> int:
    return cast("int", summary[key])


def _mean(values: Sequence[float]) -> float:
    """Return the mean; NaN if one run has no value, because a mean over the others is not comparable."""
    return float(np.mean(values)) if values else math.nan


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as it is shown in one table: divided by its unit, with so many decimals."""

    metric: Metric
    unit: str
    divisor: float
    decimals: int

    def show(self, value: float) -> str:
        return fixed(value / self.divisor, self.decimals)


_UNITS: Mapping[MetricKind, tuple[str, float]] = {
    MetricKind.SHARE: ("%", 0.01),
    MetricKind.MILLISECONDS: ("ms", 1.0),
    MetricKind.GPU_TIME: ("", HOUR.seconds),
    MetricKind.FACTOR: ("", 1.0),
    MetricKind.COUNT: ("", 1.0),
}
"""Unit and divisor; a time has the unit of its group."""


def columns_for(comparison: Comparison) -> tuple[Column, ...]:
    """One unit per group of columns and one number of decimals per column, from the values at hand."""
    columns = []
    units = {group: _group_unit(comparison, next(metrics)) for group, metrics in groupby(METRICS, lambda m: m.group)}
    for metric in METRICS:
        group = units[metric.group]
        unit, divisor = _UNITS.get(metric.kind, (group.name, group.seconds))
        shown = [row.values[metric.key] / divisor for row in comparison.rows]
        decimals = min(decimals_for(shown), 1) if metric.kind is MetricKind.SHARE else decimals_for(shown)
        columns.append(Column(metric, unit, divisor, decimals))
    return tuple(columns)


def _group_unit(comparison: Comparison, first: Metric) -> TimeUnit:
    """The unit that suits the first metric of the group in the policy in the middle."""
    values = (row.values[first.key] for row in comparison.rows)
    # A group of zeros would choose seconds, whatever the rest of the table says.
    positive = sorted(value for value in values if 0 < value < math.inf)
    return unit_for(positive[len(positive) // 2] if positive else 0.0)


def ratio_text(ratio: Ratio) -> str:
    """0.70× (0.66–0.75); without an interval just 0.70×; n/a for none."""
    if not ratio.pairs:
        return "n/a"
    return f"{times(ratio.value)} ({interval_text(ratio)})" if ratio.has_interval else times(ratio.value)


def interval_text(ratio: Ratio) -> str:
    """0.66–0.75, or nothing."""
    return f"{times(ratio.low)[:-1]}–{times(ratio.high)[:-1]}" if ratio.has_interval else ""


# Below this ratio, two policies count as equally fast.
_SAME = 1.005


def headline(comparison: Comparison) -> str:
    """Return a sentence: which policy wins, by how much, against which baseline."""
    rows, winner = comparison.rows, comparison.winner
    if len(rows) == 1:
        return _alone(rows[0])
    if winner is None:
        return "No policy finished all jobs, so none is the winner"
    if winner.policy == comparison.baseline:
        return _baseline_wins(comparison)
    ratio = winner.ratios[MEAN_JCT]
    if not ratio.pairs:
        return f"{winner.policy} has the shortest mean JCT, {duration(winner.values[MEAN_JCT])}"
    return f"{winner.policy} finishes jobs {times(ratio.inverse.value)} faster than {comparison.baseline} on average"


def explanation(comparison: Comparison) -> list[str]:
    """Return sentences that support the headline: numbers, confidence, second best, what is not ranked."""
    rows, winner = comparison.rows, comparison.winner
    if len(rows) == 1:
        return []
    sentences = []
    if winner is not None:
        sentences.append(_numbers(comparison, winner))
        ranked = [row for row in rows if row.comparable]
        if len(ranked) > 1 and ranked[1].policy != comparison.baseline:
            sentences.append(_second(comparison, ranked[1]))
    left_out = [row for row in rows if not row.comparable]
    if left_out and winner is not None:
        names = ", ".join(f"{row.policy} ({row.finished:,} of {row.jobs:,} jobs)" for row in left_out)
        sentences.append(f"Not ranked, because they finished fewer jobs or lack runs: {names}.")
    return sentences


def _alone(row: Row) -> str:
    if not row.finished:
        return f"{row.policy} finished none of {count(row.jobs, 'job')}"
    done = count(row.jobs, "job") if row.finished == row.jobs else f"{row.finished:,} of {count(row.jobs, 'job')}"
    used, mean = percent(row.values["gpu_utilisation"]), duration(row.values[MEAN_JCT])
    return f"{row.policy} finishes {done} in {mean} on average, with {used} of the GPUs in use"


def _baseline_wins(comparison: Comparison) -> str:
    second = next((row for row in comparison.rows[1:] if row.comparable and row.ratios[MEAN_JCT].pairs), None)
    if second is None:
        return f"{comparison.baseline} is the only policy that can be ranked"
    slower, none = second.ratios[MEAN_JCT].value, f"No policy finishes jobs faster than {comparison.baseline}"
    if slower < _SAME:
        return f"{none}; {second.policy} is level with it"
    return f"{none}; next is {second.policy}, {times(slower)} slower on average"


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
        return f"Second is {row.policy}, {times(ratio.inverse.value)}{sure} faster than {comparison.baseline}."
    return f"Second is {row.policy}, no faster than {comparison.baseline}."


@dataclass(frozen=True, slots=True)
class PolicyOutcomes:
    """The jobs of one policy over all its runs."""

    policy: str
    jobs: int
    jct_s: FloatArray  # of the jobs that succeeded
    fairness: FloatArray


@dataclass(frozen=True, slots=True)
class Study:
    """The data of a report. Policies are in the order of their rank everywhere."""

    runs: tuple[RunResult, ...]
    comparison: Comparison
    styles: Mapping[str, str]  # CSS classes by policy; the baseline is neutral
    outcomes: tuple[PolicyOutcomes, ...]
    shown: Pair  # Workload, cluster and seed of the runs that are drawn over time
    shown_runs: tuple[RunResult, ...]
    start_s: float  # time 0 of every chart: the first submission
    span_s: float

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(row.policy for row in self.comparison.rows)

    @property
    def best(self) -> str:
        """The winner; empty for a single policy or without a winner."""
        winner = self.comparison.winner
        return winner.policy if winner is not None and len(self.comparison.rows) > 1 else ""

    @property
    def drawn_for(self) -> str:
        """A sentence for captions, where not all runs are drawn."""
        several = len(self.comparison.pairs) > 1
        return f" Drawn for workload {self.shown[0]}, seed {self.shown[2]}." if several else ""

    def line_style(self, policy: str) -> str:
        """CSS classes of a policy's curve; the winner's stands out."""
        return self.styles[policy] + (" lead" if policy == self.best else "")


def build_study(runs: Sequence[RunResult], baseline: str | None = None) -> Study:
    """Return the study of one run or many; ValueError for none, or for duplicates."""
    comparison = compare(runs, baseline)
    policies = [row.policy for row in comparison.rows]
    shown = _choose_shown(runs, comparison)
    by_policy = {run.policy: run for run in runs if _pair_of(run) == shown}
    shown_runs = tuple(by_policy[policy] for policy in policies if policy in by_policy)
    start = min((job.submit_s for run in shown_runs for job in run.jobs), default=0.0)
    end = max((float(run.timeline.time_s[-1]) for run in shown_runs if len(run.timeline.time_s)), default=start)
    return Study(
        runs=tuple(runs),
        comparison=comparison,
        styles=_style(runs, comparison),
        outcomes=tuple(_outcomes(policy, runs) for policy in policies),
        shown=shown,
        shown_runs=shown_runs,
        start_s=start,
        span_s=max(end - start, 1.0),
    )


def _style(runs: Sequence[RunResult], comparison: Comparison) -> dict[str, str]:
    """Colours in the order that the policies were given in, so that they do not change with the winner."""
    given = list(dict.fromkeys(run.policy for run in runs))
    if len(given) == 1:
        return {given[0]: series_class(1)}
    others = [policy for policy in given if policy != comparison.baseline]
    return {comparison.baseline: series_class(0)} | {name: series_class(k + 1) for k, name in enumerate(others)}


def _choose_shown(runs: Sequence[RunResult], comparison: Comparison) -> Pair:
    """The first pair that all policies have, else the first."""
    has = Counter(_pair_of(run) for run in runs)
    return next((pair for pair in comparison.pairs if has[pair] == len(comparison.rows)), comparison.pairs[0])


def _outcomes(policy: str, runs: Sequence[RunResult]) -> PolicyOutcomes:
    jobs = [job for run in runs if run.policy == policy for job in run.jobs]
    over = [job for job in jobs if job.state is JobState.SUCCEEDED]
    fairness = np.array([job.fairness for job in over], dtype=np.float64)
    jct_s = np.array([job.end_s - job.submit_s for job in over], dtype=np.float64)
    return PolicyOutcomes(policy, len(jobs), jct_s, fairness[np.isfinite(fairness)])


def _pair_of(run: RunResult) -> Pair:
    return run.workload, run.cluster, run.seed
