"""What trial runs teach: how a job scales, and which sizes its memory allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from batuta.core.curve import SpeedCurve
from batuta.core.expected import SizeChoice
from batuta.core.job import Job
from batuta.core.trial import TrialMeasurement, TrialOutcome
from batuta.prediction.application_history import FEWEST_SIZES, ApplicationHistory, KnownSpeed, Series
from batuta.prediction.footprint import Footprint
from batuta.prediction.initial_size import choose_size, legal_sizes, settle


@dataclass(frozen=True, slots=True)
class Lesson:
    """A job after its trial: as it should be queued, and why."""

    job: Job
    curve: SpeedCurve | None = None
    """How it scales; None when too little was measured to say."""
    choice: SizeChoice | None = None
    """The size that is best asked for, whether the job's user left that open or not."""
    fits: bool = True
    """False: at every size that was tried it ran out of memory."""

    @property
    def sentence(self) -> str:
        """What it comes to."""
        if not self.fits:
            return "it ran out of GPU memory at every size that was tried"
        if self.choice is None:
            return "too little was measured to say how it scales"
        return self.choice.sentence


def learn(job: Job, measured: Sequence[TrialMeasurement]) -> Lesson:
    """What the trial of a job says about it."""
    plan = job.trial
    assert plan is not None
    if _lacking(measured).issuperset(plan.sizes):
        return Lesson(job, fits=False)
    narrowed = where_it_fits(job, measured)
    known = known_speed(measured)
    if known is None:
        return Lesson(narrowed)
    most = narrowed.max if plan.open_up_to is None else max(plan.open_up_to, narrowed.min)
    choice = replace(choose_size(narrowed, known, most), trial=True)
    if plan.open_up_to is not None:
        narrowed = settle(narrowed, choice, for_good=plan.for_good)
    return Lesson(narrowed, known.curve(job.curve, job.max), choice)


def known_speed(measured: Sequence[TrialMeasurement]) -> KnownSpeed | None:
    """How a job scales by its trial runs; None with less than two sizes that can be compared."""
    units = Counter(one.unit for one in measured if one.units_per_s is not None)
    unit = units.most_common(1)[0][0] if units else ""
    points = [one for one in measured if one.unit == unit and one.units_per_s is not None]
    if len(points) < FEWEST_SIZES:
        return None
    return KnownSpeed(
        rates={_footprint(one): one.units_per_s for one in points if one.units_per_s is not None},
        jobs=len(points),
        largest=max(one.gpus for one in points),
        step_units={one.gpus: float(one.batch) for one in points if one.batch},
    )


def remember(history: ApplicationHistory, one: TrialMeasurement) -> None:
    """Lets later jobs of the application start from it too, by the door that their own runs come in by."""
    if one.application and one.units_per_s is not None:
        series = Series(one.application, one.gpu_type, one.unit, one.batch)
        history.add(series, _footprint(one), one.run, one.units_per_s)


def _footprint(one: TrialMeasurement) -> Footprint:
    return Footprint(one.gpus, one.nodes, one.racks)


def where_it_fits(job: Job, measured: Sequence[TrialMeasurement]) -> Job:
    """The job without the sizes at which its memory does not do, next to one at which it does."""
    lacking = _lacking(measured)
    fitting = [one.gpus for one in measured if one.units_per_s is not None]
    if not lacking or not fitting:
        return job
    low = min(fitting) if min(lacking) < min(fitting) else job.min
    high = max(fitting) if max(lacking) > max(fitting) else job.max
    sizes = [gpus for gpus in legal_sizes(job) if low <= gpus <= high]
    if not sizes:
        return job  # its user has changed the range since: what was tried says nothing of that
    size = min(max(job.size, sizes[0]), sizes[-1])
    return replace(job, size=size, min=sizes[0], max=sizes[-1], sizes=tuple(sizes) if job.sizes else None)


def _lacking(measured: Sequence[TrialMeasurement]) -> set[int]:
    """The sizes at which it ran out of memory."""
    return {one.gpus for one in measured if one.outcome is TrialOutcome.OUT_OF_MEMORY}
