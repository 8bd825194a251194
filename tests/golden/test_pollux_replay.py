"""The engine reproduces what the authors of Pollux published for Tiresias and Optimus, to the digit."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.result import summarise

LOADS = ("0.5", "1.0", "1.5", "2.0")
WORKLOADS = ("1", "2", "3", "4")


def published(folder: Path) -> dict[tuple[str, str, str], float]:
    with (folder / "published.csv").open(newline="") as file:
        return {(row["policy"], row["load"], row["workload"]): float(row["avg_jct_s"]) for row in csv.DictReader(file)}


@pytest.mark.data
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
def test_the_published_average_of_each_workload_comes_out_to_the_digit(
    shared_data: Path, policy: str, load: str
) -> None:
    folder = shared_data / "pollux"
    expected = published(folder)
    for number in WORKLOADS:
        run = run_experiment(
            Experiment(
                policy=f"{policy}-replay",
                workload=str(folder / "workloads" / f"load-{load}" / f"workload-{number}.csv"),
                cluster="16x4:T4",
                keep_segments=False,
            )
        )
        assert summarise(run)["jct_s"]["mean"] == pytest.approx(  # type: ignore[index]
            expected[policy, load, number], rel=1e-12
        )
        assert sum(job.jct_s for job in run.jobs) / len(run.jobs) == expected[policy, load, number]


@pytest.mark.data
@pytest.mark.parametrize("knowledge", ["own", "history", "history+totals", "oracle"])
def test_ordinary_policies_finish_the_replay_whatever_they_know(shared_data: Path, knowledge: str) -> None:
    workload = shared_data / "pollux" / "workloads" / "load-0.5" / "workload-1.csv"
    run = run_experiment(
        Experiment(
            policy="afs-l",
            workload=str(workload),
            cluster="16x4:T4",
            round_s=60.0,
            knowledge=knowledge,
            keep_segments=False,
        )
    )
    assert summarise(run)["finished"] == len(run.jobs) == 80
