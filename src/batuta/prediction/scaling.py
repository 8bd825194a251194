"""A speed curve through what was measured, with the physics of a step in between and beyond.

With one point, the prior's shape stands, and the point says what its 1 is. From two points on, step times are
fitted (`step_time`): compute, synchronising within and across nodes, overlap. The prior takes part in the fit
with a larger error. Where something was measured the curve goes through it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from statistics import median
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import FloatArray, frozen
from batuta.core.curve import SpeedCurve
from batuta.prediction.step_time import ERROR, Point, Shapes, StepModel, refit

PRIOR_EXPONENT = 0.9  # beyond the end of the prior, speed grows with n to this power
LEAST_SPEED = 1e-6
LOG_RESOLUTION = 0.02  # speeds that differ by less are fitted as one: a fit is not worth its time for less
LONGEST_CURVE = 4096  # GPUs up to which a speed is written down; beyond, the last value holds
LEAST_SPREAD = 0.01
DOUBT_PER_DOUBLING = 0.15  # log deviation of a speed for each doubling away from the only measured size


class Footprint(NamedTuple):
    """The GPUs of a run and how far they lie apart. More than two nodes or racks count as two."""

    gpus: int
    nodes: int = 1
    racks: int = 1
    gpu_speed: float = 1.0  # speed of its type of GPU relative to the reference type


class ScalePoint(NamedTuple):
    """A number of GPUs, on one node or on more."""

    wide: bool
    gpus: int


@dataclass(frozen=True)
class SpeedMeasurements:
    """Units per second by footprint, and the prior."""

    prior: SpeedCurve
    largest: int  # GPUs up to which the curve is wanted
    rates: Mapping[Footprint, float]  # units of work per second
    step_units: Mapping[int, float] = field(default_factory=dict)  # by GPUs: for scripts whose steps grow with them
    noise_units: float | None = None  # the gradient noise scale: how many units in a step carry as much noise as signal

    @cached_property
    def spots(self) -> dict[ScalePoint, float]:
        """Units per second by place, as if on GPUs of the reference type within one rack; in order."""
        found: dict[ScalePoint, list[float]] = {}
        for footprint, rate in self.rates.items():
            one = rate / footprint.gpu_speed / self.prior.spread(1, footprint.racks)
            found.setdefault(ScalePoint(footprint.nodes > 1, footprint.gpus), []).append(one)
        return {spot: median(found[spot]) for spot in sorted(found)}

    @cached_property
    def key(self) -> Hashable:
        """Equal for what need not be fitted twice: a job that becomes faster by as much everywhere is not."""
        first = math.log(next(iter(self.spots.values()), 1.0))
        rates = tuple((spot, _noticed(math.log(rate) - first)) for spot, rate in self.spots.items())
        steps = tuple((n, _noticed(math.log(units))) for n, units in sorted(self.step_units.items()))
        return self.prior, self.largest, rates, steps

    def step(self, gpus: FloatArray) -> FloatArray:
        """Units in one step: as measured, and straight in logs between sizes and beyond them.

        By default every step does the same work, however many GPUs share it.
        """
        if not self.step_units:
            return np.ones(len(gpus))
        sizes = sorted(self.step_units)
        x = np.log(sizes)
        y = np.array([_noticed(math.log(self.step_units[size])) * LOG_RESOLUTION for size in sizes])
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
        return (self.noise_units + alone) / (self.noise_units + self.step(gpus))


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
    return round(log / LOG_RESOLUTION)


@dataclass(frozen=True, slots=True)
class Scaling:
    """A curve, and what its 1 stands for."""

    curve: SpeedCurve
    units_per_s: float  # with one GPU of the reference type


class FitCache:
    """Fits that were made, to be used again as long as nothing has changed that is worth another. For any thread."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int = 2) -> None:
        self._known: dict[Hashable, StepModel] = {}
        self._most = most

    def scaling(self, measured: SpeedMeasurements) -> Scaling | None:
        """How it scales; None when nothing was measured. The same for the same, whatever was asked before."""
        spots = measured.spots
        if not spots:
            return None
        if len(spots) == 1:
            return _by_prior(measured, spots)
        return _by_fit(measured, spots, self._fit(measured))

    def doubt(self, measured: SpeedMeasurements) -> FloatArray:
        """How unsure the speeds with 1, 2, … GPUs are: the standard deviation of their logs."""
        spots, n = measured.spots, np.arange(1.0, _largest(measured) + 1)
        if len(spots) < 2:
            doublings = np.log2(n / next(iter(spots)).gpus) if spots else np.inf + n
            return np.hypot(ERROR, DOUBT_PER_DOUBLING * doublings)
        shapes = Shapes(n, measured.step(n) / n, n >= _wide_from(spots))
        return self._fit(measured).log_deviation(shapes)

    def _fit(self, measured: SpeedMeasurements) -> StepModel:
        key = measured.key
        fit = self._known.get(key)
        if fit is None:
            fit = _unfitted(measured)
            refit([fit])
            self._keep(key, fit)
        return fit

    def _keep(self, key: Hashable, fit: StepModel) -> None:
        self._known[key] = fit
        if len(self._known) > self._most:
            # In one go, and without a complaint if another thread was faster.
            oldest, *_ = tuple(self._known)
            self._known.pop(oldest, None)


