"""What a simulation runs: jobs with the truth that the scheduler does not see, and experiments."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from batuta.core.cluster import Node
from batuta.core.curve import SpeedCurve
from batuta.core.job import Job


@dataclass(frozen=True, slots=True)
class GoodputRequest:
    """A job of the Pollux model: what it trains, and the rigid request that came with it."""

    application: str
    num_replicas: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job as the scheduler knows it, and as it really is."""

    job: Job
    work_s: float  # true seconds of work on one GPU of the reference type
    curve: SpeedCurve  # true speed by GPU count; `job.curve` is the scheduler's estimate
    goodput: GoodputRequest | None = None  # set for the goodput replay, which then ignores `work_s` and `curve`


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in submit order (ties in the order of the source)."""

    name: str
    format: str
    jobs: tuple[SimJob, ...]
    notes: tuple[str, ...] = ()  # what the reader left out or assumed, for users to read


def resample(workload: Workload, seed: int) -> Workload:
    """Seed 0 is the workload itself; any other draws its jobs anew, with replacement, for the same arrivals.

    Several seeds show how much a comparison depends on which jobs run together.
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


QUANTILES = (("p10", 10), ("p50", 50), ("p90", 90), ("p99", 99))


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """Counts and sums over all jobs. Durations are at the requested size."""

    name: str
    format: str
    jobs: int
    elastic_jobs: int
    shared_jobs: int
    users: int
    applications: int
    first_submit_s: float
    span_s: float
    jobs_by_gpus: dict[int, int]
    duration_s: dict[str, float] | None  # None where profiles decide how long jobs run
    gpu_hours: float | None
    cluster_gpus: int | None
    load: float | None  # requested GPU time over the GPU time of the cluster during the span
    impossible_jobs: int | None  # jobs that the cluster can never run, not even at their smallest size
    notes: tuple[str, ...]


def summarise_workload(workload: Workload, nodes: Sequence[Node] | None = None) -> WorkloadSummary:
    jobs = [own.job for own in workload.jobs]
    submits = [job.submit_s for job in jobs]
    span_s = max(submits) - min(submits)
    known = not any(own.goodput for own in workload.jobs)
    durations = np.array([_duration_s(own) for own in workload.jobs])
    gpus = np.array([_gpus(job) for job in jobs])
    gpu_s = float(durations @ gpus)
    cluster_gpus = None if nodes is None else sum(node.gpus for node in nodes)
    load = gpu_s / (cluster_gpus * span_s) if known and cluster_gpus and span_s > 0 else None
    return WorkloadSummary(
        name=workload.name,
        format=workload.format,
        jobs=len(jobs),
        elastic_jobs=sum(job.min < job.max for job in jobs),
        shared_jobs=sum(job.share is not None for job in jobs),
        users=len({job.user for job in jobs if job.user}),
        applications=len({job.application for job in jobs if job.application}),
        first_submit_s=min(submits),
        span_s=span_s,
        jobs_by_gpus=dict(sorted(Counter(job.gpus for job in jobs).items())),
        duration_s=_quantiles(durations) if known else None,
        gpu_hours=gpu_s / 3600 if known else None,
        cluster_gpus=cluster_gpus,
        load=load,
        impossible_jobs=None if nodes is None else _impossible(jobs, nodes),
        notes=workload.notes,
    )


def _duration_s(own: SimJob) -> float:
    speed = 1.0 if own.job.cpu_only else own.curve.at(own.job.size)
    return own.work_s / speed if speed > 0 else math.inf


def _gpus(job: Job) -> float:
    """GPUs at the requested size; a share counts as its part of the compute, where that is known."""
    if job.share is not None and job.share.compute_percent:
        return job.share.compute_percent / 100
    return float(job.gpus)


def _quantiles(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, float]:
    found = {"mean": float(values.mean()), "min": float(values.min())}
    for name, percent in QUANTILES:
        found[name] = float(np.percentile(values, percent))
    return found | {"max": float(values.max())}


def _impossible(jobs: Sequence[Job], nodes: Sequence[Node]) -> int:
    """Only by GPU count and type; a placement may find further reasons."""
    by_type: Counter[str] = Counter()
    for node in nodes:
        by_type[node.gpu_type] += node.gpus
    most = max(by_type.values())
    return sum(
        job.min > (max((by_type[name] for name, _ in job.gpu_types), default=0) if job.gpu_types else most)
        for job in jobs
        if not job.cpu_only
    )
