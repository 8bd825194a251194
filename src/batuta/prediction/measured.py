"""What was measured of a job or an application, brought onto one measure: what a fit starts from."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import FloatArray, frozen
from batuta.core.curve import SpeedCurve
from batuta.prediction.footprint import Footprint

PRIOR_EXPONENT = 0.9
"""Beyond the end of the prior, speed grows with n to this power."""
LEAST_SPEED = 1e-6
NOTICED = 0.02
"""Speeds that differ by less are fitted as one: a fit is not worth its time for less."""


class Spot(NamedTuple):
    """A number of GPUs, on one node or on more."""

    wide: bool
    gpus: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Units per second by footprint, and what was believed before."""

    prior: SpeedCurve
    largest: int
    """GPUs up to which the curve is wanted."""
    rates: Mapping[Footprint, float]
    """Units of work per second."""
    step_units: Mapping[int, float] = field(default_factory=dict)
    """Units of work in one step, by GPUs; for a script that takes larger steps on more of them."""
    noise_units: float | None = None
    """The gradient noise scale: how many units in a step carry as much noise as signal."""
    spots: Mapping[Spot, float] = field(init=False)
    """Units per second by place, as if on GPUs of the reference type within one rack; in order."""
    key: Hashable = field(init=False)
    """Equal for what need not be fitted twice: a job that becomes faster by as much everywhere is not."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spots", self._find_spots())
        object.__setattr__(self, "key", self._make_key())

    def _find_spots(self) -> dict[Spot, float]:
        found: dict[Spot, list[float]] = {}
        for footprint, rate in self.rates.items():
            one = rate / footprint.gpu_speed / self.prior.spread(1, footprint.racks)
            found.setdefault(Spot(footprint.nodes > 1, footprint.gpus), []).append(one)
        return {spot: median(found[spot]) for spot in sorted(found)}

    def _make_key(self) -> Hashable:
        first = math.log(next(iter(self.spots.values()), 1.0))
        rates = tuple((spot, _noticed(math.log(rate) - first)) for spot, rate in self.spots.items())
        steps = tuple((n, _noticed(math.log(units))) for n, units in sorted(self.step_units.items()))
        return self.prior, self.largest, rates, steps

    def step(self, gpus: FloatArray) -> FloatArray:
        """Units in one step: as measured, and straight in logs between sizes and beyond them.

        Where nobody says, every step does the same work, however many GPUs share it.
        """
        if not self.step_units:
            return np.ones(len(gpus))
        sizes = sorted(self.step_units)
        x = np.log(sizes)
        y = np.array([_noticed(math.log(self.step_units[size])) * NOTICED for size in sizes])
        at = np.log(gpus)
        logs: FloatArray = np.interp(at, x, y)
        if len(sizes) > 1:
            # From a step of the same work to one that grows with the GPUs; all else is a mistake.
            slopes = np.clip(np.diff(y) / np.diff(x), 0.0, 1.0)
            logs += np.minimum(at - x[0], 0.0) * slopes[0] + np.maximum(at - x[-1], 0.0) * slopes[-1]
        return np.exp(logs)

    def efficiency(self, gpus: FloatArray) -> FloatArray:
        """How much a unit teaches at each size, relative to one GPU (Pollux, OSDI '21, section 3.1)."""
        if self.noise_units is None:
            return np.ones(len(gpus))
        alone = float(self.step(np.ones(1))[0])
        learned: FloatArray = (self.noise_units + alone) / (self.noise_units + self.step(gpus))
        return learned


@lru_cache(maxsize=256)
def shape_of(prior: SpeedCurve, largest: int) -> FloatArray:
    """The prior for 1..largest, with 1 as its first, and the usual power where it says nothing."""
    n = np.arange(1, largest + 1)
    shape: FloatArray = np.asarray(n, np.float64) ** PRIOR_EXPONENT
    known = np.array(prior.speeds[1 : largest + 1])
    if known[0] > 0 and np.all(known > 0):
        end = len(known)
        shape[end:] *= known[-1] / known[0] / shape[end - 1]
        shape[:end] = known / known[0]
    return frozen(np.clip(shape, LEAST_SPEED, n))


def _noticed(log: float) -> int:
    return round(log / NOTICED)
