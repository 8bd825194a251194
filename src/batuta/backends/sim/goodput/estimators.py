"""What the scheduler is told of jobs of the goodput model: from what each measured itself to the whole truth.

An estimator of fixed batches serves jobs that keep the batch size of their request, one of tuned batches jobs
that choose their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from batuta.backends.sim.goodput.application import Application, BatchSplit, EpochPlan
from batuta.backends.sim.goodput.job import BatchMode, ChosenBatch, FixedBatch, GoodputJob, TunedBatch
from batuta.backends.sim.goodput.model import FIRST_GUESS_S, Exploration, GoodputModel, Totals, true_phases
from batuta.backends.sim.goodput.throughput import Placement
from batuta.core.arrays import FloatArray
from batuta.core.curve import SpeedCurve, power_curve
from batuta.core.job import JobId
from batuta.core.phases import Outlook, Phases
from batuta.prediction.step_time import refit

UNMEASURED_EXPONENT = 0.7  # speed by GPU count where nothing was measured: n to this power
MIN_LEFT_S = 1.0  # the least time left of an estimate


@dataclass(frozen=True, slots=True)
class Estimate:
    """The scheduler's estimate of a job."""

    curve: SpeedCurve
    remaining_s: float
    outlook: Outlook | None = None


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job as the backend sees it."""

    id: JobId
    model: GoodputJob
    batch_size: int
    max_gpus: int

    @property
    def application(self) -> str:
        return self.model.application.name


class Estimator(ABC):
    """Gives jobs their batch mode, learns from what they run, and estimates speed and time left."""

    def mode(self, application: Application, job: JobId, batch_size: int) -> BatchMode:
        """`batch_size` is that of the job's request, or the largest where jobs may tune it."""
        return FixedBatch(batch_size)

    def end_round(self, jobs: Sequence[ObservedJob]) -> None:  # noqa: B027  (one that knows the truth has nothing to learn)
        """A round is over; these jobs are still there."""

    def job_ended(self, job: ObservedJob) -> None:  # noqa: B027
        """A job is over, with the progress that it has."""

    @abstractmethod
    def estimate(self, job: ObservedJob) -> Estimate: ...


class FixedBatchOracle(Estimator):
    """Knows the true curve on packed nodes, and the true time left on one GPU."""

    def estimate(self, job: ObservedJob) -> Estimate:
        application = job.model.application
        curve = _curve_of_times(application.packed_iteration_s(job.batch_size, job.max_gpus))
        goodputs = FixedBatch(job.batch_size).plan(application, (1,)).goodputs
        limits, at, left_s = application.efficiency.thresholds, job.model.progress, 0.0
        for epoch in range(job.model.epoch, job.model.epochs):
            left_s += (limits[epoch + 1] - at) / goodputs[epoch]
            at = limits[epoch + 1]
        return Estimate(curve, max(left_s, MIN_LEFT_S))


class OptimusEstimator(FixedBatchOracle):
    """Knows the true curve; what is left are the iterations after the current epoch, as was published."""

    def estimate(self, job: ObservedJob) -> Estimate:
        times = job.model.application.packed_iteration_s(job.batch_size, job.max_gpus)
        return Estimate(_curve_of_times(times), job.model.remaining_iterations(job.batch_size) * times[1])


@lru_cache(maxsize=4096)  # few jobs differ in it, and each is asked for in every round
def _curve_of_times(times: tuple[float, ...]) -> SpeedCurve:
    """Relative speed from seconds per iteration; sizes that cannot run have speed 0."""
    return SpeedCurve((0.0, *(times[1] / t if math.isfinite(t) else 0.0 for t in times[1:])))


@dataclass(slots=True)
class _Points:
    """Progress per second by GPU count, as measured; later measurements replace earlier ones."""

    by_gpus: dict[int, float] = field(default_factory=dict)

    def curve(self, max_gpus: int) -> SpeedCurve:
        """Measured where measured; elsewhere the prior, scaled from the nearest measured size."""
        if not self.by_gpus:
            return power_curve(max_gpus, UNMEASURED_EXPONENT)
        one = self.at(1)
        return SpeedCurve((0.0, *(self.at(n) / one for n in range(1, max_gpus + 1))))

    def at(self, gpus: int) -> float:
        if gpus in self.by_gpus:
            return self.by_gpus[gpus]
        near = min(self.by_gpus, key=lambda n: (abs(math.log(n / gpus)), n))
        return float(self.by_gpus[near] * (gpus / near) ** UNMEASURED_EXPONENT)


