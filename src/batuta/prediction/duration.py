"""How long jobs took, how long a running job still takes, and whether forecasts were right.

A duration is a distribution (`Quantiles`) in **seconds on one GPU of the reference type**, as `Job.work_s`
is: the scheduler chooses the size, so a time at one size would be of no use at the next.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray
from batuta.core.job import Job, JobId, JobState
from batuta.core.world import PastJob, World

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
MEDIAN = LEVELS.index(0.5)
LEAST_S = 1.0  # the least duration, total or remaining, of any job
LONGEST_S = 1e9
LEAST_SLOPE = 0.05
"""Least growth of log time per unit of hazard beyond the quantiles: a job that has outlasted all earlier ones
is expected to run on for some percent of its age."""
_HAZARDS = np.array([-math.log1p(-level) for level in LEVELS])
_NORMAL = (-1.2815515655446004, -0.6744897501960817, 0.0, 0.6744897501960817, 1.2815515655446004)
"""Of a standard normal variable, at LEVELS."""
MOST_JOBS = 20_000  # jobs of the past that are learned from, the newest ones
_NUMBERS = re.compile(r"[0-9]+")
_DAY_S = 86_400.0
FIRST_SD = 0.35  # spread of log seconds of what a job says is left when it has just begun …
LAST_SD = 0.05  # … and when it is nearly done: it shrinks with the share of the work that is left
UNKNOWN_SD = 1.5  # spread for a job without any history: P90 is seven times P50
MOST_CALIBRATED = 500  # jobs that `CalibrationRecord` counts, the last to end


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds that are not exceeded with the probability of each of LEVELS; never falling.

    Between them, log time is linear in the hazard -log(1 - level), and so beyond them: a tail as long as the
    last two quantiles say. So it also gives the rest of a job that has outlasted it.
    """

    seconds: tuple[float, ...]

    @staticmethod
    def of(seconds: Iterable[float]) -> Quantiles:
        """From any numbers, one per level: sorted, positive and finite."""
        # In plain Python: five numbers are sorted in a tenth of the time that arrays take.
        values = sorted(LEAST_S if math.isnan(value) else min(max(value, LEAST_S), LONGEST_S) for value in seconds)
        if len(values) != len(LEVELS):
            raise ValueError(f"{len(LEVELS)} quantiles are needed, found {len(values)}")
        return Quantiles(tuple(values))

    @staticmethod
    def around(median_s: float, log_sd: float) -> Quantiles:
        """Return the quantiles of a log-normal distribution."""
        return Quantiles.of(median_s * math.exp(log_sd * z) for z in _NORMAL)

    @property
    def p10_s(self) -> float:
        return self.seconds[0]

    @property
    def p50_s(self) -> float:
        return self.seconds[MEDIAN]

    @property
    def p90_s(self) -> float:
        return self.seconds[-1]

    @property
    def log_sd(self) -> float:
        """The standard deviation of log time of a log-normal distribution with the same P10 and P90."""
        return math.log(self.p90_s / self.p10_s) / (_NORMAL[-1] - _NORMAL[0])

    def at(self, level: float) -> float:
        """The quantile of any level in [0, 1)."""
        if not 0 <= level < 1:
            raise ValueError(f"a level lies in [0, 1), found {level}")
        return self._curve().seconds_at(-math.log1p(-level))

    def left_after(self, spent_s: float) -> Quantiles:
        """Return the remaining time of a job that has run for `spent_s` and is not over."""
        if spent_s <= LEAST_S:
            return self
        curve = self._curve()
        passed = curve.hazard_at(spent_s)
        return Quantiles.of(curve.seconds_at(passed + hazard) - spent_s for hazard in _HAZARDS)

    def _curve(self) -> _HazardCurve:
        # Strictly ascending, so that it can be inverted.
        logs: FloatArray = np.log(self.seconds) + 1e-9 * np.arange(len(LEVELS))
        below = (logs[1] - logs[0]) / (_HAZARDS[1] - _HAZARDS[0])
        above = (logs[-1] - logs[-2]) / (_HAZARDS[-1] - _HAZARDS[-2])
        return _HazardCurve(logs, max(float(below), LEAST_SLOPE), max(float(above), LEAST_SLOPE))


