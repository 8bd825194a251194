"""The runs of a report, put in order once: who is compared, in which colour, which are drawn over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batuta.backends.sim.result import RunResult
from batuta.core.arrays import FloatArray
from batuta.core.job import JobState
from batuta.report.compare_table import Comparison, Pair, compare
from batuta.report.palette import series_class


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The jobs of one policy over all its runs."""

    policy: str
    jobs: int
    jct_s: FloatArray
    """Of the jobs that succeeded."""
    fairness: FloatArray


@dataclass(frozen=True, slots=True)
class Study:
    """All that a report draws from. Policies are in the order of their rank everywhere."""

    runs: tuple[RunResult, ...]
    comparison: Comparison
    styles: Mapping[str, str]
    """CSS classes by policy; the baseline is neutral."""
    outcomes: tuple[Outcomes, ...]
    shown: Pair
    """Workload, cluster and seed of the runs that are drawn over time."""
    shown_runs: tuple[RunResult, ...]
    start_s: float
    """Time 0 of every chart: the first submission."""
    span_s: float

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(row.policy for row in self.comparison.rows)

    @property
    def best(self) -> str:
        """The winner, or no policy when there is nothing to win."""
        winner = self.comparison.winner
        return winner.policy if winner is not None and len(self.comparison.rows) > 1 else ""


def study(runs: Sequence[RunResult], baseline: str | None = None) -> Study:
    """The study of these runs, one or many; ValueError for none, or for two of the same."""
    comparison = compare(runs, baseline)
    policies = [row.policy for row in comparison.rows]
    shown = _choose_shown(runs, comparison)
    by_policy = {run.policy: run for run in runs if _pair_of(run) == shown}
    shown_runs = tuple(by_policy[policy] for policy in policies if policy in by_policy)
    start = min((job.submit_s for run in shown_runs for job in run.jobs), default=0.0)
    end = max(
        (float(run.timeline.time_s[-1]) for run in shown_runs if len(run.timeline.time_s)), default=start
    )
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
    return {comparison.baseline: series_class(0)} | {
        name: series_class(k + 1) for k, name in enumerate(others)
    }


def _choose_shown(runs: Sequence[RunResult], comparison: Comparison) -> Pair:
    """The first pair that all policies have, else the first."""
    has: dict[Pair, int] = {}
    for run in runs:
        has[_pair_of(run)] = has.get(_pair_of(run), 0) + 1
    return next((pair for pair in comparison.pairs if has[pair] == len(comparison.rows)), comparison.pairs[0])


def _outcomes(policy: str, runs: Sequence[RunResult]) -> Outcomes:
    jobs = [job for run in runs if run.policy == policy for job in run.jobs]
    over = [job for job in jobs if job.state is JobState.SUCCEEDED]
    fairness = np.array([job.fairness for job in over], dtype=np.float64)
    return Outcomes(
        policy=policy,
        jobs=len(jobs),
        jct_s=np.array([job.end_s - job.submit_s for job in over], dtype=np.float64),
        fairness=fairness[np.isfinite(fairness)],
    )


def _pair_of(run: RunResult) -> Pair:
    return run.workload, run.cluster, run.seed
