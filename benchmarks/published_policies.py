"""Policies of papers: `pollux` against its authors' averages, `sia` beside it, and both on three GPU types.

Bars: the average of each load within 5 % of what the authors of Pollux published, a decision below a tenth of
a round (6 s). Then the Gavel traces on K80, P100 and V100: every policy against the best of the eight, which
see one type at a time. Several minutes.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.result import summarise
from benchmarks.measure import shared_data, show

LOADS, WORKLOADS, ROUND_S = ("0.5", "1.0", "1.5", "2.0"), ("1", "2", "3", "4"), 60.0
WITHIN, PART_OF_ROUND = 0.05, 0.1
THE_EIGHT = (
    *("fifo", "srjf", "tiresias", "elastic-fifo", "elastic-srjf"),
    *("elastic-tiresias", "ffdl", "afs-l"),
)
OF_PAPERS = ("optimus", "themis", "pollux", "gavel", "sia", "rent")
TRACES = ("max_min_fairness", "minimize_makespan")
THREE_TYPES = "4x4:V100,4x4:P100,4x4:K80"


def main() -> None:
    folder = shared_data()
    _replays(folder / "pollux")
    for trace in TRACES:
        _three_types(folder / "gavel" / f"{trace}.trace")


def _replays(folder: Path) -> None:
    published = _published(folder / "published.csv")
    rows, by_load = [], []
    for load in LOADS:
        ratios = []
        for number in WORKLOADS:
            path = folder / "workloads" / f"load-{load}" / f"workload-{number}.csv"
            pollux, sia = _replay("pollux", path), _replay("sia", path)
            ratios.append(pollux["jct_s"]["mean"] / published[load, number])
            slowest_s = max(pollux["decide_ms"]["p99"], sia["decide_ms"]["p99"]) / 1000
            rows.append(
                (
                    *(load, number, f"{pollux['jct_s']['mean']:.0f}", f"{published[load, number]:.0f}"),
                    f"{ratios[-1]:.3f}",
                    f"{pollux['restarts'] / pollux['jobs']:.1f}",
                    f"{sia['jct_s']['mean']:.0f}",
                    f"{sia['jct_s']['mean'] / pollux['jct_s']['mean']:.3f}",
                    f"{sia['restarts'] / sia['jobs']:.1f}",
                    f"{1000 * slowest_s:.0f}{' !' if slowest_s > PART_OF_ROUND * ROUND_S else ''}",
                )
            )
        mean = statistics.geometric_mean(ratios)
        by_load.append((load, f"{mean:.3f}{' !' if abs(mean - 1) > WITHIN else ''}"))
    columns = (
        *("load", "workload", "pollux (s)", "published", "ratio", "restarts"),
        *("sia (s)", "to pollux", "restarts", "p99 of decide (ms)"),
    )
    show("Mean JCT on 16 nodes × 4 T4, rounds of 60 s, restarts of 30 s", columns, rows)
    show("pollux against its authors' averages, geometric mean by load", ("load", "ratio"), by_load)


def _replay(policy: str, path: Path) -> dict[str, Any]:
    return _run(Experiment(policy, str(path), "16x4:T4", round_s=ROUND_S, restart_s=30.0, keep_segments=False))


def _three_types(path: Path) -> None:
    found = {
        policy: _run(Experiment(policy, str(path), THREE_TYPES, keep_segments=False))
        for policy in (*THE_EIGHT, *OF_PAPERS)
    }
    best_s = min(found[policy]["jct_s"]["mean"] for policy in THE_EIGHT)
    rows = [
        (
            policy,
            f"{own['jct_s']['mean']:.0f}",
            f"{own['jct_s']['mean'] / best_s:.3f}",
            f"{own['jct_s']['p99']:.0f}",
            f"{own['makespan_s']:.0f}",
            f"{own['finish_time_fairness']['max']:.1f}",
            f"{own['restarts'] / own['jobs']:.1f}",
            f"{own['decide_ms']['mean']:.1f}",
        )
        for policy, own in found.items()
    ]
    columns = (
        *("policy", "mean JCT (s)", "to best of eight", "p99 (s)", "makespan (s)"),
        *("worst ρ", "restarts", "decide (ms)"),
    )
    show(f"{path.stem} on {THREE_TYPES}, by events", columns, rows)


def _run(experiment: Experiment) -> dict[str, Any]:
    found: dict[str, Any] = summarise(run_experiment(experiment))
    if found["finished"] != found["jobs"]:
        raise AssertionError(f"{experiment.policy}: {found['finished']} of {found['jobs']} jobs came to an end")
    return found


def _published(path: Path) -> dict[tuple[str, str], float]:
    with path.open(newline="") as file:
        return {
            (row["load"], row["workload"]): float(row["avg_jct_s"])
            for row in csv.DictReader(file)
            if row["policy"] == "pollux"
        }


if __name__ == "__main__":
    main()
