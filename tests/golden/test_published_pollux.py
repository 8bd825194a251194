"""`pollux` comes to the averages that its authors published; `sia` runs beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.result import RunResult
from tests.golden.test_pollux_replay import published

LOAD, WORKLOAD = "0.5", "3"
"""The shortest of the sixteen; `benchmarks/published_policies.py` runs all of them."""


def replay(folder: Path, policy: str) -> RunResult:
    path = folder / "workloads" / f"load-{LOAD}" / f"workload-{WORKLOAD}.csv"
    return run_experiment(Experiment(policy, str(path), "16x4:T4", keep_segments=False))


def mean_jct_s(run: RunResult) -> float:
    return sum(job.jct_s for job in run.jobs) / len(run.jobs)


@pytest.mark.data
def test_pollux_is_within_five_per_cent_of_its_published_average(shared_data: Path) -> None:
    folder = shared_data / "pollux"
    assert mean_jct_s(replay(folder, "pollux")) == pytest.approx(published(folder)["pollux", LOAD, WORKLOAD], rel=0.05)


@pytest.mark.data
def test_sia_finishes_the_same_jobs_in_about_the_same_time(shared_data: Path) -> None:
    folder = shared_data / "pollux"
    run = replay(folder, "sia")
    assert all(job.end_s > 0 for job in run.jobs)
    assert mean_jct_s(run) == pytest.approx(published(folder)["pollux", LOAD, WORKLOAD], rel=0.2)