def fit_all(asked: Iterable[tuple[FitCache, SpeedMeasurements]]) -> None:
    """Fits side by side what will be asked for and is not known yet: all take little longer than one."""
    missing = [
        (fits, measured.key, _unfitted(measured))
        for fits, measured in asked
        if len(measured.spots) > 1 and measured.key not in fits._known
    ]
    refit([model for _, _, model in missing])
    for fits, key, model in missing:
        fits._keep(key, model)


def _unfitted(measured: SpeedMeasurements) -> StepModel:
    """The points to fit, rounded to what is noticed, so that the fit depends on nothing else."""
    spots = measured.spots
    first = math.log(next(iter(spots.values())))
    model = StepModel()
    relative = {spot: math.exp(_noticed(math.log(rate) - first) * LOG_RESOLUTION) for spot, rate in spots.items()}
    for point, step_s in _steps_s(measured, relative).items():
        model.add(point, math.nan, step_s)
    largest = max(measured.largest, *(spot.gpus for spot in spots))
    sizes = [*(2**k for k in range(largest.bit_length()) if 2**k < largest), largest]
    prior, shape = measured.prior, shape_of(measured.prior, sizes[-1])
    ratios = [math.log(rate / shape[spot.gpus - 1] / prior.spread(1 + spot.wide, 1)) for spot, rate in relative.items()]
    one = math.exp(median(ratios))
    expected = {ScalePoint(False, n): one * shape[n - 1] for n in sizes}
    if prior.across_nodes < 1.0:
        expected |= {ScalePoint(True, n): one * shape[n - 1] * prior.across_nodes for n in sizes if n > 1}
    model.set_prior(_steps_s(measured, expected))
    return model


def _steps_s(measured: SpeedMeasurements, rates: Mapping[ScalePoint, float]) -> dict[Point, float]:
    """Seconds of a step where a script would be so fast."""
    step = measured.step(np.array([spot.gpus for spot in rates], np.float64))
    return {
        Point(spot.wide, spot.gpus, units / spot.gpus): units / rate
        for (spot, rate), units in zip(rates.items(), step.tolist(), strict=True)
    }


def _by_prior(measured: SpeedMeasurements, spots: Mapping[ScalePoint, float]) -> Scaling:
    """The prior's shape through the only point."""
    ((spot, rate),) = spots.items()
    prior, largest = measured.prior, _largest(measured)
    shape = shape_of(measured.prior, max(largest, spot.gpus))
    one = rate / prior.spread(1 + spot.wide, 1) / float(shape[spot.gpus - 1])
    return _scaling(measured, shape[:largest], prior.across_nodes, one)


def _by_fit(measured: SpeedMeasurements, spots: Mapping[ScalePoint, float], fit: StepModel) -> Scaling:
    largest = _largest(measured)
    n: FloatArray = np.arange(1.0, max(largest, *(spot.gpus for spot in spots)) + 1)
    rate, across = _rates(measured, spots, fit, n, wide=False), measured.prior.across_nodes
    if any(spot.wide for spot in spots):
        far = _rates(measured, spots, fit, n, wide=True)
        across = _across(measured, spots, rate, far)
        rate = np.where(n >= _wide_from(spots), far / across, rate)
    rate = _bounded(sorted({spot.gpus for spot in spots}), rate)
    one = float(rate[0])
    return _scaling(measured, rate[:largest] / one, across, one)


