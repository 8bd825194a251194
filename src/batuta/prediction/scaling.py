"""A speed curve through what was measured, with the physics of a step in between and beyond.

With one point, the prior's shape stands, and the point says what its 1 is. From two points on, step times are
fitted (step_model.py): compute, synchronising within and across nodes, overlap. What the prior believes is
told to the fit as well, with a larger error. Where something was measured the curve goes through it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.curve import SpeedCurve
from batuta.prediction.measured import LEAST_SPEED, NOTICED, Measured, Spot, shape_of
from batuta.prediction.step_fit import ERROR
from batuta.prediction.step_model import Point, StepModel, refit
from batuta.prediction.step_time import Shapes

LONGEST_CURVE = 4096
"""GPUs up to which a speed is written down; beyond, the last value holds."""
LEAST_SPREAD = 0.01
DOUBT_PER_DOUBLING = 0.15
"""How unsure a speed is for each doubling away from the only size that was measured: log deviation."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """A curve, and what its 1 stands for."""

    curve: SpeedCurve
    units_per_s: float
    """With one GPU of the reference type."""


class Forms:
    """Fits that were made, to be used again as long as nothing has changed that is worth another.

    Any thread may ask.
    """

    __slots__ = ("_known", "_most")

    def __init__(self, most: int = 2) -> None:
        self._known: dict[Hashable, StepModel] = {}
        self._most = most

    def scaling(self, measured: Measured) -> Scaling | None:
        """How it scales; None when nothing was measured. The same for the same, whatever was asked before."""
        spots = measured.spots
        if not spots:
            return None
        if len(spots) == 1:
            return _as_believed(measured, spots)
        return _as_fitted(measured, spots, self._form(measured))

    def doubt(self, measured: Measured) -> FloatArray:
        """How unsure the speeds with 1, 2, … GPUs are: the standard deviation of their logs."""
        spots, n = measured.spots, np.arange(1.0, _largest(measured) + 1)
        if len(spots) < 2:
            doublings = np.log2(n / next(iter(spots)).gpus) if spots else np.inf + n
            return np.hypot(ERROR, DOUBT_PER_DOUBLING * doublings)
        shapes = Shapes(n, measured.step(n) / n, n >= _wide_from(spots))
        return self._form(measured).log_deviation(shapes)

    def _form(self, measured: Measured) -> StepModel:
        key = measured.key
        form = self._known.get(key)
        if form is None:
            form = _unfitted(measured)
            refit([form])
            self._keep(key, form)
        return form

    def _keep(self, key: Hashable, form: StepModel) -> None:
        self._known[key] = form
        if len(self._known) > self._most:
            # In one go, and without a complaint if another thread was faster.
            oldest, *_ = tuple(self._known)
            self._known.pop(oldest, None)


def prepare(asked: Iterable[tuple[Forms, Measured]]) -> None:
    """Fits side by side what will be asked for and is not known yet: all take little longer than one."""
    missing = [
        (forms, measured.key, _unfitted(measured))
        for forms, measured in asked
        if len(measured.spots) > 1 and measured.key not in forms._known
    ]
    refit([model for _, _, model in missing])
    for forms, key, model in missing:
        forms._keep(key, model)


def _unfitted(measured: Measured) -> StepModel:
    """The points to fit, rounded to what is noticed, so that the fit depends on nothing else."""
    spots = measured.spots
    first = math.log(next(iter(spots.values())))
    model = StepModel()
    relative = {s: math.exp(NOTICED * round((math.log(r) - first) / NOTICED)) for s, r in spots.items()}
    for point, step_s in _steps_s(measured, relative).items():
        model.add(point, math.nan, step_s)
    sizes = _doublings(max(measured.largest, *(spot.gpus for spot in spots)))
    shape = shape_of(measured.prior, sizes[-1])
    prior = measured.prior
    ratios = [
        math.log(rate / shape[spot.gpus - 1] / prior.spread(1 + spot.wide, 1))
        for spot, rate in relative.items()
    ]
    one = math.exp(median(ratios))
    believed = {Spot(False, n): one * shape[n - 1] for n in sizes}
    if prior.across_nodes < 1.0:
        believed |= {Spot(True, n): one * shape[n - 1] * prior.across_nodes for n in sizes if n > 1}
    model.believe(_steps_s(measured, believed))
    return model


def _doublings(largest: int) -> list[int]:
    return [*(2**k for k in range(largest.bit_length()) if 2**k < largest), largest]


def _steps_s(measured: Measured, rates: Mapping[Spot, float]) -> dict[Point, float]:
    """Seconds of a step where a script would be so fast."""
    step = measured.step(np.array([spot.gpus for spot in rates], np.float64))
    return {
        Point(spot.wide, spot.gpus, units / spot.gpus): units / rate
        for (spot, rate), units in zip(rates.items(), step.tolist(), strict=True)
    }


# -------------------------------------------------------------------------------- what comes out


def _as_believed(measured: Measured, spots: Mapping[Spot, float]) -> Scaling:
    """The prior's shape through the only point."""
    ((spot, rate),) = spots.items()
    prior, largest = measured.prior, _largest(measured)
    shape = shape_of(measured.prior, max(largest, spot.gpus))
    one = rate / prior.spread(1 + spot.wide, 1) / float(shape[spot.gpus - 1])
    return _scaling(measured, shape[:largest], prior.across_nodes, one)


