"""What a forecast samples: the work that jobs have left, and the jobs that are still to arrive.

The number and the precision of runs are planned by counting jobs, not by a clock: the same query gives the
same answer on a slow machine, only later.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from batuta.backends.sim.workload import SimJob
from batuta.core.arrays import FloatArray
from batuta.core.job import Job, JobId
from batuta.core.world import PastJob, World
from batuta.prediction.duration import LEVELS, Quantiles


def certain(left_s: float) -> Quantiles:
    return Quantiles((left_s,) * len(LEVELS))


def believed_left_s(world: World, row: int) -> float:
    """The World's estimate of the work that a job has left now."""
    jobs = world.jobs
    passed_s = max(world.now_s - float(jobs.anchor_s[row]), 0.0)
    return max(float(jobs.remaining_s[row]) - float(jobs.rate[row]) * passed_s, 0.0)


class Sampler:
    """Draws the work of every job in every run, from the seed and the job's id alone.

    So a repeated query gives the same answer, and two projections do not differ by chance. Each job gets each
    part of its distribution once (Latin hypercube sampling), which needs few runs.
    """

    def __init__(self, runs: int, seed: int = 0) -> None:
        if runs < 1:
            raise ValueError(f"runs must be at least 1, found {runs}")
        self.runs, self.seed = runs, seed
        self._levels = [(run + 0.5) / runs for run in range(runs)]

    def left_s(self, known: Mapping[JobId, Quantiles]) -> dict[JobId, FloatArray]:
        """By job: its work in each run."""
        found = {}
        for job, own in known.items():
            if own.p10_s == own.p90_s or self.runs == 1:
                found[job] = np.full(self.runs, own.p50_s)
            else:
                drawn = np.array([own.at(level) for level in self._levels])
                found[job] = drawn[self.rng(job).permutation(self.runs)]
        return found

    def rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng((self.seed, zlib.crc32(name.encode("utf-8", "surrogatepass"))))


