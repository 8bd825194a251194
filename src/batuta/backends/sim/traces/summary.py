"""What a workload asks for, in a few numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batuta.backends.sim.workload import SimJob, Workload
from batuta.core.cluster import Node
from batuta.core.job import Job

QUANTILES = (("p10", 10), ("p50", 50), ("p90", 90), ("p99", 99))


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """Counts and sums over all jobs. Durations are those at the size that was asked for."""

    name: str
    format: str
    jobs: int
    elastic_jobs: int
    shared_jobs: int
    """Jobs with a part of a GPU."""
    users: int
    applications: int
    first_submit_s: float
    span_s: float
    """From the first submit to the last."""
    jobs_by_gpus: dict[int, int]
    duration_s: dict[str, float] | None
    """None where profiles decide how long jobs run."""
    gpu_hours: float | None
    cluster_gpus: int | None
    load: float | None
    """GPU time asked for over GPU time that the cluster has during the span."""
    impossible_jobs: int | None
    """Jobs that the cluster can never run, not even at their smallest size."""
    notes: tuple[str, ...]


def summarise(workload: Workload, nodes: Sequence[Node] | None = None) -> WorkloadSummary:
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
        jobs_by_gpus=dict(sorted(Counter(job.size for job in jobs).items())),
        duration_s=_quantiles(durations) if known else None,
        gpu_hours=gpu_s / 3600 if known else None,
        cluster_gpus=cluster_gpus,
        load=load,
        impossible_jobs=None if nodes is None else _impossible(jobs, nodes),
        notes=workload.notes,
    )


def _duration_s(own: SimJob) -> float:
    speed = own.curve.at(own.job.size)
    return own.work_s / speed if speed > 0 else math.inf


def _gpus(job: Job) -> float:
    """GPUs at the size asked for; a share counts as its part of the compute, where that is known."""
    if job.share is not None and job.share.compute_percent:
        return job.share.compute_percent / 100
    return float(job.size)


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
    )
