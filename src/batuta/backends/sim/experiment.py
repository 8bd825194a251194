"""One run described by names and numbers: small enough to be sent to another process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from batuta.backends.sim.workload import SimJob, Workload

KNOWLEDGE = ("own", "history", "history+totals", "oracle")


@dataclass(frozen=True, slots=True)
class Experiment:
    """What to simulate. Everything that changes the outcome is here."""

    policy: str
    workload: str
    cluster: str
    format: str | None = None
    elastic: str = "rigid"
    speed: str = "linear"
    limit: int | None = None
    """Only the first so many jobs."""
    seed: int = 0
    round_s: float | None = None
    min_interval_s: float = 0.0
    restart_s: float | None = None
    weigh: bool = True
    profiles: str | None = None
    knowledge: str = "history"
    lengths: str = "1"
    """Shares of their epochs that jobs of a goodput replay run for, as `0.2-1`."""
    failures: str | None = None
    queues: str | None = None
    """A file of quota; None: jobs have as much as there is."""
    keep_segments: bool = True
    locality: float = 1.0
    """Factor on the speed of a job whose GPUs lie on more than one node."""


def resample(workload: Workload, seed: int) -> Workload:
    """Seed 0 is the workload itself; any other draws its jobs anew, with replacement, for the same arrivals.

    So several seeds show how much a comparison depends on which jobs happened to meet.
    """
    if seed == 0 or not workload.jobs:
        return workload
    drawn = np.random.default_rng(seed).integers(len(workload.jobs), size=len(workload.jobs))
    jobs = []
    for place, pick in enumerate(drawn.tolist()):
        at, source = workload.jobs[place].job, workload.jobs[pick]
        job = replace(source.job, id=at.id, submit_s=at.submit_s, sequence=at.sequence)
        jobs.append(replace(source, job=job))
    return replace(workload, jobs=tuple(jobs))


def first_jobs(workload: Workload, limit: int | None) -> Workload:
    return workload if limit is None else replace(workload, jobs=workload.jobs[:limit])


def with_locality(jobs: tuple[SimJob, ...], factor: float) -> tuple[SimJob, ...]:
    """The same jobs, slowed down by a factor when they span nodes."""
    if factor == 1.0:
        return jobs
    return tuple(
        replace(
            sim,
            curve=replace(sim.curve, across_nodes=factor),
            job=replace(sim.job, curve=replace(sim.job.curve, across_nodes=factor)),
        )
        for sim in jobs
    )


def profiles_beside(workload: str) -> Path | None:
    """The nearest `profiles` folder beside or above a workload file."""
    for folder in Path(workload).resolve().parents:
        if (folder / "profiles").is_dir():
            return folder / "profiles"
    return None
