"""Many runs as one table: means, and ratios to a baseline that are paired by workload, cluster and seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import numpy as np

from batuta.backends.sim.result import RunResult, summarise
from batuta.core.arrays import FloatArray
from batuta.report.metrics import MEAN_JCT, METRICS, Metric, values_of

Summary: TypeAlias = Mapping[str, object]
"""What `summarise` says of one run."""
Pair: TypeAlias = tuple[str, str, int]
"""Workload, cluster and seed: runs of two policies that agree in them saw the same jobs."""


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
    comparable: bool
    """It has every pair and finished as many jobs as any other; who leaves long jobs out is not ranked."""
    values: Mapping[str, float]
    """Mean over runs by metric; NaN for what does not exist."""
    ratios: Mapping[str, Ratio]
    best: frozenset[str]
    """Metrics in which no ranked policy is better."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The table, best mean JCT first; policies that cannot be ranked come last."""

    baseline: str
    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    cells: Mapping[tuple[str, Pair], Mapping[str, float]]
    """The metrics of every single run."""

    @property
    def winner(self) -> Row | None:
        """The policy with the least mean JCT against the baseline, if any can be ranked."""
        return self.rows[0] if self.rows and self.rows[0].comparable else None

    def row(self, policy: str) -> Row:
        return next(row for row in self.rows if row.policy == policy)


def compare(runs: Iterable[RunResult], baseline: str | None = None) -> Comparison:
    """The comparison of all policies that occur; the baseline is fifo, or else the first, when not named."""
    return compare_summaries([summarise(run) for run in runs], baseline)


def compare_summaries(summaries: Sequence[Summary], baseline: str | None = None) -> Comparison:
    """Like `compare`, for callers that kept the summaries only."""
    by_policy: dict[str, dict[Pair, Summary]] = {}
    for summary in summaries:
        policy, pair = str(summary["policy"]), _pair_of(summary)
        runs = by_policy.setdefault(policy, {})
        if pair in runs:
            raise ValueError(f"two runs of {policy} on {pair[0]}, cluster {pair[1]}, seed {pair[2]}")
        runs[pair] = summary
    baseline = _choose_baseline(list(by_policy), baseline)
    pairs = tuple(dict.fromkeys(_pair_of(summary) for summary in summaries))
    cells = {(str(one["policy"]), _pair_of(one)): values_of(one) for one in summaries}
    most = {
        pair: max(_int(runs[pair], "finished") for runs in by_policy.values() if pair in runs)
        for pair in pairs
    }
    rows = []
    for policy, runs in by_policy.items():
        comparable = len(runs) == len(pairs) and all(_int(runs[p], "finished") == most[p] > 0 for p in pairs)
        shared = [pair for pair in pairs if pair in runs and pair in by_policy.get(baseline, {})]
        rows.append(
            Row(
                policy=policy,
                runs=len(runs),
                jobs=sum(_int(run, "jobs") for run in runs.values()),
                finished=sum(_int(run, "finished") for run in runs.values()),
                comparable=comparable,
                values={m.key: _mean([cells[policy, pair][m.key] for pair in runs]) for m in METRICS},
                ratios={
                    m.key: paired_ratio(
                        [cells[policy, pair][m.key] for pair in shared],
                        [cells[baseline, pair][m.key] for pair in shared],
                    )
                    for m in METRICS
                },
                best=frozenset(),
            )
        )
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
    reach = student_t_975(n - 1) * float(logs.std(ddof=1)) / math.sqrt(n)
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach), n)


_T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


def student_t_975(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution, right to three decimals."""
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = 1.959964
    # Expansion of the quantile around the normal one (Abramowitz & Stegun 26.7.5).
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / math.pow(freedom, k + 1) for k, term in enumerate(terms))


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
    ratios = {}
    for key, ratio in row.ratios.items():
        known = {
            "value": ratio.value,
            "low": _or_none(ratio.low),
            "high": _or_none(ratio.high),
            "pairs": ratio.pairs,
        }
        ratios[key] = known if ratio.pairs else None
    return {
        "policy": row.policy,
        "runs": row.runs,
        "jobs": row.jobs,
        "finished": row.finished,
        "comparable": row.comparable,
        "mean": {key: _or_none(value) for key, value in row.values.items()},
        "ratio": ratios,
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
        known = [
            (row.policy, _goodness(metric, row)) for row in ranked if math.isfinite(row.values[metric.key])
        ]
        top = max((good for _, good in known), default=0.0)
        # Where all are the same there is nothing to point at.
        if any(good < top for _, good in known):
            for policy, good in known:
                if math.isclose(good, top, rel_tol=1e-9, abs_tol=1e-12):
                    best[policy].add(metric.key)
    return [replace(row, best=frozenset(best[row.policy])) for row in rows]


def _goodness(metric: Metric, row: Row) -> float:
    value = row.values[metric.key]
    return value if metric.higher_is_better else -value


def _pair_of(summary: Summary) -> Pair:
    return str(summary["workload"]), str(summary["cluster"]), _int(summary, "seed")


def _int(summary: Summary, key: str) -> int:
    return cast("int", summary[key])


def _mean(values: Sequence[float]) -> float:
    """The mean; NaN as soon as one run has no value, as a mean over the others would be of something else."""
    return float(np.mean(values)) if values else math.nan


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
