"""Workloads of the goodput replay: which application was submitted when, with its rigid request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from batuta.backends.sim.goodput import csv_table
from batuta.backends.sim.goodput.profiles import AppProfile
from batuta.spec.problem import InputError, Problem, did_you_mean


class WorkloadError(InputError):
    """All faults of a workload file, each with its line."""


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """One line of a workload."""

    name: str
    submit_s: float
    """Whole seconds stay whole numbers."""
    application: str
    num_replicas: int
    batch_size: int


COLUMNS = {
    "name": csv_table.text,
    "time": csv_table.at_least_zero,
    "application": csv_table.text,
    "num_replicas": csv_table.count,
    "batch_size": csv_table.count,
}


def read_workload(path: Path, profiles: Mapping[str, AppProfile] | None = None) -> tuple[ReplayJob, ...]:
    """Jobs in submit order, ties in the order of the file; raises WorkloadError with all faults at once.

    With profiles, a request that no profile can run is a fault as well.
    """
    problems: list[Problem] = []
    rows = csv_table.read_rows(path, COLUMNS, problems)
    seen: dict[str, int] = {}
    requests = []
    for line, row in rows:
        first = seen.setdefault(row["name"], line)
        if first != line:
            problems.append(Problem(f"job {row['name']} is also on line {first}", str(path), line))
        request = ReplayJob(
            row["name"],
            int(row["time"]) if row["time"].is_integer() else row["time"],
            row["application"],
            row["num_replicas"],
            row["batch_size"],
        )
        if profiles is not None:
            problems.extend(
                Problem(message, str(path), line, fix=fix) for message, fix in _misfits(request, profiles)
            )
        requests.append(request)
    if problems:
        raise WorkloadError(sorted(problems, key=lambda problem: problem.line))
    return tuple(sorted(requests, key=lambda request: request.submit_s))


def _misfits(request: ReplayJob, profiles: Mapping[str, AppProfile]) -> list[tuple[str, str]]:
    profile = profiles.get(request.application)
    if profile is None:
        return [
            (
                f"no profile for application {request.application}",
                did_you_mean(request.application, list(profiles)),
            )
        ]
    found = []
    if not profile.init_batch <= request.batch_size <= profile.max_batch:
        limits = f"{profile.init_batch} to {profile.max_batch} were validated"
        found.append((f"batch_size {request.batch_size} cannot be judged", limits))
    if request.num_replicas > profile.max_gpus(request.batch_size):
        limits = f"at most {profile.max_gpus(request.batch_size)}"
        found.append((f"num_replicas {request.num_replicas} leaves too few samples for each replica", limits))
    return found
