"""What was measured at one size: stretches of time, the work done in them, the rate they add up to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

MOST_WINDOWS = 64
SHORTEST_WINDOW_S = 2.0
LONGEST_WINDOW_S = 60.0
OUTLIER = 4.0
"""A window so many times slower or faster than the median is no measurement: a machine slept, a clock jumped.
What differs by less is part of the job: without its pauses every estimate would be too good."""
LEAST_RATE = 1e-30
"""So that one may divide by any rate."""
ENOUGH = 3
"""Windows after the warm-up with which those of the warm-up are no longer needed."""


@dataclass(frozen=True, slots=True)
class SizeSpeed:
    """Speed at one size. None: not known, because the job does not report what it takes."""

    units_per_s: float
    step_s: float | None
    samples_per_s: float | None
    epoch_s: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run between two reports, and what was done in it."""

    seconds: float
    units: float
    steps: float | None = None
    samples: float | None = None
    epochs: float | None = None
    is_early: bool = False
    """Part of the warm-up after a start: caches are cold, kernels are being chosen."""


class SizeRecord:
    """Windows at one size, in bounded memory: a short run is seen finely, a long one by its last hour.

    When there are too many, neighbours are joined and new windows last twice as long, up to a minute; then
    the oldest go. Long windows also let the pauses of evaluations and checkpoints count: they are part of
    the speed, and a median of single steps would leave them out.
    """

    __slots__ = ("_early", "_epochs", "_samples", "_settled", "_steps", "version", "window_s")

    def __init__(self) -> None:
        self.window_s = SHORTEST_WINDOW_S
        self.version = 0
        """Grows with every change."""
        self._early: list[tuple[float, float]] = []
        self._settled: list[tuple[float, float]] = []
        self._steps = _Ratio()
        self._samples = _Ratio()
        self._epochs = _Marks()

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
        windows = self._settled if len(self._settled) >= ENOUGH else self._early + self._settled
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
        self._epochs.rescale(factor)


class _Ratio:
    """How much of one count goes with one unit of work."""

    __slots__ = ("above", "below")

    def __init__(self) -> None:
        self.above = 0.0
        self.below = 0.0

    def add(self, count: float | None, units: float) -> None:
        if count is not None and 0 <= count < math.inf:
            self.above += count
            self.below += units

    def value(self) -> float | None:
        return self.above / self.below if self.below > 0 and self.above > 0 else None


class _Marks:
    """Units per epoch, from one end of an epoch to another: between them the count stands still."""

    __slots__ = ("_epochs", "_has_begun", "_open_units", "_units")

    def __init__(self) -> None:
        self._has_begun = False
        self._open_units = 0.0
        self._units = 0.0
        self._epochs = 0.0

    def add(self, epochs: float | None, units: float) -> None:
        if epochs is None or not 0 <= epochs < math.inf:
            return
        self._open_units += units
        if epochs > 0:
            if self._has_begun:
                self._units += self._open_units
                self._epochs += epochs
            self._has_begun, self._open_units = True, 0.0

    def value(self) -> float | None:
        return self._units / self._epochs if self._epochs > 0 else None

    def rescale(self, factor: float) -> None:
        self._open_units *= factor
        self._units *= factor