def quantile(values: Sequence[float] | FloatArray, share: float) -> float:
    """Between the two values beside it (Hazen: value k of n stands for (k - ½)/n); infinity is a value."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    place = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    low, high = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
    return low if low == high else low + (high - low) * (place - math.floor(place))


WINDOW_S = 4 * 3600.0
TOGETHER_S = 10.0  # jobs submitted within this time of each other are one group: a sweep is one arrival of many jobs
_MIN_GROUPS = 3  # fewer arrivals give no rate
_MIN_OBSERVED_S = 3600.0
"""A shorter observation gives no rate: a user who tries a new server submits a few jobs, and then no more."""
MOST_ARRIVALS = 5_000  # the most arrivals of one run


@dataclass(frozen=True, slots=True)
class RecentArrivals:
    """The groups of jobs that arrived lately, and their rate."""

    groups: tuple[tuple[Job, ...], ...]  # jobs that arrived together, with what is known of their work
    per_s: float  # groups in a second

    @property
    def jobs_per_s(self) -> float:
        return self.per_s * sum(map(len, self.groups)) / len(self.groups)


def recent_arrivals(world: World, now_s: float) -> RecentArrivals | None:
    """The arrivals within the window, in order; None when they are too few to give a rate."""
    living = [job for job in world.jobs.jobs if job.submit_s <= now_s]
    known = [*living, *(_finished_job(past) for past in world.past.values())]
    since_s = now_s - WINDOW_S
    found = sorted(
        (job for job in known if job.submit_s >= since_s), key=lambda job: (job.submit_s, job.sequence, job.id)
    )
    groups = _grouped(found)
    if len(groups) < _MIN_GROUPS:
        return None
    # Without an arrival before the window, the time before the first one is not known to be idle.
    seen_before = any(job.submit_s < since_s for job in known)
    observed_s = WINDOW_S if seen_before else now_s - found[0].submit_s
    return RecentArrivals(groups, len(groups) / observed_s) if observed_s >= _MIN_OBSERVED_S else None


def _grouped(jobs: Sequence[Job]) -> tuple[tuple[Job, ...], ...]:
    groups: list[list[Job]] = []
    for job in jobs:
        if groups and job.submit_s - groups[-1][0].submit_s <= TOGETHER_S:
            groups[-1].append(job)
        else:
            groups.append([job])
    return tuple(map(tuple, groups))


def _finished_job(past: PastJob) -> Job:
    """A finished job: its work is what its GPUs did, taken at the size that it asked for."""
    job = past.job
    if past.attained_gpu_s <= 0:
        return job
    return replace(job, work_s=past.attained_gpu_s * job.curve.at(job.size) / job.size)


def draw_arrivals(recent: RecentArrivals, draws: Sampler, run: int, now_s: float, ahead_s: float) -> Sequence[SimJob]:
    """Arrivals of one run: a Poisson process of groups of jobs like the recent ones."""
    rng, found, time_s = draws.rng(f"arrivals {run}"), list[SimJob](), now_s
    most = min(MOST_ARRIVALS, math.ceil(4 * recent.jobs_per_s * ahead_s) + 10)
    while len(found) < most:
        time_s += float(rng.exponential(1.0 / recent.per_s))
        if time_s > now_s + ahead_s:
            break
        for like in recent.groups[int(rng.integers(len(recent.groups)))]:
            number = len(found)
            job = replace(like, id=f"to-come-{number}", submit_s=time_s, sequence=number, name="")
            found.append(SimJob(job, job.work_s, job.curve))
    return found


MOST_RUNS, FEWEST_RUNS = 32, 4
BUDGET_S = 6.0  # planned CPU seconds of a forecast on a usual core
MAX_CPU_S = 30.0  # CPU seconds after which a forecast stops with the runs that it has
_JOB_S, _PAIR_S = 1.1e-3, 2.5e-6  # CPU time of a job in one run, and of each other job that runs with it
_COARSE_JOB_S = 0.35e-3
_FINE, _COARSEST = 0.01, 0.05
_HORIZONS = 4.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How many runs a forecast makes, and how fine they are."""

    runs: int = MOST_RUNS
    precision: float = 0.0
    """At most one scheduling cycle per this fraction of the time ahead; 0: decide after every event."""
    horizon_s: float = math.inf  # how far ahead; a job that ends later has no forecast


def plan_effort(world: World, jobs: int, budget_s: float = BUDGET_S, *, worlds: int = 1) -> Effort:
    """As many and as fine runs as the budget allows; `worlds` share it.

    A budget for fewer than `FEWEST_RUNS` gives one run, to which each job's own uncertainty is added.
    """
    own_s = budget_s / worlds
    runs = int(own_s / (_JOB_S + _PAIR_S * jobs) / max(jobs, 1))
    if runs >= FEWEST_RUNS:
        return Effort(min(runs, MOST_RUNS))
    horizon_s = _HORIZONS * span_estimate_s(world)
    for precision in (_FINE, 2 * _FINE, _COARSEST):
        runs = int(own_s / (_COARSE_JOB_S * (1.0 + 2 * _FINE / precision)) / jobs)
        if runs >= FEWEST_RUNS:
            return Effort(runs, precision, horizon_s)
    return Effort(1, _COARSEST, horizon_s)


def span_estimate_s(world: World) -> float:
    """About how long the present jobs keep the cluster busy: all work on all GPUs, or the longest job."""
    jobs = world.jobs
    if not jobs.n:
        return 0.0
    sizes = np.maximum(jobs.size, 1)
    speed = np.maximum(jobs.speed().at(sizes), 1e-9)
    left_s = np.maximum(jobs.remaining_s, 60.0)
    gpu_s = float((left_s / speed * sizes).sum())
    return max(gpu_s / max(sum(world.capacity()), 1), float((left_s / speed).max()))
