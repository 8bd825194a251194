"""What is known of jobs that keep the batch size of their request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from batuta.backends.sim.goodput.application import Application
from batuta.backends.sim.goodput.job import BatchMode, FixedBatch
from batuta.backends.sim.goodput.knowledge import LEAST_S, UNMEASURED_EXPONENT, Belief, Knowledge, Observed
from batuta.backends.sim.goodput.totals import FIRST_GUESS_S, Totals
from batuta.core.curve import SpeedCurve
from batuta.core.job import JobId


class FixedTruth:
    """Knows the true curve on packed nodes, and the true time left on one GPU."""

    def mode(self, application: Application, job: JobId, batch_size: int) -> BatchMode:
        return FixedBatch(batch_size)

    def round_over(self, jobs: Sequence[Observed]) -> None:
        pass

    def ended(self, job: Observed) -> None:
        pass

    def belief(self, job: Observed) -> Belief:
        application = job.model.application
        curve = _curve_of_times(application.packed_iteration_s(job.batch_size, job.most_gpus))
        goodputs = FixedBatch(job.batch_size).plan(application, (1,)).goodputs
        limits, at, left_s = application.efficiency.thresholds, job.model.progress, 0.0
        for epoch in range(job.model.epoch, job.model.epochs):
            left_s += (limits[epoch + 1] - at) / goodputs[epoch]
            at = limits[epoch + 1]
        return Belief(curve, max(left_s, LEAST_S))


class OptimusCount(FixedTruth):
    """Knows the true curve; what is left are the iterations after the current epoch, as was published."""

    def belief(self, job: Observed) -> Belief:
        times = job.model.application.packed_iteration_s(job.batch_size, job.most_gpus)
        return Belief(_curve_of_times(times), job.model.remaining_iterations(job.batch_size) * times[1])


def _curve_of_times(times: tuple[float, ...]) -> SpeedCurve:
    """Relative speed from seconds per iteration; sizes that cannot run have speed 0."""
    return SpeedCurve((0.0, *(times[1] / t if math.isfinite(t) else 0.0 for t in times[1:])))


@dataclass(slots=True)
class _Points:
    """Progress per second by GPU count, as measured; later measurements replace earlier ones."""

    by_gpus: dict[int, float] = field(default_factory=dict)

    def curve(self, most_gpus: int) -> SpeedCurve:
        """Measured where measured; elsewhere the prior, scaled from the nearest measured size."""
        if not self.by_gpus:
            return SpeedCurve((0.0, *(n**UNMEASURED_EXPONENT for n in range(1, most_gpus + 1))))
        one = self.at(1)
        return SpeedCurve((0.0, *(self.at(n) / one for n in range(1, most_gpus + 1))))

    def at(self, gpus: int) -> float:
        if gpus in self.by_gpus:
            return self.by_gpus[gpus]
        near = min(self.by_gpus, key=lambda n: (abs(math.log(n / gpus)), n))
        return float(self.by_gpus[near] * (gpus / near) ** UNMEASURED_EXPONENT)


class FixedMeasured:
    """Knows what was measured in this simulation.

    With `shared` all jobs of an application and batch size pool their points and their totals, else each has
    its own. With `totals` it is known when each job ends.
    """

    def __init__(self, shared: bool, totals: bool) -> None:
        self._shared, self._knows_totals = shared, totals
        self._points: dict[tuple[str, int, JobId], _Points] = {}
        self._totals: dict[tuple[str, JobId], Totals] = {}

    def mode(self, application: Application, job: JobId, batch_size: int) -> BatchMode:
        return FixedBatch(batch_size)

    def round_over(self, jobs: Sequence[Observed]) -> None:
        for job in jobs:
            if job.model.gpus and job.model.goodput > 0:
                self._points_of(job).by_gpus[job.model.gpus] = job.model.goodput
            self._totals_of(job).advance(job.model.progress)

    def ended(self, job: Observed) -> None:
        self._totals_of(job).end(job.model.progress)

    def belief(self, job: Observed) -> Belief:
        points, at = self._points_of(job), job.model.progress
        if not points.by_gpus:
            return Belief(points.curve(job.most_gpus), FIRST_GUESS_S)
        per_s = points.at(1)
        end = job.model.end if self._knows_totals else self._totals_of(job).guess(at, per_s)
        return Belief(points.curve(job.most_gpus), max((end - at) / per_s, LEAST_S))

    def _points_of(self, job: Observed) -> _Points:
        return self._points.setdefault((job.application, job.batch_size, self._owner(job)), _Points())

    def _totals_of(self, job: Observed) -> Totals:
        return self._totals.setdefault((job.application, self._owner(job)), Totals())

    def _owner(self, job: Observed) -> JobId:
        return "" if self._shared else job.id


def fixed_knowledge(name: str) -> Knowledge | None:
    """The way of knowing that a name stands for; None when the policy looks at nothing of this kind."""
    match name:
        case "none":
            return None
        case "oracle":
            return FixedTruth()
        case "optimus":
            return OptimusCount()
        case "own":
            return FixedMeasured(shared=False, totals=False)
        case "history":
            return FixedMeasured(shared=True, totals=False)
        case "history+totals":
            return FixedMeasured(shared=True, totals=True)
    raise ValueError(f"unknown knowledge {name!r}")
