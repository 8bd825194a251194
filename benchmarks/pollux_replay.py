"""Published replays of 160 jobs under Tiresias and Optimus (Pollux, load 1.0), against a stand-alone loop.

Both use the same goodput model; the loop (`tests/unit/backends/sim/goodput/reference_replay.py`) has
nothing of the engine in it: no World, no events, no reasons, no recorder. Loading is not counted,
profiles come from the cache. Both must give the published average. Target: about a second of CPU time.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.goodput.application import load_applications
from batuta.backends.sim.result import RunResult
from benchmarks.measure import cpu_s, shared_data, show, times
from tests.unit.backends.sim.goodput.reference_replay import read_requests, replay

LOAD, WORKLOADS, REPEAT = "1.0", (1, 2), 3


def main() -> None:
    folder = shared_data() / "pollux"
    published = _published(folder / "published.csv")
    rows = []
    for policy in ("tiresias", "optimus"):
        for number in WORKLOADS:
            path = folder / "workloads" / f"load-{LOAD}" / f"workload-{number}.csv"
            ours = [_ours(policy, path) for _ in range(REPEAT)]
            loop = [_loop(policy, path, folder / "profiles") for _ in range(REPEAT)]
            jct_s = sum(job.jct_s for job in ours[0].jobs) / len(ours[0].jobs)
            our_s, loop_s = (
                statistics.median(run.cpu_s for run in ours),
                statistics.median(s for s, _ in loop),
            )
            exact = jct_s == loop[0][1] == published[policy, number]
            rows.append(
                (
                    f"{policy}-replay",
                    f"workload-{number}",
                    f"{jct_s:.1f}",
                    "to the digit" if exact else f"{published[policy, number]:.1f} !",
                    len(ours[0].decide_ms),
                    f"{our_s:.2f}",
                    f"{loop_s:.2f}",
                    times(our_s / loop_s),
                )
            )
    columns = ("policy", "workload", "mean JCT (s)", "published", "rounds", "CPU (s)", "loop (s)", "ratio")
    show(f"160 jobs on 16 nodes × 4 T4, median of {REPEAT}", columns, rows)


def _ours(policy: str, path: Path) -> RunResult:
    experiment = Experiment(f"{policy}-replay", str(path), "16x4:T4", round_s=60.0, restart_s=30.0, keep_segments=False)
    return run_experiment(experiment)


def _loop(policy: str, path: Path, profiles: Path) -> tuple[float, float]:
    """CPU time and mean completion time of the loop."""
    applications = load_applications(profiles)
    requests, found = read_requests(path), list[float]()
    spent_s = cpu_s(lambda: found.extend(replay(policy, requests, applications)))
    return spent_s, sum(found) / len(found)


def _published(path: Path) -> dict[tuple[str, int], float]:
    with path.open() as file:
        return {
            (row["policy"], int(row["workload"])): float(row["avg_jct_s"])
            for row in csv.DictReader(file)
            if row["load"] == LOAD
        }


if __name__ == "__main__":
    main()
