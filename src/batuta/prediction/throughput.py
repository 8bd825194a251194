"""Measures the reports of a run: which unit counts progress, windows of time, the rate at each size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from batuta.core.curve import SpeedCurve
from batuta.core.job import Progress

MOST_WINDOWS = 64
SHORTEST_WINDOW_S = 2.0
LONGEST_WINDOW_S = 60.0
OUTLIER = 4.0
"""A window so many times slower or faster than the median is no measurement: a machine slept, a clock jumped.
What differs by less is part of the job: without its pauses every estimate would be too good."""
LEAST_RATE = 1e-30  # so that one may divide by any rate
ENOUGH_WINDOWS = 3  # windows after the warm-up with which those of the warm-up are no longer needed
WARMUP_S = 30.0  # after its first report a run is warming up for so long; a window ten times as long hardly feels it
SKEW_S = 2.0  # a clock that goes back by less is only jitter
SILENT_S = 60.0  # after so long without the rank that is followed, another that has got further takes its place
BEYOND_ALL = 1e18  # no job counts this far; a larger number is a mistake
LEAST_NOISE = 1e-6  # a smaller gradient noise scale is a mistake too


class Sample(NamedTuple):
    """One report of a training script. None: not said. A tuple: a restarted server makes hundreds of thousands."""

    time_s: float  # by the clock of the process that reports; the time of reading where the report has none
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None  # epochs finished so far
    total_epochs: float | None = None
    samples: float | None = None
    loss: float | None = None
    rank: int | None = None
    noise_scale: float | None = None  # the gradient noise scale: from so many samples in a step on more bring little


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """Where a job is and how fast. A `curve` or `restart_s` of None has not changed."""

    progress: Progress
    remaining_s: float | None = None  # on one GPU of the reference type; None: the World's own estimate stands
    curve: SpeedCurve | None = None
    restart_s: float | None = None


@dataclass(frozen=True, slots=True)
class SizeSpeed:
    """Speed at one size. None: not known, because the job does not report what it takes."""

    units_per_s: float
    step_s: float | None
    samples_per_s: float | None
    epoch_s: float | None


class Window(NamedTuple):
    """A stretch of a run between two reports, and what was done in it."""

    seconds: float
    units: float
    steps: float | None = None
    samples: float | None = None
    epochs: float | None = None
    is_early: bool = False  # part of the warm-up after a start: caches are cold, kernels are being chosen


@dataclass(slots=True)
class _Ratio:
    """How much of one count goes with one unit of work."""

    above: float = 0.0
    below: float = 0.0

    def add(self, count: float | None, units: float) -> None:
        if count is not None and 0 <= count < math.inf:
            self.above += count
            self.below += units

    def value(self) -> float | None:
        return self.above / self.below if self.below > 0 and self.above > 0 else None


@dataclass(slots=True)
class _Marks:
    """Units per epoch, from one end of an epoch to another: between them the count stands still."""

    has_begun: bool = False
    open_units: float = 0.0
    units: float = 0.0
    epochs: float = 0.0

    def add(self, epochs: float | None, units: float) -> None:
        if epochs is None or not 0 <= epochs < math.inf:
            return
        self.open_units += units
        if epochs > 0:
            if self.has_begun:
                self.units += self.open_units
                self.epochs += epochs
            self.has_begun, self.open_units = True, 0.0

    def value(self) -> float | None:
        return self.units / self.epochs if self.epochs > 0 else None


@dataclass(slots=True, eq=False)
class SizeRecord:
    """Windows at one size, in bounded memory: a short run is seen finely, a long one by its last hour.

    When there are too many, neighbours are joined and new windows last twice as long, up to a minute; then
    the oldest go. Long windows also let the pauses of evaluations and checkpoints count: they are part of
    the speed, and a median of single steps would leave them out.
    """

    window_s: float = SHORTEST_WINDOW_S
    version: int = 0  # grows with every change
    _early: list[tuple[float, float]] = field(default_factory=list)
    _settled: list[tuple[float, float]] = field(default_factory=list)
    _steps: _Ratio = field(default_factory=_Ratio)
    _samples: _Ratio = field(default_factory=_Ratio)
    _epochs: _Marks = field(default_factory=_Marks)

    def add(self, window: Window) -> None:
        self.version += 1
        self._steps.add(window.steps, window.units)
        self._samples.add(window.samples, window.units)
        self._epochs.add(window.epochs, window.units)
        kept = self._early if window.is_early else self._settled
        kept.append((window.units, window.seconds))
        if len(kept) <= MOST_WINDOWS:
            return
        if window.is_early or self.window_s * 2 > LONGEST_WINDOW_S:
            del kept[0]
        else:
            self.window_s *= 2
            pairs = zip(kept[::2], kept[1::2], strict=False)
            kept[:] = [(a[0] + b[0], a[1] + b[1]) for a, b in pairs] + kept[len(kept) & ~1 :]

    def rate(self) -> float | None:
        """Units per second over all windows that make sense; None until one was measured."""
        windows = self._settled if len(self._settled) >= ENOUGH_WINDOWS else self._early + self._settled
        if not windows:
            return None
        middle = median([units / seconds for units, seconds in windows])
        sound = [w for w in windows if middle <= OUTLIER * w[0] / w[1] <= OUTLIER**2 * middle] or windows
        return max(LEAST_RATE, sum(units for units, _ in sound) / sum(seconds for _, seconds in sound))

    def speed(self, units_per_epoch: float | None) -> SizeSpeed | None:
        """The rate in everything that the job counts; `units_per_epoch` where the totals tell it."""
        rate = self.rate()
        if rate is None:
            return None
        steps, samples = self._steps.value(), self._samples.value()
        epoch = units_per_epoch or self._epochs.value()
        return SizeSpeed(
            rate,
            1 / (rate * steps) if steps else None,
            rate * samples if samples is not None else None,
            epoch / rate if epoch else None,
        )

    def units_per_step(self) -> float | None:
        """How much work a step is; None where the job does not count them."""
        steps = self._steps.value()
        return 1 / steps if steps is not None else None

    def samples_per_unit(self) -> float | None:
        return self._samples.value()

    def rescale(self, factor: float) -> None:
        """Counts all work in another measure, of which `factor` make one of the old."""
        self.version += 1
        for windows in (self._early, self._settled):
            windows[:] = [(units * factor, seconds) for units, seconds in windows]
        self._steps.below *= factor
        self._samples.below *= factor
        self._epochs.open_units *= factor
        self._epochs.units *= factor


class ReportEffect(Enum):
    """What a report meant. From the second on it is known how much lies between two."""

    NOTHING = auto()
    FIRST = auto()
    SECOND = auto()
    MOVED = auto()


@dataclass(slots=True, eq=False)
class RunTrack:
    """Follows one run at one size. All ranks do the same steps: one is enough, and has one clock."""

    began_s: float
    _record: SizeRecord
    rank: int | None = None
    has_reported: bool = False
    units: float = 0.0  # how far it is; reached at `last_s`
    last_s: float = math.inf
    due_s: float = -math.inf  # a report before that only moves the open window's end: a short way for the caller
    first_s: float = 0.0
    first_units: float = 0.0
    gap_s: float = 0.0  # between the first report and the second; so is `gap_units`
    gap_units: float = 0.0
    _open: Sample | None = None
    _open_s: float = 0.0
    _open_units: float = 0.0
    _doubt: tuple[Sample, float, float] | None = None  # a report with a smaller count, that count, and how far it was

    def see(self, sample: Sample, units: float) -> ReportEffect:
        """Takes one report in; `units` is its count."""
        time_s = sample.time_s
        if not self.has_reported:
            self.has_reported, self.rank = True, sample.rank
            self._begin(sample, units)
            return ReportEffect.FIRST
        if sample.rank != self.rank:
            if units <= self.units or time_s - self.last_s < SILENT_S:
                return ReportEffect.NOTHING
            self.rank = sample.rank
        if units > self.units:
            return self._advance(sample, units)
        if units < self.units and time_s > self.last_s:
            return self._doubt_or_fall(sample, units)
        return ReportEffect.NOTHING

    def _begin(self, sample: Sample, units: float) -> None:
        self.first_s, self.first_units = sample.time_s, units
        self.gap_units = self.gap_s = 0.0
        self._anchor(sample, sample.time_s, units)
        self.due_s = -math.inf

    def _anchor(self, sample: Sample, time_s: float, units: float) -> None:
        self._open, self._open_s, self._open_units = sample, time_s, units
        self.last_s, self.units = time_s, units
        length_s = SHORTEST_WINDOW_S if self._is_warming_up() else self._record.window_s
        self.due_s = self._open_s + length_s

    def _is_warming_up(self) -> bool:
        return self._open_s < self.first_s + WARMUP_S

    def _advance(self, sample: Sample, units: float) -> ReportEffect:
        if sample.time_s < self.last_s - SKEW_S:
            # The clock was set back: the real time is unknown.
            if self.gap_units:
                self.first_s += sample.time_s - self.last_s
                self._anchor(sample, sample.time_s, units)
            else:
                self._begin(sample, units)
            return ReportEffect.MOVED
        self.last_s, self.units = max(self.last_s, sample.time_s), units
        is_second = not self.gap_units
        if is_second:
            self.gap_units, self.gap_s = units - self.first_units, self.last_s - self.first_s
            self.due_s = self._open_s + SHORTEST_WINDOW_S
        if self.last_s >= self.due_s:
            self._close(sample)
        return ReportEffect.SECOND if is_second else ReportEffect.MOVED

    def _close(self, sample: Sample) -> None:
        start = self._open
        assert start is not None
        seconds = self.last_s - self._open_s
        self._record.add(
            Window(
                seconds,
                self.units - self._open_units,
                _difference(start.step, sample.step),
                _difference(start.samples, sample.samples),
                _difference(start.epoch, sample.epoch),
                self._is_warming_up() and seconds < 10 * WARMUP_S,
            )
        )
        self._anchor(sample, self.last_s, self.units)

    def _doubt_or_fall(self, sample: Sample, units: float) -> ReportEffect:
        """One smaller count may be a line that came late; a second that goes on from it is a new start."""
        doubt = self._doubt
        if doubt is None or doubt[2] != self.units or units < doubt[1]:
            self._doubt = sample, units, self.units
            return ReportEffect.NOTHING
        start, start_units, _ = doubt
        if units == start_units or sample.time_s <= start.time_s:
            return ReportEffect.NOTHING
        self._doubt = None
        self._begin(start, start_units)
        self._advance(sample, units)
        return ReportEffect.MOVED


def _difference(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


class Unit(Enum):
    """Best first: steps of a known total, epochs of a known total; samples, steps, epochs without one.

    Without a total, samples go first: a step at twice the GPUs is often a batch twice as large.
    """

    STEPS_OF_TOTAL = ("step", "total_steps")
    EPOCHS_OF_TOTAL = ("epoch", "total_epochs")
    SAMPLES = ("samples", "")
    STEPS = ("step", "")
    EPOCHS = ("epoch", "")

    def __init__(self, field: str, total_field: str) -> None:
        self.field = field
        self.total_field = total_field
        self.value_of: Callable[[Sample], float | None] = attrgetter(field)  # of a sample, unchecked

    def count(self, sample: Sample) -> float | None:
        """Return what a sample says in this unit, if that is a count."""
        value = self.value_of(sample)
        return value if value is not None and 0 <= value < BEYOND_ALL else None


@dataclass(slots=True, eq=False)
class LatestReport:
    """The last value of each kind: a script need not repeat in every report what it has said once."""

    time_s: float = -math.inf
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    loss: float | None = None
    noise_scale: float | None = None
    has_update: bool = False  # set by every new report; the meter resets it when it publishes an update

    def note(self, sample: Sample) -> None:
        time_s, step, total_steps, epoch, total_epochs, _, loss, _, noise_scale = sample
        if time_s != self.time_s:
            self.time_s, self.has_update = time_s, True
        if step is not None and 0 <= step < BEYOND_ALL:
            self.step = step
        if epoch is not None and 0 <= epoch < BEYOND_ALL:
            self.epoch = epoch
        if loss is not None and -math.inf < loss < math.inf:
            self.loss = loss
        if is_total(total_steps):
            self.total_steps = total_steps
        if is_total(total_epochs):
            self.total_epochs = total_epochs
        if noise_scale is not None and LEAST_NOISE < noise_scale < BEYOND_ALL:
            self.noise_scale = noise_scale

    def total(self, unit: Unit | None) -> float | None:
        if unit is Unit.STEPS_OF_TOTAL:
            return self.total_steps
        return self.total_epochs if unit is Unit.EPOCHS_OF_TOTAL else None

    def units_per_epoch(self, unit: Unit | None) -> float | None:
        """As far as the totals tell."""
        if unit in (Unit.EPOCHS_OF_TOTAL, Unit.EPOCHS):
            return 1.0
        total = self.total(unit)
        return total / self.total_epochs if total and self.total_epochs else None

    def better_unit(self, sample: Sample, known: Unit | None) -> Unit | None:
        """The best unit that this sample has a count in, if it is better than the known one."""
        for unit in BEST_FIRST:
            if unit is known:
                return None
            if unit.count(sample) is None:
                continue
            if not unit.total_field or self.total(unit) or is_total(getattr(sample, unit.total_field)):
                return unit
        return None


def reader_of(unit: Unit | None) -> Callable[[Sample], float | None]:
    """The fastest way to a sample's number in this unit; it is not checked."""
    return unit.value_of if unit is not None else lambda _: None


def is_total(value: float | None) -> bool:
    return value is not None and 0 < value < BEYOND_ALL


BEST_FIRST = tuple(Unit)