def _as_fitted(measured: Measured, spots: Mapping[Spot, float], form: StepModel) -> Scaling:
    largest = _largest(measured)
    n: FloatArray = np.arange(1.0, max(largest, *(spot.gpus for spot in spots)) + 1)
    rate, across = _rates(measured, spots, form, n, wide=False), measured.prior.across_nodes
    if any(spot.wide for spot in spots):
        far = _rates(measured, spots, form, n, wide=True)
        across = _across(measured, spots, rate, far)
        rate = np.where(n >= _wide_from(spots), far / across, rate)
    rate = _bounded(sorted({spot.gpus for spot in spots}), rate)
    one = float(rate[0])
    return _scaling(measured, rate[:largest] / one, across, one)


def _rates(
    measured: Measured, spots: Mapping[Spot, float], form: StepModel, n: FloatArray, *, wide: bool
) -> FloatArray:
    """Units per second at each size by the form, moved so that it goes through what was measured."""
    step = measured.step(n)
    rates: FloatArray = step / form.fitted_s(Shapes(n, step / n, np.full(len(n), wide)))
    own = [spot for spot in spots if spot.wide == wide]
    if not own:
        # How much faster the job is than its form can only be seen on the other side.
        return rates * spots[next(iter(spots))] / _rate_there(measured, form, next(iter(spots)))
    gpus = [spot.gpus for spot in own]
    misses = np.log([spots[spot] for spot in own]) - np.log(rates[np.array(gpus) - 1])
    moved: FloatArray = rates * np.exp(np.interp(np.log(n), np.log(gpus), misses))
    return moved


def _rate_there(measured: Measured, form: StepModel, spot: Spot) -> float:
    n = np.array([float(spot.gpus)])
    step = measured.step(n)
    return float((step / form.fitted_s(Shapes(n, step / n, np.array([spot.wide]))))[0])


def _across(measured: Measured, spots: Mapping[Spot, float], near: FloatArray, far: FloatArray) -> float:
    """The factor on the speed across nodes; the prior's, as long as only one way was measured."""
    apart = [spot.gpus for spot in spots if spot.wide]
    together = [spot.gpus for spot in spots if not spot.wide]
    if not together:
        return measured.prior.across_nodes
    both = [n for n in apart if n in together]
    ratios = [float(far[n - 1] / near[n - 1]) for n in both or [min(apart)]]
    return min(1.0, max(LEAST_SPREAD, median(ratios)))


def _wide_from(spots: Mapping[Spot, float]) -> float:
    """The first size that was seen on several nodes only; larger ones are thought to be as well."""
    together = max((spot.gpus for spot in spots if not spot.wide), default=1)
    return min((spot.gpus for spot in spots if spot.wide and spot.gpus > together), default=math.inf)


def _bounded(sizes: list[int], rate: FloatArray) -> FloatArray:
    """The rates without what nobody should believe: `sizes` are those that were measured.

    None is above linear. Where the form leaves the range of the two measured sizes around it, it is straight
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


def _scaling(measured: Measured, relative: FloatArray, across: float, one: float) -> Scaling:
    """The curve is never above linear: what seems faster was measured badly at the small end."""
    n = np.arange(1, len(relative) + 1, dtype=np.float64)
    speeds = np.clip(relative * measured.efficiency(n), LEAST_SPEED, n)
    curve = SpeedCurve((0.0, 1.0, *speeds[1:].tolist()), across, measured.prior.across_racks)
    return Scaling(curve, one)


def _largest(measured: Measured) -> int:
    return max(1, min(measured.largest, LONGEST_CURVE))
