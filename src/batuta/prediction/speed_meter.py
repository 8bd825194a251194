"""How fast one job runs at each size, how far it is and what is left, from its reports."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from batuta.core.curve import SpeedCurve
from batuta.core.job import Job, Progress
from batuta.prediction.scaling import LONGEST_CURVE, FitCache, Footprint, Scaling, SpeedMeasurements, fit_all
from batuta.prediction.throughput import (
    BEYOND_ALL,
    SKEW_S,
    LatestReport,
    ProgressUpdate,
    ReportEffect,
    RunTrack,
    Sample,
    SizeRecord,
    SizeSpeed,
    Unit,
    reader_of,
)

_NOISE_STEPS = 2  # a noise scale is rounded to so many steps per doubling: it is noisy itself
REMEMBERED = 9  # the median of so many: one slow disk does not count, and a job that has changed is soon known again
EVERY_S = 5.0
LEAST_FRACTION = 0.01
LEAST_CURVE = 0.02
LEAST_RESTART = 0.05


class TransitionMeter:
    """Measures what a restart costs this job, from the steps of a transition as they happen.

    Steps may be missing: a crash is a stop without a request. Times that go backwards are not used. How long a
    job waits between its stop and its next start is the scheduler's doing and no part of it.
    """

    __slots__ = ("_asked_s", "_leave", "_start", "_started_s")

    def __init__(self) -> None:
        self._asked_s: float | None = None
        self._started_s: float | None = None
        self._leave: deque[float] = deque(maxlen=REMEMBERED)
        self._start: deque[float] = deque(maxlen=REMEMBERED)

    def asked(self, time_s: float) -> None:
        """The job was asked for a checkpoint, because it is to stop."""
        if self._asked_s is None:
            self._asked_s = time_s

    def stopped(self, time_s: float) -> None:
        if self._asked_s is not None and time_s >= self._asked_s:
            self._leave.append(time_s - self._asked_s)
        self._asked_s = self._started_s = None

    def started(self, time_s: float) -> None:
        self._asked_s, self._started_s = None, time_s

    def progressed(self, time_s: float) -> None:
        """The run that was started last makes progress since then; said once per run."""
        if self._started_s is not None and time_s >= self._started_s:
            self._start.append(time_s - self._started_s)
        self._started_s = None

    @property
    def restart_s(self) -> float | None:
        """Seconds without progress at a resize: from asking until stopped, from start until progress.

        None until a start was measured; until a stop was asked for, that part counts as nothing.
        """
        if not self._start:
            return None
        return median(self._start) + (median(self._leave) if self._leave else 0.0)


@dataclass(slots=True, eq=False)
class LearnedScaling:
    """Turns a job's records into its curve. Asked again without news it remembers its answer."""

    prior: SpeedCurve
    largest: int
    fits: FitCache = field(default_factory=FitCache)
    asked: tuple[float | None, ...] = ()  # empty after all records have begun anew, in another unit
    answer: Scaling | None = None

    def of(self, records: Mapping[Footprint, SizeRecord], noise_samples: float | None) -> Scaling | None:
        """How the job scales; None until something was measured. The noise scale counts in samples."""
        asked = self._question(records, noise_samples)
        if asked != self.asked:
            self.answer, self.asked = self.fits.scaling(self._measured(records, noise_samples)), asked
        return self.answer

    def to_fit(
        self, records: Mapping[Footprint, SizeRecord], noise_samples: float | None
    ) -> Iterator[tuple[FitCache, SpeedMeasurements]]:
        """What `of` would have to fit, so that it can be done together with that of others."""
        if len(records) > 1 and self._question(records, noise_samples) != self.asked:
            yield self.fits, self._measured(records, noise_samples)

    def _question(
        self, records: Mapping[Footprint, SizeRecord], noise_samples: float | None
    ) -> tuple[float | None, ...]:
        return *(one.version for one in records.values()), self.largest, noise_samples

    def _measured(self, records: Mapping[Footprint, SizeRecord], noise_samples: float | None) -> SpeedMeasurements:
        rates: dict[Footprint, float] = {}
        steps: dict[int, float] = {}
        for footprint, record in records.items():
            rate, step_units = record.rate(), record.units_per_step()
            if rate is not None:
                rates[footprint] = rate
                if step_units is not None:
                    steps[footprint.gpus] = step_units
        # A size that does not say how much a step is makes the others no help.
        known = steps if len(steps) == len({footprint.gpus for footprint in rates}) else {}
        return SpeedMeasurements(self.prior, self.largest, rates, known, _noise_units(records, noise_samples))


