"""The result of a simulation: per job, over time, and in sum."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.cluster import NodeName
from batuta.core.job import JobId, JobState


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job. Times are NaN for what did not happen."""

    id: JobId
    application: str
    user: str
    queue: str
    state: JobState
    size: int
    submit_s: float
    first_start_s: float
    end_s: float
    gpu_s: float
    restarts: int
    migrations: int
    preemptions: int
    lost_gpu_s: float  # GPU-seconds held without keeping progress: restarts, and work after the last checkpoint
    fairness: float  # finish-time fairness ρ: its JCT over the time that a fair share of the cluster would have taken

    @property
    def jct_s(self) -> float:
        return self.end_s - self.submit_s

    @property
    def wait_s(self) -> float:
        return self.first_start_s - self.submit_s


@dataclass(frozen=True, slots=True)
class Segment:
    """A period in which a job had the same GPUs."""

    job: JobId
    start_s: float
    end_s: float
    gpus: int
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The cluster over time, a step function: row k holds from time_s[k] until time_s[k + 1]."""

    time_s: FloatArray
    used_gpus: IntArray
    capacity_gpus: IntArray
    running: IntArray
    pending: IntArray
    fragmentation: FloatArray  # share of the free GPUs that lie on partly used nodes; 0 where none is free


@dataclass(frozen=True, slots=True)
class RunResult:
    """One policy on one workload on one cluster."""

    policy: str
    workload: str
    cluster: str
    seed: int
    gpus: int
    jobs: tuple[JobResult, ...]
    timeline: Timeline
    segments: tuple[Segment, ...]
    decide_ms: FloatArray
    step_ms: dict[str, float]  # mean time of each step of a cycle
    cpu_s: float
    events: int
    complete: bool = True  # False when the run was stopped before all jobs were over
    notes: tuple[str, ...] = field(default=())


def spread(values: FloatArray) -> dict[str, float]:
    """Mean, quantiles and maximum; zeros when there is nothing."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"), 0.0)
    p50, p90, p99 = (float(q) for q in np.percentile(values, (50, 90, 99)))
    return {"mean": float(np.mean(values)), "p50": p50, "p90": p90, "p99": p99, "max": float(np.max(values))}


def summarise(run: RunResult) -> dict[str, object]:
    """The object that `batuta simulate -o json` prints."""
    over = [job for job in run.jobs if job.state is JobState.SUCCEEDED]
    ended = [job.end_s for job in over]
    begun = np.array([job.wait_s for job in run.jobs if job.first_start_s == job.first_start_s])
    rho = np.array([job.fairness for job in over if job.fairness == job.fairness])
    line = run.timeline
    lengths = np.diff(line.time_s)
    offered = float((line.capacity_gpus[:-1] * lengths).sum())
    used = float((line.used_gpus[:-1] * lengths).sum())
    span = float(lengths.sum())
    return {
        "policy": run.policy,
        "workload": run.workload,
        "cluster": run.cluster,
        "seed": run.seed,
        "gpus": run.gpus,
        "jobs": len(run.jobs),
        "finished": len(over),
        "complete": run.complete,
        "jct_s": spread(np.array([job.jct_s for job in over])),
        "makespan_s": max(ended) - min(job.submit_s for job in run.jobs) if ended else 0.0,
        "wait_s": spread(begun),
        "finish_time_fairness": {
            "mean": float(rho.mean()) if rho.size else 0.0,
            "max": float(rho.max()) if rho.size else 0.0,
            "above_one": float((rho > 1).mean()) if rho.size else 0.0,
        },
        "gpu_utilisation": used / offered if offered else 0.0,
        "fragmentation": float((line.fragmentation[:-1] * lengths).sum()) / span if span else 0.0,
        "restarts": sum(job.restarts for job in run.jobs),
        "migrations": sum(job.migrations for job in run.jobs),
        "preemptions": sum(job.preemptions for job in run.jobs),
        "lost_gpu_s": sum(job.lost_gpu_s for job in run.jobs),
        "decide_ms": {
            "mean": float(run.decide_ms.mean()) if len(run.decide_ms) else 0.0,
            "p99": float(np.percentile(run.decide_ms, 99)) if len(run.decide_ms) else 0.0,
            "cycles": len(run.decide_ms),
            "steps": run.step_ms,
        },
        "cpu_s": run.cpu_s,
        "events": run.events,
        "notes": list(run.notes),
    }
