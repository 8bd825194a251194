"""What is known of jobs that tune their batch size: time left and speed, now and later."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from batuta.backends.sim.goodput.application import Application
from batuta.backends.sim.goodput.job import BatchMode, TunedBatch
from batuta.backends.sim.goodput.knowledge import LEAST_S, UNMEASURED_EXPONENT, Belief, Knowledge, Observed
from batuta.backends.sim.goodput.learned_batch import LearnedBatch
from batuta.backends.sim.goodput.lessons import Exploration, Lessons, true_phases
from batuta.backends.sim.goodput.totals import FIRST_GUESS_S
from batuta.core.arrays import FloatArray
from batuta.core.curve import SpeedCurve, power_curve
from batuta.core.job import JobId
from batuta.core.outlook import Outlook, Phases
from batuta.prediction.step_model import refit

LADDER_S, LADDER_FACTOR = 20_000.0, 4.0
"""How long a job is thought to go on of which nobody knows more than what it has done itself."""


class TunedTruth:
    """Knows everything: true goodput in every epoch, and when each job ends."""

    def __init__(self, sizes: tuple[int, ...], gpus_per_node: int) -> None:
        self._sizes, self._gpus_per_node = sizes, gpus_per_node
        self._phases: dict[str, Phases] = {}

    def mode(self, application: Application, job: JobId, batch_size: int) -> BatchMode:
        return TunedBatch()

    def round_over(self, jobs: Sequence[Observed]) -> None:
        pass

    def ended(self, job: Observed) -> None:
        pass

    def belief(self, job: Observed) -> Belief:
        phases = self._phases.get(job.application)
        if phases is None:
            phases = true_phases(job.model.application, self._sizes, self._gpus_per_node)
            self._phases[job.application] = phases
        return _belief(phases, job.model.progress, job.model.end)


class TunedLearned:
    """Knows what ran in this simulation.

    With `shared` all jobs of an application learn together, else each for itself. With `totals` it is known
    when each job ends.
    """

    def __init__(
        self, shared: bool, totals: bool, sizes: tuple[int, ...], gpus_per_node: int, explores: Exploration
    ) -> None:
        self._shared, self._totals, self._explores = shared, totals, explores
        self._sizes, self._gpus_per_node = sizes, gpus_per_node
        self._lessons: dict[str, Lessons] = {}
        self._over: list[Observed] = []
        """Those that ended in this round: nobody learns of it before the round is over."""

    def mode(self, application: Application, job: JobId, batch_size: int) -> BatchMode:
        return LearnedBatch(self._of(application, job))

    def _of(self, application: Application, job: JobId) -> Lessons:
        key = application.name if self._shared else job
        lessons = self._lessons.get(key)
        if lessons is None:
            lessons = self._lessons[key] = Lessons(
                application, self._sizes, self._gpus_per_node, self._explores, self._shared
            )
        return lessons

    def round_over(self, jobs: Sequence[Observed]) -> None:
        """Learns from what ran in the last round."""
        for job in self._over:
            self._learn(job).totals.end(job.model.progress)
        self._over.clear()
        for job in jobs:
            self._learn(job)
        refit(lessons.model for lessons in self._lessons.values())

    def _learn(self, job: Observed) -> Lessons:
        mode = job.model.mode
        assert isinstance(mode, LearnedBatch)
        mode.end_round()
        mode.lessons.totals.advance(job.model.progress)
        return mode.lessons

    def ended(self, job: Observed) -> None:
        self._over.append(job)

    def belief(self, job: Observed) -> Belief:
        lessons, at = self._of(job.model.application, job.id), job.model.progress
        phases = lessons.phases()
        if phases is None:
            return Belief(power_curve(self._explores.first, UNMEASURED_EXPONENT), FIRST_GUESS_S)
        return _belief(phases, at, self._end(job, lessons, at, float(phases.per_s[-1, 1])))

    def _end(self, job: Observed, lessons: Lessons, at: float, per_s: float) -> float:
        if self._totals:
            return job.model.end
        if not self._shared:
            return at + _ladder_s(at / per_s) * per_s
        return lessons.totals.guess(at, per_s)


def _ladder_s(done_s: float) -> float:
    """The first rung that is not below what was done already."""
    rungs = max(0, math.ceil(math.log(max(done_s, 1.0) / LADDER_S, LADDER_FACTOR) - 1e-9))
    return LADDER_S * LADDER_FACTOR**rungs


def _belief(phases: Phases, at: float, end: float) -> Belief:
    """Mean speed until the end, and the time to it on one GPU."""
    marks, spent_s = phases.marks, phases.spent_s
    end = max(end, at + LEAST_S * float(phases.per_s[-1, 1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        left_s = _row(marks, spent_s, end) - _row(marks, spent_s, at)
        speeds = np.where(left_s > 0, left_s[1] / left_s, 0.0)
    remaining_s = max(float(left_s[1]), LEAST_S)
    speeds[0] = 0.0
    return Belief(SpeedCurve(tuple(speeds.tolist())), remaining_s, Outlook(phases, end))


def _row(marks: FloatArray, spent_s: FloatArray, at: float) -> FloatArray:
    k = min(max(int(np.searchsorted(marks, at, side="right")) - 1, 0), len(marks) - 2)
    part = (at - marks[k]) / (marks[k + 1] - marks[k])
    spent: FloatArray = spent_s[k] + part * (spent_s[k + 1] - spent_s[k])
    return spent


def tuned_knowledge(
    name: str,
    sizes: tuple[int, ...],
    gpus_per_node: int,
    explores: Exploration = Exploration(),  # noqa: B008  (immutable)
) -> Knowledge:
    """The way of knowing that a name stands for."""
    match name:
        case "oracle":
            return TunedTruth(sizes, gpus_per_node)
        case "own":
            return TunedLearned(False, False, sizes, gpus_per_node, explores)
        case "history":
            return TunedLearned(True, False, sizes, gpus_per_node, explores)
        case "history+totals":
            return TunedLearned(True, True, sizes, gpus_per_node, explores)
    raise ValueError(f"unknown knowledge {name!r}")