def _noise_units(records: Mapping[Footprint, SizeRecord], noise_samples: float | None) -> float | None:
    samples = [found for record in records.values() if (found := record.samples_per_unit()) is not None]
    if noise_samples is None or not samples:
        return None
    rounded: float = 2.0 ** (round(_NOISE_STEPS * math.log2(noise_samples)) / _NOISE_STEPS)
    return rounded / median(samples)


def differs(a: SpeedCurve, b: SpeedCurve, tolerance: float) -> bool:
    """Whether any speed of the two differs by more than this share."""
    if len(a.speeds) != len(b.speeds):
        return True
    left = np.array((*a.speeds[1:], a.across_nodes))
    right = np.array((*b.speeds[1:], b.across_nodes))
    return bool(np.any(np.abs(left - right) > tolerance * np.maximum(left, right)))


@dataclass(slots=True, eq=False)
class UpdateThrottle:
    """Decides by what was published last when an update is worth an event: reports must not fill the journal."""

    curve: SpeedCurve
    restart_s: float
    at_s: float | None = None
    fraction: float | None = None

    def new_curve(self, curve: SpeedCurve) -> SpeedCurve | None:
        """Return the curve if it differs from the published one, which it then replaces."""
        if not differs(curve, self.curve, LEAST_CURVE):
            return None
        self.curve = curve
        return curve

    def new_restart_s(self, restart_s: float | None) -> float | None:
        if restart_s is None or abs(restart_s - self.restart_s) <= LEAST_RESTART * self.restart_s:
            return None
        self.restart_s = restart_s
        return restart_s

    def is_due(self, now_s: float, fraction: float | None) -> bool:
        """Whether time or progress alone are reason enough."""
        if self.at_s is None or not 0 <= now_s - self.at_s < EVERY_S:
            return True
        if fraction is None or self.fraction is None:
            return fraction is not self.fraction
        # A report in every hundredth of the whole is meant, not one in most of them.
        return abs(fraction - self.fraction) >= LEAST_FRACTION - 1e-9


