"""What a scheduler is told about jobs of the goodput model: from its own runs to the whole truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from batuta.backends.sim.goodput.job import FixedBatch, GoodputJob
from batuta.core.curve import SpeedCurve
from batuta.core.job import JobId
from batuta.core.outlook import Outlook

UNMEASURED_EXPONENT = 0.7
"""Speed by GPU count where nothing was measured: n to this power."""
FIRST_GUESS_S = 3600.0
"""Run time on one GPU of a job whose total nobody knows yet."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What the scheduler believes of a job now."""

    curve: SpeedCurve
    remaining_s: float
    outlook: Outlook | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """A job as the backend sees it."""

    id: JobId
    model: GoodputJob
    batch_size: int
    most_gpus: int

    @property
    def application(self) -> str:
        return self.model.application.name


def truth(job: Observed) -> Belief:
    """The true curve on packed nodes, and the true time left on one GPU."""
    application = job.model.application
    curve = _curve_of_times(application.packed_iteration_s(job.batch_size, job.most_gpus))
    goodputs = FixedBatch(job.batch_size).plan(application, (1,)).goodputs
    limits, at, left_s = application.efficiency.thresholds, job.model.progress, 0.0
    for epoch in range(job.model.epoch, job.model.epochs):
        left_s += (limits[epoch + 1] - at) / goodputs[epoch]
        at = limits[epoch + 1]
    return Belief(curve, max(left_s, 1.0))


def as_optimus_counts(job: Observed) -> Belief:
    """The true curve; what is left are the iterations after the current epoch, as in the published runs."""
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


class Measured:
    """Beliefs from measurements alone.

    With `shared` all jobs of an application and batch size pool their points and their totals, else each has
    its own. With `totals` the length of a job is known; without, it is guessed as twice the furthest progress
    seen until a job of the application has ended.
    """

    def __init__(self, shared: bool, totals: bool) -> None:
        self._shared = shared
        self._totals = totals
        self._points: dict[tuple[str, int, JobId], _Points] = {}
        self._furthest: dict[tuple[str, JobId], float] = {}
        self._ended: dict[tuple[str, JobId], float] = {}

    def __call__(self, job: Observed) -> Belief:
        model = job.model
        own = "" if self._shared else job.id
        points = self._points.setdefault((job.application, job.batch_size, own), _Points())
        if model.gpus and model.goodput > 0:
            points.by_gpus[model.gpus] = model.goodput
        whole = (job.application, own)
        self._furthest[whole] = max(self._furthest.get(whole, 0.0), model.progress)
        if not points.by_gpus:
            return Belief(points.curve(job.most_gpus), FIRST_GUESS_S)
        per_s = points.at(1)
        total = self._total(job, whole, per_s)
        return Belief(points.curve(job.most_gpus), max((total - model.progress) / per_s, 1.0))

    def ended(self, job: Observed) -> None:
        own = "" if self._shared else job.id
        self._ended[job.application, own] = job.model.progress

    def _total(self, job: Observed, whole: tuple[str, JobId], per_s: float) -> float:
        if self._totals:
            return job.model.end
        if whole in self._ended:
            return self._ended[whole]
        return max(2 * self._furthest[whole], FIRST_GUESS_S * per_s)


def beliefs(knowledge: str) -> Callable[[Observed], Belief] | None:
    """The way of knowing that a name stands for; None when the policy looks at nothing of this kind."""
    match knowledge:
        case "none":
            return None
        case "oracle":
            return truth
        case "optimus":
            return as_optimus_counts
        case "own":
            return Measured(shared=False, totals=False)
        case "history":
            return Measured(shared=True, totals=False)
        case "history+totals":
            return Measured(shared=True, totals=True)
    raise ValueError(f"unknown knowledge {knowledge!r}")
