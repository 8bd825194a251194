"""Rent on the Pollux replays: mean completion time against the averages that the authors published.

Jobs tune their batch size by what was learned. Bars: `history` (points of the same application in this run,
totals unknown) at most 0.77 in the geometric mean over the loads, `own` points only at most 0.92. With job
lengths drawn at random (0.2 to 1 of the epochs), prices by rank beat equal weights by 10 %. Nobody's
finish-time fairness exceeds 3. `python -m benchmarks.rent_replay own` runs another class of knowledge, and
`python -m benchmarks.rent_replay history rent-pure` the policy without the promise of a `min` for every job.

The authors published averages only. So p99 and makespan are held against this repository's `pollux`, whose
averages are within 5 % of theirs, in the same run at load 1.0. Bars: 0.95 and 1.05.
"""

from __future__ import annotations

import csv
import math
import os
import sys
from pathlib import Path

import numpy as np

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.result import RunResult, summarise
from batuta.policies import registry
from batuta.policies.rent import Rent
from benchmarks.measure import shared_data, show, times

LOADS = tuple(os.environ.get("BATUTA_RENT_LOADS", "0.5,1.0,1.5,2.0").split(","))
WORKLOADS = ("1", "2", "3", "4")
BARS = {"history": 0.77, "own": 0.92}
FAIR_BAR, EQUAL_BAR = 3.0, 0.9
TAIL_LOAD, P99_BAR, MAKESPAN_BAR = "1.0", 0.95, 1.05


def main(knowledge: str = "history", policy: str = "rent") -> None:
    folder = shared_data() / "pollux"
    published = _published(folder / "published.csv")
    rows: list[tuple[object, ...]] = []
    by_load: list[float] = []
    tails: dict[str, RunResult] = {}
    for load in LOADS:
        runs = {number: replay(folder, load, number, knowledge, policy=policy) for number in WORKLOADS}
        ratio = sum(map(_jct_s, runs.values())) / sum(published[load, number] for number in runs)
        by_load.append(ratio)
        tails = runs if load == TAIL_LOAD else tails
        rows.extend(_row(load, number, run, published[load, number]) for number, run in runs.items())
    mean = math.exp(sum(map(math.log, by_load)) / len(by_load))
    columns = ("load", "workload", "mean JCT (s)", "to Pollux", "p99 (s)", "makespan (s)", *_MORE)
    show(
        f"{policy}, {knowledge}: 16 nodes × 4 T4, rounds of 60 s, restarts of 30 s",
        columns,
        rows,
        [
            "by load: " + ", ".join(f"{load}: {own:.3f}" for load, own in zip(LOADS, by_load, strict=True)),
            f"geometric mean over the loads: {times(mean, BARS.get(knowledge))}",
        ],
    )
    if tails:
        show_tails(folder, tails, published)
    show_lengths(folder)


_MORE = ("restarts/job", "moves/job", "worst fairness", "CPU (s)")


def _row(load: str, number: str, run: RunResult, published_s: float) -> tuple[object, ...]:
    told, jobs = summarise(run), len(run.jobs)
    worst = max(job.fairness for job in run.jobs)
    return (
        load,
        number,
        f"{_jct_s(run):.0f}",
        times(_jct_s(run) / published_s),
        f"{told['jct_s']['p99']:.0f}",  # type: ignore[index]
        f"{told['makespan_s']:.0f}",
        f"{sum(job.restarts for job in run.jobs) / jobs:.2f}",
        f"{sum(job.migrations for job in run.jobs) / jobs:.2f}",
        times(worst, FAIR_BAR),
        f"{run.cpu_s:.1f}",
    )


def show_tails(folder: Path, runs: dict[str, RunResult], published: dict[tuple[str, str], float]) -> None:
    """The last ones to end, against this repository's `pollux` on the same workloads."""
    rows, ratios = list[tuple[object, ...]](), list[tuple[float, float]]()
    for number, run in runs.items():
        other = replay(folder, TAIL_LOAD, number, "own", policy="pollux")
        ratios.append((_p99_s(run) / _p99_s(other), _makespan_s(run) / _makespan_s(other)))
        as_published = times(_jct_s(other) / published[TAIL_LOAD, number])
        rows.append((number, as_published, *map(times, ratios[-1])))
    p99, makespan = (math.exp(sum(map(math.log, own)) / len(own)) for own in zip(*ratios, strict=True))
    rows.append(("geometric mean", "", times(p99, P99_BAR), times(makespan, MAKESPAN_BAR)))
    columns = ("workload", "pollux here to published", "rent's p99 to it", "rent's makespan to it")
    show(f"the tail at load {TAIL_LOAD}, against `pollux` in this run", columns, rows)


def show_lengths(folder: Path) -> None:
    """Jobs of one application are not equally long: do prices still help, and does nobody starve?"""
    rows = []
    for load in LOADS:
        mine = [replay(folder, load, number, "history", lengths="0.2-1") for number in WORKLOADS]
        usual = registry.BUILT_IN["rent"]
        registry.BUILT_IN["rent"] = (lambda: Rent(by_rank=False), "")
        try:
            even = [replay(folder, load, number, "history", lengths="0.2-1") for number in WORKLOADS]
        finally:
            registry.BUILT_IN["rent"] = usual
        ratio = sum(map(_jct_s, mine)) / sum(map(_jct_s, even))
        worst = max(job.fairness for run in mine for job in run.jobs)
        rows.append((load, times(ratio, EQUAL_BAR), times(worst, FAIR_BAR)))
    show(
        "lengths at random, 0.2 to 1 of the epochs, history",
        ("load", "mean JCT to equal weights", "worst fairness"),
        rows,
    )


def replay(folder: Path, load: str, number: str, knowledge: str, lengths: str = "1", policy: str = "rent") -> RunResult:
    return run_experiment(
        Experiment(
            policy,
            str(folder / "workloads" / f"load-{load}" / f"workload-{number}.csv"),
            "16x4:T4",
            round_s=60.0,
            restart_s=30.0,
            knowledge=knowledge,
            lengths=lengths,
            keep_segments=False,
        )
    )


def _jct_s(run: RunResult) -> float:
    return sum(job.jct_s for job in run.jobs) / len(run.jobs)


def _p99_s(run: RunResult) -> float:
    return float(np.percentile([job.jct_s for job in run.jobs], 99))


def _makespan_s(run: RunResult) -> float:
    return max(job.end_s for job in run.jobs) - min(job.submit_s for job in run.jobs)


def _published(path: Path) -> dict[tuple[str, str], float]:
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] == "pollux"]
    return {(row["load"], row["workload"]): float(row["avg_jct_s"]) for row in rows}


if __name__ == "__main__":
    main(*sys.argv[1:3])
