"""What is known of jobs before they report anything, and how long those of the past really took."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.job import Job, JobId, JobState
from batuta.core.world import PastJob, World
from batuta.prediction.duration import LEAST_S

MOST_JOBS = 20_000
"""Jobs of the past that are learned from, the newest ones."""
_NUMBERS = re.compile(r"[0-9]+")
_DAY_S = 86_400.0


class Facts(NamedTuple):
    """What a job is known by when it is submitted."""

    user: str
    name: str
    """The application's, or the job's own, with all numbers alike: `train-17` and `train-18` are one."""
    queue: str
    gpus: int
    """What it asks for."""
    hour: int
    """Of the day (UTC) in which it was submitted."""

    @staticmethod
    def of(job: Job) -> Facts:
        name = _NUMBERS.sub("#", job.application or job.name)
        return Facts(job.user, name, job.queue, job.size, int(job.submit_s % _DAY_S // 3600.0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How long a job took, or has taken so far."""

    facts: Facts
    submit_s: float
    end_s: float
    """When it ended; for one that still runs, when it was looked at."""
    work_s: float
    ended: bool = True
    """False: it still runs, and will have taken longer than this."""

    def as_of(self, now_s: float) -> Outcome:
        """What was known of it at an earlier time, as if it had gone on evenly."""
        if self.end_s <= now_s:
            return self
        done = (now_s - self.submit_s) / (self.end_s - self.submit_s)
        return Outcome(self.facts, self.submit_s, now_s, max(self.work_s * done, LEAST_S), ended=False)


class DurationHistory:
    """The outcomes of the newest jobs, in the order in which they ended. Bounded."""

    def __init__(self, most: int = MOST_JOBS) -> None:
        self._ended: deque[Outcome] = deque(maxlen=most)
        self.count = 0
        """How many were ever added."""

    def add(self, past: PastJob) -> bool:
        """Takes in a job that is over; False when it says nothing, because it never ran."""
        outcome = outcome_of(past)
        if outcome is None:
            return False
        self._ended.append(outcome)
        self.count += 1
        return True

    def ended(self) -> list[Outcome]:
        return list(self._ended)


def outcome_of(past: PastJob) -> Outcome | None:
    """What a job that is over tells. Cancelled is as good an end as any: its GPUs were free from then on."""
    if past.state is JobState.FAILED_SETUP or not past.first_start_s < past.end_s:
        return None
    held_s = past.end_s - past.first_start_s
    work_s = work_done_s(past.job, past.attained_gpu_s, held_s)
    return None if work_s is None else Outcome(Facts.of(past.job), past.job.submit_s, past.end_s, work_s)


@dataclass(frozen=True, slots=True)
class RunningJobs:
    """The jobs that have run and are not over, as they were at one moment: taken quickly, read at leisure."""

    jobs: list[Job]
    first_start_s: FloatArray
    attained_gpu_s: FloatArray
    now_s: float

    @staticmethod
    def of(world: World) -> RunningJobs:
        jobs = world.jobs
        since_s = np.maximum(world.now_s - jobs.f("anchor_s"), 0.0)
        attained = jobs.f("attained_gpu_s") + jobs.i("gpus") * since_s
        return RunningJobs(list(jobs.jobs), jobs.f("first_start_s").copy(), attained, world.now_s)

    def outcomes(self) -> Iterator[Outcome]:
        """What they have taken so far."""
        for row in np.flatnonzero(self.attained_gpu_s > 0).tolist():
            job, held_s = self.jobs[row], self.now_s - float(self.first_start_s[row])
            work_s = work_done_s(job, float(self.attained_gpu_s[row]), held_s)
            if work_s is not None and job.trial_of is None:
                yield Outcome(Facts.of(job), job.submit_s, self.now_s, work_s, ended=False)


def spent_s(world: World, job: JobId) -> float:
    """What one job has taken so far; 0 before its first start."""
    jobs, row = world.jobs, world.jobs.row(job)
    first_s = jobs.f("first_start_s").item(row)
    if math.isnan(first_s):
        return 0.0
    since_s = max(0.0, world.now_s - jobs.f("anchor_s").item(row))
    served = jobs.f("attained_gpu_s").item(row) + jobs.i("gpus").item(row) * since_s
    return work_done_s(jobs.jobs[row], served, world.now_s - first_s) or 0.0


def work_done_s(job: Job, attained_gpu_s: float, held_s: float) -> float | None:
    """GPU time as seconds on one GPU, at the efficiency of the size that the job had in the mean.

    Exact for a job of one size that was never stopped. None when it had no GPU time.
    """
    if not 0 < attained_gpu_s < math.inf or not 0 < held_s < math.inf:
        return None
    gpus = min(max(round(attained_gpu_s / held_s), job.min), job.max)
    return max(attained_gpu_s * job.curve.at(gpus) / gpus, LEAST_S)
