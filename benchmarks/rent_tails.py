"""Rent's p99 and makespan against `pollux`, on the Pollux workloads with their applications shuffled.

Both hang on the last two or three jobs of a workload, so four workloads say little: a change that has nothing
to do with them moves either by 2 %. Here which application arrives when is drawn anew, arrival times and the
mix stay, and twelve workloads are looked at beside the four. Bars: 0.95 and 1.05.
"""

from __future__ import annotations

import csv
import math
import random
import tempfile
from pathlib import Path

import numpy as np

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.result import RunResult
from benchmarks.measure import shared_data, show, times
from benchmarks.rent_replay import MAKESPAN_BAR, P99_BAR, TAIL_LOAD, WORKLOADS

SHUFFLES = 3
CLUSTER, ROUND_S, RESTART_S = "16x4:T4", 60.0, 30.0


def main() -> None:
    folder = shared_data() / "pollux"
    rows: list[tuple[object, ...]] = []
    ratios: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(1, SHUFFLES + 1):
            for number in WORKLOADS:
                path = shuffled(folder, number, seed, Path(scratch))
                mine = _tail(_replay(folder, path, "rent", "history"))
                other = _tail(_replay(folder, path, "pollux", "own"))
                ratios.append((mine[0] / other[0], mine[1] / other[1], mine[2] / other[2]))
                rows.append((f"{number}, shuffle {seed}", *map(times, ratios[-1])))
    mean, p99, makespan = (math.exp(float(np.mean(np.log(own)))) for own in zip(*ratios, strict=True))
    rows.append(("geometric mean", times(mean), times(p99, P99_BAR), times(makespan, MAKESPAN_BAR)))
    columns = ("workload", "mean JCT", "p99", "makespan")
    show(f"rent over `pollux`, load {TAIL_LOAD}, applications shuffled", columns, rows)


def shuffled(folder: Path, number: str, seed: int, scratch: Path) -> Path:
    """The workload with the same arrival times and the same jobs, but others first."""
    with (folder / "workloads" / f"load-{TAIL_LOAD}" / f"workload-{number}.csv").open() as file:
        rows = list(csv.DictReader(file))
    jobs = list(rows)
    random.Random(f"{TAIL_LOAD}-{number}-{seed}").shuffle(jobs)
    path = scratch / f"workload-{number}-{seed}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for i, (at, job) in enumerate(zip(rows, jobs, strict=True)):
            writer.writerow({**job, "name": f"{job['application']}-{i}", "time": at["time"]})
    return path


def _replay(folder: Path, workload: Path, policy: str, knowledge: str) -> RunResult:
    return run_experiment(
        Experiment(
            policy,
            str(workload),
            CLUSTER,
            round_s=ROUND_S,
            restart_s=RESTART_S,
            profiles=str(folder / "profiles"),
            knowledge=knowledge,
            keep_segments=False,
        )
    )


def _tail(run: RunResult) -> tuple[float, float, float]:
    """Mean and p99 of the completion times, and the makespan."""
    jct_s = [job.jct_s for job in run.jobs]
    makespan_s = max(job.end_s for job in run.jobs) - min(job.submit_s for job in run.jobs)
    return float(np.mean(jct_s)), float(np.percentile(jct_s, 99)), makespan_s


if __name__ == "__main__":
    main()
