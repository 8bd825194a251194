"""Rent on Philly, ElasticFlow and Gavel traces: mean completion time against the best of the eight.

Bars: never worse by more than 2 %, and nobody's finish-time fairness above 3. ElasticFlow and Gavel run at
their full length on clusters of about the load that they were recorded with (0.8 to 0.9 of the GPUs are asked
for, unless their widest job needs more), Philly as far as its number says.
BATUTA_TRACES (as `gavel,cluster01`) picks cases by a part of their name, BATUTA_TRACES_JOBS cuts each off.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.result import RunResult
from benchmarks.measure import shared_data, show, times

FIXED, AMDAHL = ("rigid", "linear"), ("0.5:2", "amdahl:0.05")
MEASURED = ("0:4", "elasticflow:T4")
OTHERS = ("fifo", "srjf", "elastic-fifo", "elastic-srjf", "tiresias", "elastic-tiresias", "ffdl", "afs-l")
JCT_BAR, FAIR_BAR = 1.02, 3.0


class Case(NamedTuple):
    trace: str
    cluster: str
    sizes: tuple[str, str]
    """How elastic jobs are made, and how they scale."""
    jobs: int | None = None
    """Only the first so many."""


CASES = (
    Case("gavel/max_min_fairness.trace", "8x4:V100", FIXED),
    Case("gavel/max_min_fairness.trace", "6x4:V100", AMDAHL),
    Case("gavel/max_min_fairness.trace", "4x4:V100,4x4:P100,4x4:K80", FIXED),
    Case("gavel/minimize_makespan.trace", "8x4:V100", FIXED),
    Case("gavel/minimize_makespan.trace", "6x4:V100", AMDAHL),
    Case("gavel/minimize_makespan.trace", "4x4:V100,4x4:P100,4x4:K80", FIXED),
    Case("elasticflow/cluster01.csv", "8x8", FIXED),
    Case("elasticflow/cluster01.csv", "4x8", MEASURED),
    Case("elasticflow/cluster05.csv", "2x8", FIXED),
    Case("elasticflow/cluster05.csv", "2x8", AMDAHL),
    Case("elasticflow/cluster03.csv", "20x8", FIXED),
    Case("elasticflow/cluster03.csv", "20x8", AMDAHL),
    Case("elasticflow/cluster02.csv", "12x8", FIXED),
    Case("elasticflow/cluster02.csv", "12x8", MEASURED),
    Case("elasticflow/cluster04.csv", "72x8", FIXED),
    Case("elasticflow/cluster04.csv", "72x8", AMDAHL),
    Case("philly/jobs.csv", "8x8", FIXED, jobs=1000),
    Case("philly/jobs.csv", "8x8", AMDAHL, jobs=1000),
    Case("philly/jobs.csv", "56x8", FIXED, jobs=10_000),
    Case("philly/jobs.csv", "56x8", AMDAHL, jobs=10_000),
)


def main() -> None:
    rows = []
    wanted = os.environ.get("BATUTA_TRACES", "").split(",")
    most = os.environ.get("BATUTA_TRACES_JOBS")
    for case in CASES:
        if not any(part in case.trace for part in wanted):
            continue
        if most is not None:
            case = case._replace(jobs=min(int(most), case.jobs or int(most)))
        rows.append(_row(case))
        print("  " + "  ".join(rows[-1]), flush=True)  # a case may take minutes
    columns = (
        *("trace, cluster, sizes", "jobs", "mean JCT (s)", "best of the others", "to it"),
        *("worst fairness", "above 3", "restarts/job"),
    )
    show("rent on traces", columns, rows)


def _row(case: Case) -> tuple[str, ...]:
    means = {policy: _jct_s(_simulate(policy, case)) for policy in OTHERS}
    best = min(means, key=means.__getitem__)
    run = _simulate("rent", case)
    fairness = [job.fairness for job in run.jobs]
    return (
        f"{case.trace}, {case.cluster}, {case.sizes[0]}",
        f"{len(run.jobs):,}",
        f"{_jct_s(run):,.0f}",
        best,
        times(_jct_s(run) / means[best], JCT_BAR),
        times(max(fairness), FAIR_BAR),
        str(sum(own > FAIR_BAR for own in fairness)),
        f"{sum(job.restarts for job in run.jobs) / len(run.jobs):.2f}",
    )


def _simulate(policy: str, case: Case) -> RunResult:
    elastic, speed = case.sizes
    return run_experiment(
        Experiment(
            policy,
            str(shared_data() / case.trace),
            case.cluster,
            elastic=elastic,
            speed=speed,
            limit=case.jobs,
            keep_segments=False,
        )
    )


def _jct_s(run: RunResult) -> float:
    return sum(job.jct_s for job in run.jobs) / len(run.jobs)


if __name__ == "__main__":
    main()
