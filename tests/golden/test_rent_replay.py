"""What rent makes of two Pollux replays; another machine may round otherwise, a regression is larger."""

from pathlib import Path

import pytest

from batuta.backends.sim.experiment import Experiment, run_experiment

PUBLISHED_POLLUX_S = {"1": 1059.5125, "3": 1310.525}


@pytest.mark.data
@pytest.mark.parametrize(("number", "knowledge", "mean_s"), [("1", "history", 888.2125), ("3", "oracle", 1094.175)])
def test_the_mean_completion_time_is_what_it_was(shared_data: Path, number: str, knowledge: str, mean_s: float) -> None:
    workload = shared_data / "pollux" / "workloads" / "load-0.5" / f"workload-{number}.csv"
    run = run_experiment(Experiment("rent", str(workload), "16x4:T4", knowledge=knowledge, keep_segments=False))
    found_s = sum(job.jct_s for job in run.jobs) / len(run.jobs)
    assert found_s == pytest.approx(mean_s, rel=0.02)
    assert found_s < 0.86 * PUBLISHED_POLLUX_S[number]
    assert max(job.fairness for job in run.jobs) < 3


@pytest.mark.data
def test_nobody_starves_when_jobs_are_of_unequal_length(shared_data: Path) -> None:
    workload = shared_data / "pollux" / "workloads" / "load-0.5" / "workload-2.csv"
    experiment = Experiment("rent", str(workload), "16x4:T4", lengths="0.2-1", keep_segments=False)
    run = run_experiment(experiment)
    assert {job.state.name for job in run.jobs} == {"SUCCEEDED"}
    assert max(job.fairness for job in run.jobs) < 3
