"""Rent on Philly, ElasticFlow and Gavel traces: mean completion time against the best of the eight.

Bars: never worse by more than 2 %, and nobody's finish-time fairness above 3. The two policies that look
again every minute take hours on traces of months and are left out.
"""

from __future__ import annotations

from batuta.backends.sim.experiment import Experiment
from batuta.backends.sim.result import RunResult
from batuta.bootstrap import run_experiment
from benchmarks.measure import shared_data, show, times

CASES = (
    ("philly/jobs.csv", "8x8", "rigid", "linear", 600),
    ("philly/jobs.csv", "8x8", "0.5:2", "amdahl:0.05", 600),
    ("elasticflow/cluster01.csv", "4x8", "rigid", "linear", 400),
    ("elasticflow/cluster01.csv", "4x8", "0:4", "elasticflow:T4", 400),
    ("elasticflow/cluster05.csv", "8x8", "0.5:2", "amdahl:0.05", 600),
    ("gavel/max_min_fairness.trace", "8x4:V100", "rigid", "linear", 300),
    ("gavel/max_min_fairness.trace", "6x4:V100", "0.5:2", "amdahl:0.05", 300),
    ("gavel/max_min_fairness.trace", "4x4:V100,4x4:P100,4x4:K80", "rigid", "linear", 300),
)
"""Trace, cluster, sizes, speed model, and how many of its jobs."""
OTHERS = ("fifo", "srjf", "elastic-fifo", "elastic-srjf", "ffdl", "afs-l")
JCT_BAR, FAIR_BAR = 1.02, 3.0


def main() -> None:
    folder, rows = shared_data(), []
    for trace, cluster, elastic, speed, limit in CASES:

        def simulate(
            policy: str, case: tuple[str, str, str, str, int] = (trace, cluster, elastic, speed, limit)
        ) -> RunResult:
            path, nodes, sizes, curve, jobs = case
            return run_experiment(
                Experiment(
                    policy,
                    str(folder / path),
                    nodes,
                    elastic=sizes,
                    speed=curve,
                    limit=jobs,
                    keep_segments=False,
                )
            )

        means = {policy: _jct_s(simulate(policy)) for policy in OTHERS}
        best = min(means, key=means.__getitem__)
        run = simulate("rent")
        worst = max(job.fairness for job in run.jobs)
        rows.append(
            (
                f"{trace}, {cluster}, {elastic}",
                f"{_jct_s(run):,.0f}",
                best,
                times(_jct_s(run) / means[best], JCT_BAR),
                times(worst, FAIR_BAR),
                f"{sum(job.restarts for job in run.jobs) / len(run.jobs):.2f}",
            )
        )
    columns = (
        "trace, cluster, sizes",
        "mean JCT (s)",
        "best other",
        "to it",
        "worst fairness",
        "restarts/job",
    )
    show("rent on traces", columns, rows)


def _jct_s(run: RunResult) -> float:
    return sum(job.jct_s for job in run.jobs) / len(run.jobs)


if __name__ == "__main__":
    main()