class SpeedMeter:
    """Measures one job from its runs and reports, in the order in which they happen.

    - **Work** is counted in the best unit that the job reports (see `Unit`). Without a total there is no
      fraction and no estimate of what remains: the World keeps its own.
    - **Time** is that of the reports. From the start of a run to its first report nothing is measured, and
      the first half minute after it counts only until there is something better.
    - A **total that changes with the size** (steps of larger batches) means the same work in other steps:
      what was measured is counted anew. At the same size it means that the job became longer or shorter.
    - **Until something is measured**, the job's own curve, work and restart time stand. `job` is the one that
      was submitted: with a curve from this meter as its prior it would learn from itself.
    """

    def __init__(self, job: Job) -> None:
        self.transitions = TransitionMeter()  # the caller reports requests for checkpoints; the meter reports all else
        self._learned = LearnedScaling(job.curve, min(job.max, LONGEST_CURVE))
        self._work_s = job.work_s
        self._records: dict[Footprint, SizeRecord] = {}
        self._footprint: Footprint | None = None  # of the current run, or the last one
        self._size_changed = False
        self._run: RunTrack | None = None
        self._before: float | None = None  # how far the job was before the first report of the current run
        self._waiting: list[Sample] = []  # reports without a run: late ones of the last, or early ones of the next
        self._ahead: float | None = None  # how far the job is by them
        self._unit: Unit | None = None
        self._said = LatestReport()
        self._throttle = UpdateThrottle(job.curve, job.restart_s)

    def began(self, time_s: float, gpus: int, nodes: int = 1, *, racks: int = 1, gpu_speed: float = 1.0) -> None:
        """A run at this size begins: its processes were started, or a running job has changed its members."""
        footprint = Footprint(gpus, min(nodes, 2), min(racks, 2), gpu_speed)
        if self._run is not None and (self._run.began_s, self._footprint) == (time_s, footprint):
            return
        waiting = self._leave_run()
        self._size_changed = self._footprint is not None and self._footprint.gpus != gpus
        self._footprint = footprint
        self._run = RunTrack(time_s, self._records.setdefault(footprint, SizeRecord()))
        self.transitions.started(time_s)
        self.add(waiting)

    def ended(self, time_s: float) -> None:
        """All processes of the run are gone. Reports from now on wait for a run that they belong to."""
        if self._run is not None:
            self._leave_run()
        self.transitions.stopped(time_s)

    def add(self, samples: Iterable[Sample]) -> None:
        """Takes reports in, in the order in which they were written. Those known already change nothing."""
        run, unit = self._run, self._unit
        note, value_of = self._said.note, reader_of(unit)
        for sample in samples:
            value = value_of(sample)
            # Most reports lie within an open window, and only move its end.
            if (
                run is not None
                and value is not None
                and run.units < value < BEYOND_ALL
                and run.last_s <= sample.time_s < run.due_s
                and sample.rank == run.rank
            ):
                run.last_s, run.units = sample.time_s, value
                note(sample)
            else:
                self._take(sample)
                if unit is not self._unit:
                    run, unit, value_of = self._run, self._unit, reader_of(self._unit)

    def changed(self, job: Job) -> None:
        """The user changed the request: the curve has another end."""
        largest = min(job.max, LONGEST_CURVE)
        if largest != self._learned.largest:
            self._learned.largest = largest
            # The World may have gone back to the prior, where that is longer.
            self._throttle.curve = self._learned.prior

    @property
    def units(self) -> float | None:
        """How far the job is, in the unit that its progress is counted in."""
        run = self._run
        if run is not None and run.has_reported:
            return run.units
        return max((u for u in (self._before, self._ahead) if u is not None), default=None)

    @property
    def fraction(self) -> float | None:
        """The share of the work that is done; None without a total."""
        total, units = self._said.total(self._unit), self.units
        return None if total is None or units is None else min(1.0, units / total)

    def curve(self) -> SpeedCurve:
        """Speed by GPU count: measured, fitted, or the prior's shape."""
        scaling = self._scaling()
        return scaling.curve if scaling else self._learned.prior

    def speed(self) -> SizeSpeed | None:
        """Speed of the current run's size, or the last one's; None until measured."""
        record = self._records.get(self._footprint) if self._footprint else None
        return record.speed(self._said.units_per_epoch(self._unit)) if record else None

    def remaining_s(self) -> float | None:
        """Seconds left on one GPU of the reference type, as of the last report; None without a total.

        Divided by the World's speed for the size that the job runs at, it is the time that is really left
        there, even where the curve that the World goes by is a little off.
        """
        total, units, fraction = self._said.total(self._unit), self.units, self.fraction
        if total is None or units is None or fraction is None:
            return None
        one_gpu = self._one_gpu_rate(self._throttle.curve)
        return (1.0 - fraction) * self._work_s if one_gpu is None else max(0.0, total - units) / one_gpu

    def news(self, now_s: float, *, at_last: bool = False) -> ProgressUpdate | None:
        """What is worth an event; None when too little has changed. `at_last`: any change, as no more will come."""
        if not self._said.has_update:
            return None
        fraction, throttle, said = self.fraction, self._throttle, self._said
        curve = throttle.new_curve(self.curve())
        if curve is None and not at_last and not throttle.is_due(now_s, fraction):
            return None
        said.has_update = False
        throttle.at_s, throttle.fraction = now_s, fraction
        speed = self.speed()
        progress = Progress(
            fraction=fraction,
            step=said.step,
            total_steps=said.total_steps,
            epoch=said.epoch,
            loss=said.loss,
            step_s=speed.step_s if speed else None,
            samples_per_s=speed.samples_per_s if speed else None,
            epoch_s=speed.epoch_s if speed else None,
        )
        restart_s = throttle.new_restart_s(self.transitions.restart_s)
        return ProgressUpdate(progress, self.remaining_s(), curve, restart_s)

    def _take(self, sample: Sample) -> None:
        """The long way of a report: everything but one more step within an open window."""
        if not math.isfinite(sample.time_s):
            return
        self._choose_unit(sample)
        run, said = self._run, self._said
        units = self._unit.count(sample) if self._unit else None
        if units is None:
            if sample.time_s >= said.time_s:
                said.note(sample)
            return
        if run is None:
            self._waiting.append(sample)
            self._ahead = units if self._ahead is None else max(self._ahead, units)
            said.note(sample)
            return
        if sample.time_s < run.began_s - SKEW_S:
            # From before the run: it says how far the job was, and nothing about speed.
            if not run.has_reported and (self._before is None or units > self._before):
                self._before = units
                said.note(sample)
            return
        seen = run.see(sample, units)
        if seen is ReportEffect.NOTHING:
            # The same step once more may still bring a loss or a metric with it.
            if units == run.units and sample.rank == run.rank and sample.time_s >= said.time_s:
                said.note(sample)
            return
        total = said.total(self._unit)
        said.note(sample)
        if seen is ReportEffect.FIRST and self._size_changed:
            self._count_anew(total, said.total(self._unit))
        elif seen is ReportEffect.SECOND:
            self._arrive(run)

    def _choose_unit(self, sample: Sample) -> None:
        """Takes a better unit as soon as the job reports in it, and forgets what was measured in another."""
        known = self._unit
        better = self._said.better_unit(sample, known)
        if better is None:
            return
        self._unit = better
        if known is not None and known.field != better.field:
            self._before = self._ahead = None
            self._learned.asked = ()
            self._records = {footprint: SizeRecord() for footprint in self._records}
            if self._run is not None and self._footprint is not None:
                self._run = RunTrack(self._run.began_s, self._records[self._footprint])

    def _count_anew(self, old_total: float | None, new_total: float | None) -> None:
        if old_total and new_total and old_total != new_total:
            factor = new_total / old_total
            for record in self._records.values():
                record.rescale(factor)
            if self._before is not None:
                self._before *= factor

    def _arrive(self, run: RunTrack) -> None:
        """Finds out when a run's work really began: at its first report some of it was done already."""
        before, first, gap = self._before or 0.0, run.first_units, run.gap_units
        advance = first - before if 0 < first - before < gap else gap
        self.transitions.progressed(max(run.began_s, run.first_s - run.gap_s * advance / gap))

    def _leave_run(self) -> list[Sample]:
        """Ends the run, if there is one; returns the reports that waited for the next."""
        if self._run is not None and self._run.has_reported:
            self._before = self._run.units
        waiting, self._waiting, self._ahead, self._run = self._waiting, [], None, None
        return waiting

    def _scaling(self) -> Scaling | None:
        return self._learned.of(self._records, self._said.noise_scale)

    def _one_gpu_rate(self, curve: SpeedCurve) -> float | None:
        """Units per second on one GPU of the reference type, such that the curve is right for this size."""
        footprint = self._footprint
        rate = self._records[footprint].rate() if footprint else None
        if footprint is None or rate is None:
            scaling = self._scaling()
            return scaling.units_per_s if scaling else None
        speed = curve.at(footprint.gpus) * curve.spread(footprint.nodes, footprint.racks) * footprint.gpu_speed
        return rate / speed if speed > 0 else None


