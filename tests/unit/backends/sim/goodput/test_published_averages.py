"""The replay gives the averages that the authors of Pollux published, to the digit."""

import csv
from pathlib import Path

import pytest

from batuta.backends.sim.goodput.application import Application, load_applications
from tests.unit.backends.sim.goodput.reference_replay import read_requests, replay


@pytest.fixture(scope="session")
def applications(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Application]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return load_applications(shared_data / "pollux" / "profiles")


@pytest.fixture(scope="session")
def published(shared_data: Path) -> dict[tuple[str, str, int], float]:
    with (shared_data / "pollux" / "published.csv").open() as file:
        return {
            (row["policy"], row["load"], int(row["workload"])): float(row["avg_jct_s"]) for row in csv.DictReader(file)
        }


@pytest.mark.parametrize("workload", [1, 2, 3, 4])
@pytest.mark.parametrize("load", ["0.5", "1.0", "1.5", "2.0"])
@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
def test_average_completion_time_is_the_published_one(
    policy: str,
    load: str,
    workload: int,
    applications: dict[str, Application],
    published: dict[tuple[str, str, int], float],
    shared_data: Path,
):
    path = shared_data / "pollux" / "workloads" / f"load-{load}" / f"workload-{workload}.csv"
    requests = read_requests(path)
    times = replay(policy, requests, applications)
    assert len(times) == len(requests)
    assert sum(times) / len(times) == published[policy, load, workload]
