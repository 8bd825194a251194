"""What a job said last, and in which of its numbers progress is counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from operator import attrgetter

from batuta.prediction.sample import Sample

BEYOND_ALL = 1e18
"""No job counts this far; a larger number is a mistake."""
LEAST_NOISE = 1e-6
"""Nor is a gradient without any noise to be believed."""


class Unit(Enum):
    """Best first: steps of a known total, epochs of a known total; samples, steps, epochs without one.

    Without a total, samples go first: they mean the same at every size, while a step at twice the GPUs is
    often a batch twice as large.
    """

    STEPS_OF_TOTAL = ("step", "total_steps")
    EPOCHS_OF_TOTAL = ("epoch", "total_epochs")
    SAMPLES = ("samples", "")
    STEPS = ("step", "")
    EPOCHS = ("epoch", "")

    def __init__(self, field: str, total_field: str) -> None:
        self.field = field
        self.total_field = total_field
        self.value_of: Callable[[Sample], float | None] = attrgetter(field)
        """What a sample says in this unit, unchecked."""

    def count(self, sample: Sample) -> float | None:
        """What a sample says in this unit, if that is a count."""
        value = self.value_of(sample)
        return value if value is not None and 0 <= value < BEYOND_ALL else None


class LastSaid:
    """The last value of each kind: a script need not repeat in every report what it has said once."""

    __slots__ = ("epoch", "is_news", "loss", "noise_scale", "step", "time_s", "total_epochs", "total_steps")

    def __init__(self) -> None:
        self.time_s = -math.inf
        self.step: int | None = None
        self.total_steps: int | None = None
        self.epoch: float | None = None
        self.total_epochs: float | None = None
        self.loss: float | None = None
        self.noise_scale: float | None = None
        self.is_news = False
        """Set when something was said, for whoever passes it on to reset."""

    def note(self, sample: Sample) -> None:
        """Takes over what the sample says."""
        time_s, step, total_steps, epoch, total_epochs, _, loss, _, noise_scale = sample
        if time_s != self.time_s:
            self.time_s, self.is_news = time_s, True
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
        """How much there is to do in this unit."""
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
