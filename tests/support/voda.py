"""The four runs of Voda: what its scheduler logged, and how much work each job turns out to have been."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from batuta.backends.sim.workload import SimJob
from batuta.core.cluster import Node
from batuta.core.curve import SpeedCurve
from batuta.core.job import Job

CURVES = {
    "vgg16": SpeedCurve.of((0, 1, 1.785, 2.5, 3.125)),
    "resnet50": SpeedCurve.of((0, 1, 1.857, 2.6, 3.25)),
    "inceptionv3": SpeedCurve.of((0, 1, 1.842, 2.692, 3.5)),
    "transformer": SpeedCurve.of((0, 1, 1.657, 2.148, 2.521)),
}
"""Measured speed-ups on 1–4 GPUs, from the README of the data."""
MODELS = tuple(CURVES)
MIN, SIZE, MAX = 1, 2, 4
LEAST_INTERVAL_S = 120.0
"""Voda reschedules at most once in this time."""


class Entry(NamedTuple):
    """One line of the log."""

    time_s: float
    kind: str
    """`create`, `complete` or `alloc`."""
    job: str
    """Empty for `alloc`."""
    gpus: dict[str, int]
    """`alloc`: what every job that is created and not complete has from now on."""
    elapsed_s: float
    """`complete`: the time since creation by the scheduler's own watch, which ticks every 5 s."""


@dataclass(frozen=True)
class VodaRun:
    policy: str
    nodes: tuple[Node, ...]
    entries: tuple[Entry, ...]

    @property
    def created_s(self) -> dict[str, float]:
        """By job, in the order of creation, which is the same workload in every run."""
        return {entry.job: entry.time_s for entry in self.entries if entry.kind == "create"}

    @property
    def completed_s(self) -> dict[str, float]:
        return {entry.job: entry.time_s for entry in self.entries if entry.kind == "complete"}

    @property
    def mean_jct_s(self) -> float:
        ended = self.completed_s
        return sum(ended[job] - begun for job, begun in self.created_s.items()) / len(ended)

    @property
    def makespan_s(self) -> float:
        return max(self.completed_s.values()) - min(self.created_s.values())


def read_runs(folder: Path) -> dict[str, VodaRun]:
    """The runs by policy."""
    found = {}
    for run in json.loads((folder / "voda" / "runs.json").read_text()):
        nodes = tuple(Node(name, gpus) for name, gpus in run["nodes"].items())
        found[run["policy"]] = VodaRun(run["policy"], nodes, tuple(map(_entry, run["events"])))
    return found


def _entry(event: list) -> Entry:
    time_s, kind, subject, *more = event
    if kind == "alloc":
        # The number behind it counts the GPUs that are left; an `alloc` without jobs ends the log.
        assert sum(subject.values()) + more[0] == 12
        return Entry(time_s, kind, "", subject, 0.0)
    return Entry(time_s, kind, subject, {}, more[0]["elaspedTotalSeconds"] if more else 0.0)


def model_of(job: str) -> str:
    """`tf2-keras-cifar10-vgg16-elastic-20210721-042620` trains a vgg16."""
    return next(model for model in MODELS if model in job)


def make_job(name: str, submit_s: float, work_s: float, restart_s: float) -> SimJob:
    curve = CURVES[model_of(name)]
    job = Job(name, submit_s, size=SIZE, min=MIN, max=MAX, curve=curve, work_s=work_s, restart_s=restart_s)
    return SimJob(job, work_s, curve)


class Observed(NamedTuple):
    """What one job did in one run."""

    model: str
    done_s: float
    """Integral of its speed over the time in which it had GPUs, set-up and lost work included."""
    begun: float
    """Sum of the speeds after each start and resize: what a second of set-up at each of them costs."""


def observe(run: VodaRun) -> dict[str, Observed]:
    """By job, in the order of creation."""
    return {job: _observe(run, job) for job in run.created_s}


def _observe(run: VodaRun, job: str) -> Observed:
    curve, gpus, since_s = CURVES[model_of(job)], 0, 0.0
    done_s = begun = 0.0
    for entry in run.entries:
        if entry.job != job and job not in entry.gpus:
            continue
        done_s += curve.at(gpus) * (entry.time_s - since_s)
        since_s, before = entry.time_s, gpus
        gpus = entry.gpus.get(job, 0)
        if gpus and gpus != before:
            begun += curve.at(gpus)
    return Observed(model_of(job), done_s, begun)


def own_work_s(run: VodaRun, restart_s: float) -> list[float]:
    """Work of each job on one GPU as this run shows it, when every start and resize took `restart_s`."""
    return [seen.done_s - restart_s * seen.begun for seen in observe(run).values()]


class Estimate(NamedTuple):
    work_s: dict[str, float]
    """By model: seconds on one GPU."""
    restart_s: float


def estimate(runs: list[VodaRun]) -> Estimate:
    """One amount of work per model and one restart time that explain these runs best (least squares)."""
    seen = [job for run in runs for job in observe(run).values()]
    known = np.array([[*(job.model == model for model in MODELS), job.begun] for job in seen], dtype=np.float64)
    fit, *_ = np.linalg.lstsq(known, np.array([job.done_s for job in seen]))
    return Estimate(dict(zip(MODELS, fit[:-1].tolist(), strict=True)), float(fit[-1]))
