"""How fast each application ran at each size, as its jobs reported it: what new jobs of it start from.

From that it chooses how many GPUs a job with `num_nodes: auto` requests: the smallest size that gives nearly the
best speed. The best is searched where GPUs are still efficient, and not far beyond the measured sizes: an
extrapolated curve proves nothing.

Speeds are kept by application, GPU type, the unit that the job counts in (samples where it reports them, else
epochs, else steps) and its batch. Those can be compared that have the same batch in all, or the same batch on
each GPU. Everything is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from batuta.core.arrays import FloatArray
from batuta.core.cluster import Placement
from batuta.core.curve import SpeedCurve
from batuta.core.event import JobProgressed
from batuta.core.job import Job, JobId, Progress, SizeChoice
from batuta.core.job_table import Phase
from batuta.core.world import World
from batuta.prediction.scaling import FitCache, Footprint, SpeedMeasurements

MOST_SERIES = 1_000
MOST_SIZES = 64
MOST_JOBS = 16  # the newest jobs whose speeds are kept for one size
FEWEST_SIZES = 2  # with fewer sizes it is unknown how an application scales
MOST_FITS = 256  # fits that are kept for jobs that come again
ENOUGH_SPEED = 0.9  # of the best speed
LEAST_EFFICIENCY = 0.5  # speed for each GPU, relative to that at the smallest size; sizes below it are not the best
BEYOND_MEASURED = 2.0  # sizes up to so many times the largest that was measured, …
MOST_DOUBT = 0.25  # … whose speed is known as exactly as this: the standard deviation of its log

_Sizes = dict[Footprint, dict[JobId, float]]


class Series(NamedTuple):
    """What comparable speeds have in common."""

    application: str
    gpu_type: str
    unit: str
    batch: int = 0  # samples in a step; 0 when it is not known


@dataclass(frozen=True, slots=True)
class KnownSpeed:
    """How an application scales, by its earlier jobs."""

    rates: Mapping[Footprint, float]  # units per second
    jobs: int
    largest: int  # the most GPUs that were measured
    step_units: Mapping[int, float] = field(default_factory=dict)  # samples in a step by GPUs, where that is known
    fits: FitCache = field(default_factory=FitCache, compare=False)

    def curve(self, prior: SpeedCurve, largest: int) -> SpeedCurve:
        """The speed at each size up to `largest`, relative to one GPU."""
        scaling = self.fits.scaling(self._measured(prior, largest))
        assert scaling is not None  # there are rates
        return scaling.curve

    def doubt(self, prior: SpeedCurve, largest: int) -> FloatArray:
        """How unsure the speeds with 1, 2, … GPUs are: the standard deviation of their logs."""
        return self.fits.doubt(self._measured(prior, largest))

    def _measured(self, prior: SpeedCurve, largest: int) -> SpeedMeasurements:
        return SpeedMeasurements(prior, largest, self.rates, self.step_units)


class ApplicationHistory:
    """The speeds of all applications. Fed with every report of progress, after it was applied."""

    def __init__(self) -> None:
        self._series: dict[Series, _Sizes] = {}  # in the order of their last reports
        self._fits = FitCache(MOST_FITS)
        self.version = 0  # grows with every change

    def saw(self, world: World, event: JobProgressed) -> None:
        jobs = world.jobs
        if event.progress is None or event.job not in jobs:
            return
        row = jobs.row(event.job)
        job, placement = jobs.jobs[row], jobs.placements[row]
        found = measured(event.progress)
        if placement is None or found is None or jobs.phase_of(row) is not Phase.RUNNING or job.share:
            return
        unit, batch, rate = found
        node = world.nodes.nodes[world.nodes.index[placement.spans[0].node]]
        if job.application:
            series = Series(job.application, node.gpu_type, unit, batch)
            self.add(series, footprint_of(world, placement), event.job, rate)

    def add(self, series: Series, footprint: Footprint, job: JobId, rate: float) -> None:
        """Record the last speed that a job measured at a size."""
        sizes = self._series.pop(series, None) or {}
        self._series[series] = sizes
        own = sizes.pop(footprint, None) or {}
        sizes[footprint] = own
        own.pop(job, None)
        own[job] = rate
        _forget_oldest(self._series, MOST_SERIES)
        _forget_oldest(sizes, MOST_SIZES)
        _forget_oldest(own, MOST_JOBS)
        self.version += 1

    def of(self, job: Job) -> KnownSpeed | None:
        """Return how a job's application scales on GPUs that the job accepts; None when too little is known.

        Of comparable series, those with the most sizes decide; then those that reported last.
        """
        accepted = dict(job.gpu_types)
        own = {
            series: sizes
            for series, sizes in self._series.items()
            if series.application == job.application and (not accepted or series.gpu_type in accepted)
        }
        best = _Comparable()
        for found in _comparable(own):
            if _count(found.sizes) >= max(_count(best.sizes), FEWEST_SIZES):
                best = found
        if not best.sizes:
            return None
        return KnownSpeed(
            rates={footprint: median(own.values()) for footprint, own in best.sizes.items()},
            jobs=len({job for own in best.sizes.values() for job in own}),
            largest=max(footprint.gpus for footprint in best.sizes),
            step_units=best.batches,
            fits=self._fits,
        )

    def dump(self) -> list[Any]:
        return [
            [*series, [[*footprint, list(own.items())] for footprint, own in sizes.items()]]
            for series, sizes in self._series.items()
        ]

    def load(self, data: Any) -> None:
        """Add what `dump` returned to what is known. Raises ValueError for anything else."""
        try:
            for series, footprint, job, rate in _parts(data):
                if not 0 < rate < math.inf:
                    raise ValueError(f"a rate must be a finite number > 0, found {rate}")
                self.add(series, footprint, job, rate)
        except (TypeError, IndexError) as error:
            raise ValueError(f"not the speeds of applications: {error!r}") from error


@dataclass(slots=True)
class _Comparable:
    """Speeds that can be compared, and the samples of a step at each number of GPUs."""

    sizes: _Sizes = field(default_factory=dict)
    batches: dict[int, float] = field(default_factory=dict)


def _comparable(series: Mapping[Series, _Sizes]) -> Iterator[_Comparable]:
    """Yield series with equal batch per step; then with equal batch per GPU, where it grows with the GPUs."""
    by_gpu: dict[tuple[str, str, int], _Comparable] = {}
    for one, sizes in series.items():
        yield _Comparable(sizes, {size.gpus: float(one.batch) for size in sizes if one.batch})
        for size, own in sizes.items():
            each, rest = divmod(one.batch, size.gpus)
            if each and not rest:
                found = by_gpu.setdefault((one.gpu_type, one.unit, each), _Comparable())
                found.sizes[size], found.batches[size.gpus] = own, float(one.batch)
    yield from (found for found in by_gpu.values() if len(set(found.batches.values())) > 1)


def measured(progress: Progress) -> tuple[str, int, float] | None:
    """Unit, batch and units per second of a report; None when it has no speed."""
    step_s, samples_per_s, epoch_s = progress.step_s, progress.samples_per_s, progress.epoch_s
    if samples_per_s is not None and 0 < samples_per_s < math.inf:
        batch = round(samples_per_s * step_s) if step_s and 0 < samples_per_s * step_s < 1e9 else 0
        return "samples", batch, samples_per_s
    if epoch_s is not None and 0 < epoch_s < math.inf:
        return "epochs", 0, 1.0 / epoch_s
    if step_s is not None and 0 < step_s < math.inf:
        return "steps", 0, 1.0 / step_s
    return None


def footprint_of(world: World, placement: Placement) -> Footprint:
    """Return the GPUs of a placement and how far they lie apart."""
    racks = world.nodes.racks(placement) if len(placement.spans) > 1 else 1
    return Footprint(placement.size, min(len(placement.nodes), 2), min(racks, 2))


def _forget_oldest(table: dict[Any, Any], most: int) -> None:
    if len(table) > most:
        del table[next(iter(table))]


def _count(sizes: Mapping[Footprint, object]) -> int:
    return len({footprint.gpus for footprint in sizes})


def _parts(data: Any) -> Iterator[tuple[Series, Footprint, JobId, float]]:
    for application, gpu_type, unit, batch, sizes in data:
        series = Series(str(application), str(gpu_type), str(unit), int(batch))
        for gpus, nodes, racks, gpu_speed, own in sizes:
            footprint = Footprint(int(gpus), int(nodes), int(racks), float(gpu_speed))
            for job, rate in own:
                yield series, footprint, str(job), float(rate)


def choose_size(job: Job, known: KnownSpeed | None, most: int) -> SizeChoice:
    """Return the size to ask for among those that a job may have, up to `most` GPUs, and why."""
    sizes = [n for n in legal_sizes(job) if n <= most] or [job.min]
    if known is None:
        return SizeChoice(sizes[0], application=job.application)
    curve = known.curve(job.curve, sizes[-1])
    doubt = known.doubt(job.curve, sizes[-1]).tolist()
    sure = [n for n in sizes if n == sizes[0] or doubt[min(n, len(doubt)) - 1] <= MOST_DOUBT]
    least, reach = LEAST_EFFICIENCY * curve.at(sizes[0]) / sizes[0], BEYOND_MEASURED * known.largest
    within = [n for n in sure if n == sizes[0] or (n <= reach and curve.at(n) / n >= least)]
    best = max(within, key=lambda n: (curve.at(n), -n))
    chosen = next(n for n in within if curve.at(n) >= ENOUGH_SPEED * curve.at(best))
    return SizeChoice(chosen, best, curve.at(chosen) / curve.at(best), job.application, known.jobs)


def settle(job: Job, choice: SizeChoice, *, for_good: bool) -> Job:
    """The job with the size that was chosen; `for_good` where it cannot be resized later."""
    gpus = choice.gpus
    if not for_good:
        return replace(job, size=gpus, size_choice=choice)
    return replace(job, size=gpus, min=gpus, max=gpus, sizes=None, size_choice=choice)


def legal_sizes(job: Job) -> Sequence[int]:
    """All sizes that a job may have, ascending."""
    return job.sizes or range(job.min, job.max + 1, job.gpus_per_replica or 1)