class FixedBatchEstimator(Estimator):
    """Knows what was measured in this simulation.

    With `shared` all jobs of an application and batch size pool their points and their totals, else each has
    its own. With `totals` it is known when each job ends.
    """

    def __init__(self, shared: bool, totals: bool) -> None:
        self._shared, self._knows_totals = shared, totals
        self._points: dict[tuple[str, int, JobId], _Points] = {}
        self._totals: dict[tuple[str, JobId], Totals] = {}

    def end_round(self, jobs: Sequence[ObservedJob]) -> None:
        for job in jobs:
            if job.model.gpus and job.model.goodput > 0:
                self._points_of(job).by_gpus[job.model.gpus] = job.model.goodput
            self._totals_of(job).advance(job.model.progress)

    def job_ended(self, job: ObservedJob) -> None:
        self._totals_of(job).end(job.model.progress)

    def estimate(self, job: ObservedJob) -> Estimate:
        points, at = self._points_of(job), job.model.progress
        if not points.by_gpus:
            return Estimate(points.curve(job.max_gpus), FIRST_GUESS_S)
        per_s = points.at(1)
        end = job.model.end if self._knows_totals else self._totals_of(job).guess(at, per_s)
        return Estimate(points.curve(job.max_gpus), max((end - at) / per_s, MIN_LEFT_S))

    def _points_of(self, job: ObservedJob) -> _Points:
        return self._points.setdefault((job.application, job.batch_size, self._owner(job)), _Points())

    def _totals_of(self, job: ObservedJob) -> Totals:
        return self._totals.setdefault((job.application, self._owner(job)), Totals())

    def _owner(self, job: ObservedJob) -> JobId:
        return "" if self._shared else job.id


def make_fixed_estimator(name: str) -> Estimator | None:
    """The estimator with this name; None for a policy that uses no estimates."""
    match name:
        case "none":
            return None
        case "oracle":
            return FixedBatchOracle()
        case "optimus":
            return OptimusEstimator()
    return FixedBatchEstimator(*_learning(name))


class LearnedBatch:
    """Chooses at every start, every epoch and every round, by the learned model and the gradients now."""

    def __init__(self, learned: GoodputModel) -> None:
        self.learned = learned
        self.application = learned.application
        self._batch = self.application.profile.rule.pinned_batch or self.application.profile.init_batch
        self._chosen: dict[tuple[Placement, int], BatchSplit] = {}

    def plan(self, application: Application, placement: Placement) -> EpochPlan:
        return ChosenBatch(self.split).plan(application, placement)

    def split(self, placement: Placement, epoch: int) -> BatchSplit:
        """The split of this round; chosen once in a round."""
        split = self._chosen.get((placement, epoch))
        if split is None:
            now = self.application.efficiency.statistics(self._batch, epoch)
            split = self._chosen[placement, epoch] = self.learned.best_split(placement, epoch, now)
            self._batch = split.total(sum(placement))
        return split

    def end_round(self) -> None:
        """Adds what ran in this round to the model."""
        for (placement, epoch), split in self._chosen.items():
            self.learned.observe(placement, split, epoch)
        self._chosen.clear()


LADDER_S, LADDER_FACTOR = 20_000.0, 4.0  # estimated times left of a job of which only its own past is known


class TunedBatchOracle(Estimator):
    """Knows everything: true goodput in every epoch, and when each job ends."""

    def __init__(self, sizes: tuple[int, ...], gpus_per_node: int) -> None:
        self._sizes, self._gpus_per_node = sizes, gpus_per_node
        self._phases: dict[str, Phases] = {}

    def mode(self, application: Application, job: JobId, batch_size: int) -> BatchMode:
        return TunedBatch()

    def estimate(self, job: ObservedJob) -> Estimate:
        phases = self._phases.get(job.application)
        if phases is None:
            phases = true_phases(job.model.application, self._sizes, self._gpus_per_node)
            self._phases[job.application] = phases
        return _tuned_estimate(phases, job.model.progress, job.model.end)


