"""What a trial run showed, read from the World, its GPUs and its output, and what follows for the job."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from batuta.core.cluster import Placement
from batuta.core.curve import SpeedCurve
from batuta.core.job import Job, JobId, JobState, Progress, SizeChoice
from batuta.core.trial import TrialMeasurement, TrialOutcome
from batuta.core.world import World
from batuta.prediction.application_history import (
    FEWEST_SIZES,
    ApplicationHistory,
    KnownSpeed,
    Series,
    choose_size,
    footprint_of,
    legal_sizes,
    measured,
    settle,
)
from batuta.prediction.scaling import Footprint


@dataclass(frozen=True, slots=True)
class Lesson:
    """A job after its trial, as it should be queued. A curve or choice of None: too little was measured to say."""

    job: Job
    curve: SpeedCurve | None = None
    choice: SizeChoice | None = None  # the size that is best asked for, whether the job's user left that open or not
    fits: bool = True  # false: at every size that was tried it ran out of memory

    @property
    def sentence(self) -> str:
        if not self.fits:
            return "it ran out of GPU memory at every size that was tried"
        if self.choice is None:
            return "too little was measured to say how it scales"
        return self.choice.sentence


def learn(job: Job, measured: Sequence[TrialMeasurement]) -> Lesson:
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


_OUT_OF_MEMORY = re.compile(
    r"out of memory|out_of_memory|outofmemory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED",
    re.IGNORECASE,
)
"""How CUDA, cuBLAS, PyTorch and JAX say it."""


@dataclass(frozen=True, slots=True)
class Look:
    """The GPUs of a run at one moment. None: not known."""

    memory_mib: int | None = None  # in use, on the fullest of them
    utilisation: float | None = None  # on the average, 0 to 1


@dataclass(slots=True)
class Seen:
    """All looks at the GPUs of one run, summed up."""

    memory_mib: int | None = None
    _busy: float = 0.0
    _looks: int = 0

    def add(self, look: Look) -> None:
        if look.memory_mib is not None:
            self.memory_mib = max(look.memory_mib, self.memory_mib or 0)
        if look.utilisation is not None:
            self._busy += look.utilisation
            self._looks += 1

    @property
    def utilisation(self) -> float | None:
        return round(self._busy / self._looks, 3) if self._looks else None


def speaks_of_memory(output: str) -> bool:
    """Whether the end of a failed run's output says that it ran out of GPU memory."""
    return _OUT_OF_MEMORY.search(output) is not None


def read_run(world: World, run: JobId, seen: Seen, output: str) -> TrialMeasurement:
    """What a run showed that goes on, or has ended. `output` is the end of what it printed."""
    past = world.past.get(run)
    if past is not None:
        outcome, detail = _how_it_ended(past.state, not math.isnan(past.first_start_s), output)
        return _told(world, past.job, past.placement, past.progress, seen, outcome, past.detail or detail)
    row = world.jobs.row(run)
    started_s = world.jobs.first_start_s.item(row)
    outcome = TrialOutcome.NOT_RUN if math.isnan(started_s) else TrialOutcome.MEASURED
    job, placement = world.jobs.jobs[row], world.jobs.placements[row]
    return _told(world, job, placement, world.progress.get(run), seen, outcome, "")


def _how_it_ended(state: JobState, has_run: bool, output: str) -> tuple[TrialOutcome, str]:
    if state is JobState.SUCCEEDED:
        return TrialOutcome.MEASURED, "it was done before its time was over"
    if state is JobState.CANCELLED:
        return (TrialOutcome.MEASURED if has_run else TrialOutcome.NOT_RUN), "it was cancelled"
    return (TrialOutcome.OUT_OF_MEMORY if speaks_of_memory(output) else TrialOutcome.FAILED), ""


def _told(
    world: World,
    job: Job,
    placement: Placement | None,
    progress: Progress | None,
    seen: Seen,
    outcome: TrialOutcome,
    detail: str,
) -> TrialMeasurement:
    speed = measured(progress) if progress is not None and outcome is TrialOutcome.MEASURED else None
    if speed is None and outcome is TrialOutcome.MEASURED:
        outcome = TrialOutcome.SILENT
    unit, batch, rate = speed or ("", 0, None)
    nodes, racks, gpu_type = _place(world, placement)
    return TrialMeasurement(
        run=job.id,
        gpus=job.size,
        outcome=outcome,
        application=job.application,
        gpu_type=gpu_type,
        nodes=nodes,
        racks=racks,
        unit=unit,
        batch=batch,
        units_per_s=rate,
        step_s=progress.step_s if progress is not None and rate is not None else None,
        memory_mib=seen.memory_mib,
        utilisation=seen.utilisation,
        detail=detail,
    )


def _place(world: World, placement: Placement | None) -> tuple[int, int, str]:
    if placement is None or placement.spans[0].node not in world.nodes.index:
        return 1, 1, ""
    footprint = footprint_of(world, placement)
    return footprint.nodes, footprint.racks, world.nodes.nodes[world.nodes.index[placement.spans[0].node]].gpu_type