def _rates(
    measured: SpeedMeasurements, spots: Mapping[ScalePoint, float], fit: StepModel, n: FloatArray, *, wide: bool
) -> FloatArray:
    """Units per second at each size by the fit, moved so that it goes through what was measured."""
    rates = _fitted(measured, fit, n, wide=wide)
    own = [spot for spot in spots if spot.wide == wide]
    if not own:
        # How much faster the job is than its fit can only be seen on the other side.
        spot, rate = next(iter(spots.items()))
        return rates * rate / float(_fitted(measured, fit, np.array([float(spot.gpus)]), wide=spot.wide)[0])
    gpus = [spot.gpus for spot in own]
    misses = np.log([spots[spot] for spot in own]) - np.log(rates[np.array(gpus) - 1])
    found: FloatArray = rates * np.exp(np.interp(np.log(n), np.log(gpus), misses))
    return found


def _fitted(measured: SpeedMeasurements, fit: StepModel, n: FloatArray, *, wide: bool) -> FloatArray:
    step = measured.step(n)
    return step / fit.fitted_s(Shapes(n, step / n, np.full(len(n), wide)))


def _across(measured: SpeedMeasurements, spots: Mapping[ScalePoint, float], near: FloatArray, far: FloatArray) -> float:
    """The factor on the speed across nodes; the prior's, as long as only one way was measured."""
    apart = [spot.gpus for spot in spots if spot.wide]
    together = [spot.gpus for spot in spots if not spot.wide]
    if not together:
        return measured.prior.across_nodes
    both = [n for n in apart if n in together]
    ratios = [float(far[n - 1] / near[n - 1]) for n in both or [min(apart)]]
    return min(1.0, max(LEAST_SPREAD, median(ratios)))


def _wide_from(spots: Mapping[ScalePoint, float]) -> float:
    """The first size that was seen on several nodes only; larger ones are thought to be as well."""
    together = max((spot.gpus for spot in spots if not spot.wide), default=1)
    return min((spot.gpus for spot in spots if spot.wide and spot.gpus > together), default=math.inf)


def _bounded(sizes: list[int], rate: FloatArray) -> FloatArray:
    """Return plausible rates; `sizes` are the measured ones.

    None is above linear. Where the fit leaves the range of the two measured sizes around it, it is straight
    in logs instead. And a job that gained little from its last GPUs does not gain more from the next ones.
    """
    n = np.arange(1, len(rate) + 1)
    rate = np.minimum(rate, n * rate[0])
    if len(sizes) < 2:
        return rate
    ends = rate[np.array(sizes) - 1]
    part = np.clip(np.searchsorted(sizes, n, side="right") - 1, 0, len(sizes) - 2)
    low, high = np.minimum(ends[:-1], ends[1:])[part], np.maximum(ends[:-1], ends[1:])[part]
    inside = (n >= sizes[0]) & (n <= sizes[-1])
    leaves = np.bincount(part[inside & ((rate < low) | (rate > high))], minlength=len(sizes) - 1) > 0
    straight = np.exp(np.interp(np.log(n), np.log(sizes), np.log(ends)))
    rate = np.where(inside & leaves[part], straight, rate)
    slope = np.log(ends[-1] / ends[-2]) / np.log(sizes[-1] / sizes[-2])
    most = ends[-1] * (n / sizes[-1]) ** max(float(slope), 0.0)
    return np.where(n > sizes[-1], np.minimum(rate, most), rate)


def _scaling(measured: SpeedMeasurements, relative: FloatArray, across: float, one: float) -> Scaling:
    """The curve is never above linear: what seems faster was measured badly at the small end."""
    n = np.arange(1, len(relative) + 1, dtype=np.float64)
    speeds = np.clip(relative * measured.efficiency(n), LEAST_SPEED, n)
    curve = SpeedCurve((0.0, 1.0, *speeds[1:].tolist()), across, measured.prior.across_racks)
    return Scaling(curve, one)


def _largest(measured: SpeedMeasurements) -> int:
    return max(1, min(measured.largest, LONGEST_CURVE))
