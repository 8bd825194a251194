"""Run results without a simulator: a builder for hand-made ones, a toy cluster for ones that look real."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batuta.backends.sim.result import JobResult, RunResult, Segment, Timeline
from batuta.core.job import JobState


def make_job(number: int = 0, **changes) -> JobResult:
    """A job that ran for 1000 s after waiting 100 s, unless said otherwise."""
    submit = changes.pop("submit_s", 60.0 * number)
    start = changes.pop("first_start_s", submit + 100.0)
    end = changes.pop("end_s", start + 1000.0)
    size = changes.pop("size", 1)
    values = {
        "id": f"job-{number}",
        "application": "resnet",
        "user": "ada",
        "queue": "default",
        "state": JobState.SUCCEEDED,
        "size": size,
        "submit_s": submit,
        "first_start_s": start,
        "end_s": end,
        "gpu_s": size * (end - start),
        "restarts": 0,
        "migrations": 0,
        "preemptions": 0,
        "lost_gpu_s": 30.0 * size,
        "fairness": 0.9,
    }
    return JobResult(**(values | changes))


def make_run(policy: str = "fifo", jobs: Sequence[JobResult] = (), **changes) -> RunResult:
    """A run of these jobs, each with its GPUs from start to end; the timeline follows from them."""
    jobs = tuple(jobs) or tuple(make_job(k) for k in range(5))
    ended = [job for job in jobs if job.end_s == job.end_s]
    segments = tuple(Segment(job.id, job.first_start_s, job.end_s, job.size, ("n0",)) for job in ended)
    gpus = changes.pop("gpus", max(sum(job.size for job in jobs), 1))
    values: dict[str, Any] = {
        "workload": "sample",
        "cluster": f"{gpus}x1:T4",
        "seed": 0,
        "timeline": make_timeline(jobs, gpus),
        "segments": segments,
        "decide_ms": np.array([0.5, 1.0, 1.5]),
        "step_ms": {"allocate": 0.4, "place": 0.3},
        "cpu_s": 1.0,
        "events": 2 * len(jobs),
    }
    return RunResult(policy=policy, gpus=gpus, jobs=jobs, **(values | changes))


def make_timeline(jobs: Sequence[JobResult], gpus: int) -> Timeline:
    """The cluster over time as these jobs make it; every job keeps its size from start to end."""
    moments = []
    for job in jobs:
        moments.append((job.submit_s, 0, 0, 1))
        if job.first_start_s == job.first_start_s:
            moments.append((job.first_start_s, job.size, 1, -1))
        if job.end_s == job.end_s:
            moments.append((job.end_s, -job.size, -1, 0))
    table = np.array(sorted(moments), dtype=np.float64).reshape(-1, 4)
    time, first = np.unique(table[:, 0], return_index=True)
    sums = np.add.reduceat(table[:, 1:], first, axis=0).cumsum(axis=0).astype(np.int64)
    return Timeline(
        time_s=time,
        used_gpus=sums[:, 0],
        capacity_gpus=np.full(len(time), gpus, dtype=np.int64),
        running=sums[:, 1],
        pending=sums[:, 2],
        fragmentation=np.zeros(len(time)),
    )


# ------------------------------------------------------------------------------------------ a toy cluster

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
RESTART_S = 30.0


@dataclass
class ToyJob:
    id: str
    application: str
    submit_s: float
    size: int
    most: int
    work_s: float
    alpha: float
    left_s: float = 0.0
    gpus: int = 0
    hold_s: float = 0.0
    attained_s: float = 0.0
    start_s: float = math.nan
    end_s: float = math.nan
    gpu_s: float = 0.0
    restarts: int = 0
    preemptions: int = 0
    lost_s: float = 0.0
    since_s: float = 0.0
    segments: list[Segment] = field(default_factory=list)

    def speed(self, gpus: int) -> float:
        return gpus**self.alpha if gpus else 0.0


def toy_workload(jobs: int = 120, seed: int = 0, span_s: float = 8 * 3600) -> list[ToyJob]:
    """Bursty arrivals, long-tailed work, six applications."""
    rng = np.random.default_rng(seed)
    made = []
    hours = np.sort(rng.beta(1.6, 2.2, jobs)) * span_s
    for k in range(jobs):
        kind = int(rng.choice(6, p=(0.12, 0.38, 0.15, 0.05, 0.25, 0.05)))
        work = float(rng.lognormal(math.log((15_000, 8000, 27_000, 200_000, 2500, 80_000)[kind]), 0.7))
        size = int(rng.choice((1, 2, 4, 8), p=(0.45, 0.25, 0.2, 0.1))) if kind not in (3, 5) else 8
        alpha = float(rng.uniform(0.55, 0.85))
        name = f"{APPLICATIONS[kind]}-{k:03d}"
        made.append(ToyJob(name, APPLICATIONS[kind], float(hours[k]), size, 16, work, alpha, left_s=work))
    return made


def _first_fit(order: Sequence[ToyJob], gpus: int, *, strict: bool = False) -> dict[str, int]:
    chosen = {}
    for job in order:
        if job.size <= gpus:
            chosen[job.id] = job.size
            gpus -= job.size
        elif strict:
            break
    return chosen


def _running_first(alive: Sequence[ToyJob]) -> list[ToyJob]:
    return sorted(alive, key=lambda job: (job.gpus == 0, job.submit_s))


def _greedy(alive: Sequence[ToyJob], gpus: int, gain: Callable[[ToyJob, int], float]) -> dict[str, int]:
    chosen = dict.fromkeys((job.id for job in sorted(alive, key=lambda job: job.left_s)[:gpus]), 1)
    free = gpus - len(chosen)
    growing = [job for job in alive if job.id in chosen]
    while free and growing:
        best = max(growing, key=lambda job: (gain(job, chosen[job.id]), job.id))
        step = min(chosen[best.id], free)
        if chosen[best.id] + step > best.most:
            growing.remove(best)
            continue
        chosen[best.id] += step
        free -= step
    return chosen


def _faster(job: ToyJob, gpus: int) -> float:
    return job.left_s * (1 / job.speed(gpus) - 1 / job.speed(2 * gpus)) / gpus


TOY_POLICIES: dict[str, Callable[[Sequence[ToyJob], int], dict[str, int]]] = {
    "fifo": lambda alive, n: _first_fit(_running_first(alive), n, strict=True),
    "fifo-backfill": lambda alive, n: _first_fit(_running_first(alive), n),
    "sjf": lambda alive, n: _first_fit(sorted(alive, key=lambda j: (j.gpus == 0, j.work_s)), n),
    "srtf": lambda alive, n: _first_fit(sorted(alive, key=lambda j: j.left_s / j.speed(j.size)), n),
    "tiresias": lambda alive, n: _first_fit(
        sorted(alive, key=lambda j: (j.attained_s > 6000, j.gpus == 0, j.submit_s)), n
    ),
    "fair-share": lambda alive, n: _greedy(alive, n, lambda j, g: -g),
    "optimus": lambda alive, n: _greedy(alive, n, _faster),
    "afs-l": lambda alive, n: _greedy(alive, n, lambda j, g: (j.speed(2 * g) - j.speed(g)) / g / (300 + j.left_s)),
}


def toy_run(policy: str, jobs: int = 120, seed: int = 0, gpus: int = 64, workload: str = "sample") -> RunResult:
    """One of the toy policies on the toy cluster, from event to event."""
    waiting = toy_workload(jobs, seed)[::-1]
    alive: list[ToyJob] = []
    over: list[ToyJob] = []
    rng = np.random.default_rng(seed + 1)
    rows, now = [], 0.0
    while waiting or alive:
        ends = [now + job.hold_s + job.left_s / job.speed(job.gpus) for job in alive if job.gpus]
        arrival = waiting[-1].submit_s if waiting else math.inf
        then = min([arrival, *ends])
        for job in alive:
            _advance(job, then - now)
        now = then
        for job in [job for job in alive if job.left_s <= 1e-6]:
            _set_size(job, 0, now)
            job.end_s = now
            alive.remove(job)
            over.append(job)
        while waiting and waiting[-1].submit_s <= now:
            alive.append(waiting.pop())
        chosen = TOY_POLICIES[policy](alive, gpus)
        for job in alive:
            _set_size(job, chosen.get(job.id, 0), now)
        used = sum(job.gpus for job in alive)
        running = sum(job.gpus > 0 for job in alive)
        free = gpus - used
        rows.append((now, used, gpus, running, len(alive) - running, min(free % 4 / max(free, 1) + 0.02 * running, 1)))
    over.sort(key=lambda job: job.submit_s)
    columns = list(zip(*rows, strict=True))
    used_gpus, capacity_gpus, running_jobs, pending = (np.array(column, dtype=np.int64) for column in columns[1:5])
    return RunResult(
        policy=policy,
        workload=workload,
        cluster=f"{gpus // 4}x4:T4",
        seed=seed,
        gpus=gpus,
        jobs=tuple(_result(job, len(over), gpus) for job in over),
        timeline=Timeline(np.array(columns[0]), used_gpus, capacity_gpus, running_jobs, pending, np.array(columns[5])),
        segments=tuple(segment for job in over for segment in job.segments),
        decide_ms=rng.lognormal(0.2 + 0.1 * len(policy), 0.4, len(rows)),
        step_ms={"admit": 0.1, "allocate": 0.9, "place": 0.6, "weigh": 0.2, "explain": 0.1},
        cpu_s=0.02 * len(rows),
        events=3 * len(rows),
    )


def _advance(job: ToyJob, span_s: float) -> None:
    if not job.gpus:
        return
    held = min(job.hold_s, span_s)
    job.hold_s -= held
    job.lost_s += held * job.gpus
    job.left_s = max(job.left_s - (span_s - held) * job.speed(job.gpus), 0.0)
    job.gpu_s += span_s * job.gpus
    job.attained_s += span_s * job.gpus


def _set_size(job: ToyJob, gpus: int, now: float) -> None:
    if gpus == job.gpus:
        return
    if job.gpus and now > job.since_s:
        job.segments.append(Segment(job.id, job.since_s, now, job.gpus, ("n0",)))
    if gpus:
        job.restarts += job.start_s == job.start_s
        job.start_s = now if job.start_s != job.start_s else job.start_s
        job.hold_s = RESTART_S
    elif job.left_s > 1e-6:
        job.preemptions += 1
    job.gpus, job.since_s = gpus, now


def _result(job: ToyJob, jobs: int, gpus: int) -> JobResult:
    share = max(gpus / min(jobs, 24), 1.0)
    fair = job.work_s / job.speed(1) / share**job.alpha + RESTART_S
    return make_job(
        id=job.id,
        application=job.application,
        size=job.size,
        submit_s=job.submit_s,
        first_start_s=job.start_s,
        end_s=job.end_s,
        gpu_s=job.gpu_s,
        restarts=job.restarts,
        preemptions=job.preemptions,
        migrations=job.restarts // 3,
        lost_gpu_s=job.lost_s,
        fairness=(job.end_s - job.submit_s) / fair,
    )