class TunedBatchEstimator(Estimator):
    """Knows what ran in this simulation.

    With `shared` all jobs of an application learn together, else each for itself. With `totals` it is known
    when each job ends.
    """

    def __init__(
        self, shared: bool, totals: bool, sizes: tuple[int, ...], gpus_per_node: int, explores: Exploration
    ) -> None:
        self._shared, self._totals, self._explores = shared, totals, explores
        self._sizes, self._gpus_per_node = sizes, gpus_per_node
        self._models: dict[str, GoodputModel] = {}
        self._ended: list[ObservedJob] = []
        """Jobs that ended in this round; the models learn of it when the round is over."""

    def mode(self, application: Application, job: JobId, batch_size: int) -> BatchMode:
        return LearnedBatch(self._of(application, job))

    def _of(self, application: Application, job: JobId) -> GoodputModel:
        key = application.name if self._shared else job
        learned = self._models.get(key)
        if learned is None:
            learned = self._models[key] = GoodputModel(
                application, self._sizes, self._gpus_per_node, self._explores, self._shared
            )
        return learned

    def end_round(self, jobs: Sequence[ObservedJob]) -> None:
        """Learns from what ran in the last round."""
        for job in self._ended:
            self._learn(job).totals.end(job.model.progress)
        self._ended.clear()
        for job in jobs:
            self._learn(job)
        refit(learned.model for learned in self._models.values())

    def _learn(self, job: ObservedJob) -> GoodputModel:
        mode = job.model.mode
        assert isinstance(mode, LearnedBatch)
        mode.end_round()
        mode.learned.totals.advance(job.model.progress)
        return mode.learned

    def job_ended(self, job: ObservedJob) -> None:
        self._ended.append(job)

    def estimate(self, job: ObservedJob) -> Estimate:
        learned, at = self._of(job.model.application, job.id), job.model.progress
        phases = learned.phases()
        if phases is None:
            return Estimate(power_curve(self._explores.first, UNMEASURED_EXPONENT), FIRST_GUESS_S)
        per_s = float(phases.per_s[-1, 1])
        if self._totals:
            end = job.model.end
        else:
            end = learned.totals.guess(at, per_s) if self._shared else at + _ladder_s(at / per_s) * per_s
        return _tuned_estimate(phases, at, end)


def _ladder_s(done_s: float) -> float:
    """The first rung that is not below the time done."""
    rungs = max(0, math.ceil(math.log(max(done_s, 1.0) / LADDER_S, LADDER_FACTOR) - 1e-9))
    return LADDER_S * LADDER_FACTOR**rungs


def _tuned_estimate(phases: Phases, at: float, end: float) -> Estimate:
    """Mean speed until the end, and the time to it on one GPU."""
    marks, spent_s = phases.marks, phases.spent_s
    end = max(end, at + MIN_LEFT_S * float(phases.per_s[-1, 1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        left_s = _row(marks, spent_s, end) - _row(marks, spent_s, at)
        speeds = np.where(left_s > 0, left_s[1] / left_s, 0.0)
    remaining_s = max(float(left_s[1]), MIN_LEFT_S)
    speeds[0] = 0.0
    return Estimate(SpeedCurve(tuple(speeds.tolist())), remaining_s, Outlook(phases, end))


def _row(marks: FloatArray, spent_s: FloatArray, at: float) -> FloatArray:
    k = min(max(int(np.searchsorted(marks, at, side="right")) - 1, 0), len(marks) - 2)
    part = (at - marks[k]) / (marks[k + 1] - marks[k])
    spent: FloatArray = spent_s[k] + part * (spent_s[k + 1] - spent_s[k])
    return spent


def make_tuned_estimator(
    name: str,
    sizes: tuple[int, ...],
    gpus_per_node: int,
    explores: Exploration = Exploration(),  # noqa: B008  (immutable)
) -> Estimator:
    """The estimator with this name."""
    if name == "oracle":
        return TunedBatchOracle(sizes, gpus_per_node)
    return TunedBatchEstimator(*_learning(name), sizes, gpus_per_node, explores)


def _learning(name: str) -> tuple[bool, bool]:
    """Whether jobs of an application learn together, and whether it is known when each job ends."""
    known = {"own": (False, False), "history": (True, False), "history+totals": (True, True)}
    if name not in known:
        raise ValueError(f"unknown knowledge {name!r}")
    return known[name]