class _HazardCurve(NamedTuple):
    """Log time over hazard: linear between the quantiles, and with a slope of its own on each side."""

    logs: FloatArray
    below: float
    above: float

    def seconds_at(self, hazard: float) -> float:
        logs = self.logs
        if hazard < _HAZARDS[0]:
            log_s = logs[0] - self.below * (_HAZARDS[0] - hazard)
        elif hazard > _HAZARDS[-1]:
            log_s = logs[-1] + self.above * (hazard - _HAZARDS[-1])
        else:
            log_s = float(np.interp(hazard, _HAZARDS, logs))
        return math.exp(min(float(log_s), math.log(LONGEST_S)))

    def hazard_at(self, seconds: float) -> float:
        logs = self.logs
        log_s = math.log(seconds)
        if log_s < logs[0]:
            return max(0.0, float(_HAZARDS[0] - (logs[0] - log_s) / self.below))
        if log_s > logs[-1]:
            return float(_HAZARDS[-1] + (log_s - logs[-1]) / self.above)
        return float(np.interp(log_s, logs, _HAZARDS))


def survival_quantiles(values: FloatArray, ended: BoolArray, levels: Sequence[float] = LEVELS) -> FloatArray:
    """Quantiles of a sample in which some values are only known to be larger (Kaplan and Meier's estimate).

    Levels are those of the next value: of nine, the largest is the P90. Beyond the sample it is the largest.
    """
    n = len(values)
    # At equal values an end counts before one that is still open.
    order = np.lexsort((~ended, values))
    ordered, is_end = values[order], ended[order].astype(np.float64)
    reached = 1.0 - np.cumprod(1.0 - is_end / np.arange(n, 0, -1))
    wanted = np.array(levels) * (1.0 + 1.0 / n) - 1e-9
    return ordered[np.minimum(np.searchsorted(reached, wanted), n - 1)]