def fit_together(meters: Iterable[SpeedMeter]) -> None:
    """Fits the curves of many jobs side by side, before each is asked for its news: it is much faster."""
    fit_all(one for meter in meters for one in meter._learned.to_fit(meter._records, meter._said.noise_scale))


@dataclass(frozen=True, slots=True)
class Run:
    """One run at one size, and how it was brought to its end. None: that did not happen."""

    began_s: float
    gpus: int
    nodes: int = 1
    racks: int = 1
    gpu_speed: float = 1.0
    asked_s: float | None = None
    checkpointed_s: float | None = None
    stopped_s: float | None = None


def replay(meter: SpeedMeter, runs: Iterable[Run], samples: Sequence[Sample]) -> None:
    """Feed a new meter with all runs in turn, each with its samples (in file order).

    A run that still goes on may be the last one here, without an end, or be added to the meter afterwards.
    """
    ordered = sorted(runs, key=lambda run: run.began_s)
    limits_s = (*(run.began_s for run in ordered), math.inf)
    at = _feed(meter, samples, 0, limits_s[0])
    for run, until_s in zip(ordered, limits_s[1:], strict=True):
        meter.began(run.began_s, run.gpus, run.nodes, racks=run.racks, gpu_speed=run.gpu_speed)
        stopped_s = math.inf if run.stopped_s is None else run.stopped_s + SKEW_S
        at = _feed(meter, samples, at, min(until_s, stopped_s))
        if run.asked_s is not None:
            meter.transitions.asked(run.asked_s)
        if run.stopped_s is not None:
            meter.ended(run.stopped_s)
            at = _feed(meter, samples, at, until_s)


def _feed(meter: SpeedMeter, samples: Sequence[Sample], start: int, until_s: float) -> int:
    """Feeds the samples before `until_s`; returns the place of the first one that is not."""
    end = len(samples)
    if until_s < math.inf:
        end = next((i for i in range(start, end) if samples[i].time_s >= until_s), end)
    meter.add(samples[start:end])
    return end