class JobFeatures(NamedTuple):
    """What a job is known by when it is submitted."""

    user: str
    name: str  # the application's, or the job's own, without its numbers: `train-17` and `train-18` are equal
    queue: str
    gpus: int  # what it asks for; 0 for a CPU-only job
    hour: int  # of the day (UTC) in which it was submitted

    @staticmethod
    def of(job: Job) -> JobFeatures:
        name = _NUMBERS.sub("#", job.application or job.name)
        return JobFeatures(job.user, name, job.queue, job.gpus, int(job.submit_s % _DAY_S // 3600.0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How long a job took, or has taken so far."""

    features: JobFeatures
    submit_s: float
    end_s: float  # when it ended; for one that still runs, when it was looked at
    work_s: float
    ended: bool = True  # false: it still runs, and will have taken longer than this

    def as_of(self, now_s: float) -> Outcome:
        """What was known of it at an earlier time, as if it had gone on evenly."""
        if self.end_s <= now_s:
            return self
        done = (now_s - self.submit_s) / (self.end_s - self.submit_s)
        return Outcome(self.features, self.submit_s, now_s, max(self.work_s * done, LEAST_S), ended=False)


class DurationHistory:
    """The outcomes of the newest jobs, in the order in which they ended. Bounded."""

    def __init__(self, most: int = MOST_JOBS) -> None:
        self._ended: deque[Outcome] = deque(maxlen=most)
        self.count = 0  # how many were ever added

    def add(self, past: PastJob) -> bool:
        """Take in a job that is over; False when it says nothing, because it never ran."""
        outcome = outcome_of(past)
        if outcome is not None:
            self._ended.append(outcome)
            self.count += 1
        return outcome is not None

    def ended(self) -> list[Outcome]:
        return list(self._ended)


def outcome_of(past: PastJob) -> Outcome | None:
    """Return the outcome of a job that is over; cancelled jobs count, since their GPUs became free."""
    if past.state is JobState.FAILED_SETUP or not past.first_start_s < past.end_s:
        return None
    held_s = past.end_s - past.first_start_s
    work_s = work_done_s(past.job, past.attained_gpu_s, held_s)
    return None if work_s is None else Outcome(JobFeatures.of(past.job), past.job.submit_s, past.end_s, work_s)


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
        since_s = np.maximum(world.now_s - jobs.anchor_s, 0.0)
        attained = jobs.attained_gpu_s + jobs.gpus() * since_s
        return RunningJobs(list(jobs.jobs), jobs.first_start_s.copy(), attained, world.now_s)

    def outcomes(self) -> Iterator[Outcome]:
        for row in np.flatnonzero(self.attained_gpu_s > 0).tolist():
            job, held_s = self.jobs[row], self.now_s - float(self.first_start_s[row])
            work_s = work_done_s(job, float(self.attained_gpu_s[row]), held_s)
            if work_s is not None and job.trial_of is None:
                yield Outcome(JobFeatures.of(job), job.submit_s, self.now_s, work_s, ended=False)


def spent_s(world: World, job: JobId) -> float:
    """What one job has taken so far; 0 before its first start."""
    jobs, row = world.jobs, world.jobs.row(job)
    first_s = jobs.first_start_s.item(row)
    if math.isnan(first_s):
        return 0.0
    since_s = max(0.0, world.now_s - jobs.anchor_s.item(row))
    served = jobs.attained_gpu_s.item(row) + jobs.held.item(row) * since_s
    return work_done_s(jobs.jobs[row], served, world.now_s - first_s) or 0.0


def work_done_s(job: Job, attained_gpu_s: float, held_s: float) -> float | None:
    """GPU time as seconds on one GPU, at the efficiency of the size that the job had in the mean.

    Exact for one size without a stop. None without GPU time. Of a CPU-only job: the time since its first start.
    """
    if job.cpu_only and 0 < held_s < math.inf:
        return max(held_s, LEAST_S)
    if not 0 < attained_gpu_s < math.inf or not 0 < held_s < math.inf:
        return None
    gpus = min(max(round(attained_gpu_s / held_s), job.min), job.max)
    return max(attained_gpu_s * job.curve.at(gpus) / gpus, LEAST_S)


def remaining_work(world: World, job: JobId) -> Quantiles:
    """Seconds left on one GPU of the reference type, for a job that is not over.

    A job that has outlasted its forecast goes on as such jobs did. Its report counts more the further it is.
    """
    jobs, row = world.jobs, world.jobs.row(job)
    since_s = max(0.0, world.now_s - jobs.anchor_s.item(row))
    left_s = jobs.remaining_s.item(row) - jobs.rate.item(row) * since_s
    progress = world.progress.get(job)
    fraction = None if progress is None else progress.fraction
    expected, work_s = jobs.jobs[row].expected, max(jobs.jobs[row].work_s, LEAST_S)
    prior = Quantiles.around(work_s, UNKNOWN_SD) if expected is None else Quantiles.of(expected.seconds)
    by_history = prior.left_after(spent_s(world, job))
    if fraction is None or not math.isfinite(left_s):
        return by_history
    return combine(remaining_by_report(max(left_s, LEAST_S), fraction), by_history)


def remaining_by_report(left_s: float, fraction: float) -> Quantiles:
    """Return the distribution of the remaining time that a job reports after this share of its work."""
    undone = 1.0 - min(max(fraction, 0.0), 1.0)
    return Quantiles.around(max(left_s, LEAST_S), LAST_SD + (FIRST_SD - LAST_SD) * undone)


def combine(a: Quantiles, b: Quantiles) -> Quantiles:
    """Combine two distributions of the same time, weighted by inverse variance in logs."""
    weight_a, weight_b = (1.0 / max(one.log_sd, LAST_SD) ** 2 for one in (a, b))
    total = weight_a + weight_b
    median = math.exp((weight_a * math.log(a.p50_s) + weight_b * math.log(b.p50_s)) / total)
    return Quantiles.around(median, total**-0.5)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The share of the last jobs that took no longer than each quantile said."""

    jobs: int = 0
    total: int = 0  # how many with a forecast have ended since the start
    coverage: tuple[tuple[float, float], ...] = ()  # by level; empty without jobs


class CalibrationRecord:
    """Counts the jobs that end within the forecast made when they were submitted. Bounded."""

    def __init__(self, last: int = MOST_CALIBRATED) -> None:
        self._met: deque[tuple[bool, ...]] = deque(maxlen=last)
        self._total = 0

    def add(self, past: PastJob) -> None:
        """Takes in a job that is over; one without a forecast, or that never ran, does not count."""
        forecast, outcome = past.job.expected, outcome_of(past)
        if forecast is not None and outcome is not None:
            self._met.append(tuple(outcome.work_s <= quantile_s for quantile_s in forecast.seconds))
            self._total += 1

    def now(self) -> Calibration:
        met = list(self._met)
        if not met:
            return Calibration(0, self._total)
        shares = (sum(own) / len(met) for own in zip(*met, strict=True))
        return Calibration(len(met), self._total, tuple(zip(LEVELS, shares, strict=True)))
