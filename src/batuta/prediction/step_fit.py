"""Fits the step times of many applications or jobs at once: robust least squares on log errors with priors.

Levenberg–Marquardt with closed-form derivatives, all problems side by side in arrays. Nobody waits for the
slowest: a problem that does not get better any more just keeps its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray
from batuta.prediction.step_time import PARAMETERS, Shapes, log_times, log_times_and_slopes

ERROR = 0.05
"""Relative error of a measurement that is nothing special."""
OUTLIER = 3.0
"""From so many errors on a point counts linearly, not squared."""
COLD_STEPS, WARM_STEPS = 20, 8
ENOUGH = 1e-5
"""A step that brings nobody a larger part of the loss than this is the last."""
_EASY, _HARD = 1e-6, 1e8

_FIXED, _BATCH, _WIDE, _WIDE_N, _NEAR, _NEAR_N, _OVERLAP = range(PARAMETERS)


class Expectation(NamedTuple):
    """What to expect of synchronising before it was measured. It is weak: a few points override it."""

    sync: float = 0.1
    """Its part of a pass, within a node."""
    across: float = 3.0
    """So many times as long across nodes."""


USUAL = Expectation()


@dataclass(frozen=True, slots=True)
class Points:
    """Measured times of many problems: (problems, points). NaN where one was not measured."""

    shapes: Shapes
    pass_s: FloatArray
    step_s: FloatArray
    error: FloatArray | float = ERROR
    """Relative error of each: one that is only believed has a larger one than one that was measured."""


@dataclass(frozen=True, slots=True)
class Fits:
    """Parameters of every problem, and how sure they are."""

    parameters: FloatArray
    """(problems, 7)."""
    covariance: FloatArray
    """(problems, 7, 7): of the parameters, errors of the measurements and priors together."""
    spread: FloatArray
    """(problems,): standard deviation of the log errors that are left."""


def fit(
    points: Points,
    start: FloatArray | None = None,
    steps: int | None = None,
    expected: Sequence[Expectation] | None = None,
) -> Fits:
    """The most likely parameters of each problem; `start` has those of an earlier fit, NaN rows for none.

    `expected` has what each problem expects of synchronising; None: the usual.
    """
    target, weight = _prior(points, expected or [USUAL] * len(points.step_s))
    problem = _Problem(points, target, weight)
    begin = _first_look(points, target)
    if steps is None:
        steps = COLD_STEPS if start is None or not np.isfinite(start).all() else WARM_STEPS
    if start is not None:
        # A new point may have shown that the old fit was in the wrong valley: the better of two starts.
        known = np.asarray(np.isfinite(start).all(axis=1))
        before = np.where(known[:, None], start, begin)
        begin = np.where((problem.loss(before) < problem.loss(begin))[:, None], before, begin)
    return problem.judged(problem.solve(begin, steps))


def _first_look(points: Points, target: FloatArray) -> FloatArray:
    """The prior, with communication as long as steps take longer than passes.

    Where communication is thought to be next to nothing, a fit hardly feels it and would never find it.
    """
    begin = target.copy()
    wide, several = points.shapes.wide, points.shapes.gpus > 1
    with np.errstate(invalid="ignore"):
        extra_s = np.sqrt(np.maximum(points.step_s**2 - points.pass_s**2, 0.0))
    extra_s = np.where(several & (extra_s > 0), extra_s, np.nan)
    for base, by_gpu, here in ((_WIDE, _WIDE_N, wide), (_NEAR, _NEAR_N, ~wide)):
        seen = np.where(here, extra_s, np.nan)
        known = np.isfinite(seen).any(axis=1)
        begin[known, base] = np.log(_median(seen[known]))
        begin[known, by_gpu] = begin[known, base] - 4.0
        if here is not wide:
            # Between nodes it takes longer: nobody may have tried yet.
            blind = known & ~(wide & np.isfinite(extra_s)).any(axis=1)
            begin[blind, _WIDE] = begin[blind, _NEAR] + target[blind, _WIDE] - target[blind, _NEAR]
            begin[blind, _WIDE_N] = begin[blind, _WIDE] - 4.0
    return begin


def _prior(points: Points, expected: Sequence[Expectation]) -> tuple[FloatArray, FloatArray]:
    """What to expect before anything is measured (problems, 7), and the precision of it (7, 7).

    Half of a pass is fixed; synchronising is as expected and grows slowly with the GPUs. All of this is
    weak: a few points override it.
    """
    sync, across = np.array(expected).reshape(-1, 2).T
    shapes = points.shapes
    passes = np.where(np.isfinite(points.pass_s), points.pass_s, points.step_s)
    half = _median(passes) / 2
    target = np.zeros((len(half), PARAMETERS))
    target[:, _FIXED] = np.log(half)
    target[:, _BATCH] = np.log(half / _median(np.where(np.isfinite(passes), shapes.batch, np.nan)))
    target[:, _NEAR] = np.log(half * 2 * sync)
    target[:, _NEAR_N] = target[:, _NEAR] - 4.0
    target[:, _WIDE] = target[:, _NEAR] + np.log(across)
    target[:, _WIDE_N] = target[:, _WIDE] - 4.0
    target[:, _OVERLAP] = -2.0
    return target, _PRECISION


def _make_precision() -> FloatArray:
    """Beliefs on single parameters and on differences of two, each with its standard deviation."""
    single = {_FIXED: 2.0, _BATCH: 2.0, _NEAR: 4.0, _OVERLAP: 2.0}
    paired = {(_NEAR_N, _NEAR): 1.5, (_WIDE_N, _WIDE): 1.5, (_WIDE, _NEAR): 1.0}
    precision = np.zeros((PARAMETERS, PARAMETERS))
    for k, deviation in single.items():
        precision[k, k] += deviation**-2
    for (a, b), deviation in paired.items():
        for row, column, sign in ((a, a, 1), (b, b, 1), (a, b, -1), (b, a, -1)):
            precision[row, column] += sign * deviation**-2
    return precision


_PRECISION = _make_precision()


def _median(values: FloatArray) -> FloatArray:
    """Median of each row, without what is not there; 1 where nothing is."""
    ordered = np.sort(values, axis=1)  # NaN goes to the end
    count = np.isfinite(ordered).sum(axis=1)
    rows = np.arange(len(values))
    middle = (ordered[rows, np.maximum(count - 1, 0) // 2] + ordered[rows, count // 2 - (count == 0)]) / 2
    low = ordered[rows, np.maximum(count - 1, 0) // 2]
    middle = np.where(count % 2 == 1, low, middle)
    return np.where((count > 0) & (middle > 0), middle, 1.0)


class _Problem:
    """All problems side by side."""

    def __init__(self, points: Points, target: FloatArray, precision: FloatArray) -> None:
        self.shapes = points.shapes
        self.target, self.precision = target, precision
        self.has_pass, self.has_step = _usable(points.pass_s), _usable(points.step_s)
        self.error = points.error
        self.log_pass = np.log(np.where(self.has_pass, points.pass_s, 1.0))
        self.log_step = np.log(np.where(self.has_step, points.step_s, 1.0))

    def solve(self, parameters: FloatArray, steps: int) -> FloatArray:
        damping = np.full(len(parameters), 1e-3)
        loss = self.loss(parameters)
        for _ in range(steps):
            hessian, gradient = self.normal(parameters)
            diagonal = np.einsum("bii->bi", hessian)
            damped = hessian.copy()
            np.einsum("bii->bi", damped)[...] = diagonal * (1.0 + damping[:, None])
            trial = parameters - np.linalg.solve(damped, gradient[..., None])[..., 0]
            tried = self.loss(trial)
            better = tried < loss
            gained = float(((loss - tried)[better] / (loss[better] + 1e-9)).max(initial=0.0))
            parameters = np.where(better[:, None], trial, parameters)
            loss = np.where(better, tried, loss)
            damping = np.clip(np.where(better, damping / 5, damping * 4), _EASY, _HARD)
            if better.any() and gained < ENOUGH:
                break
        return parameters

    def errors(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        log_pass, log_step = log_times(parameters[:, None, :], self.shapes)
        return self._scaled(log_pass, log_step)

    def _scaled(self, log_pass: FloatArray, log_step: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Errors in units of what is nothing special; 0 where nothing was measured."""
        return (
            np.where(self.has_pass, log_pass - self.log_pass, 0.0) / self.error,
            np.where(self.has_step, log_step - self.log_step, 0.0) / self.error,
        )

    def loss(self, parameters: FloatArray) -> FloatArray:
        away = parameters - self.target
        total: FloatArray = np.einsum("bi,ij,bj->b", away, self.precision, away)
        for error in self.errors(parameters):
            size = np.abs(error)
            huber = np.where(size <= OUTLIER, size**2, OUTLIER * (2 * size - OUTLIER))
            total += huber.sum(axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    def normal(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Second and first derivatives of half the loss, with outliers counted less."""
        log_pass, log_step, of_pass, of_step = log_times_and_slopes(parameters[:, None, :], self.shapes)
        hessian = np.broadcast_to(self.precision, (len(parameters), PARAMETERS, PARAMETERS)).copy()
        gradient = (parameters - self.target) @ self.precision
        errors = self._scaled(log_pass, log_step)
        for error, slope, there in zip(
            errors, (of_pass, of_step), (self.has_pass, self.has_step), strict=True
        ):
            weight = there / np.maximum(np.abs(error) / OUTLIER, 1.0) / self.error**2
            weighted = np.swapaxes(slope * weight[..., None], 1, 2)
            hessian += weighted @ slope
            gradient += (weighted @ (error * self.error)[..., None])[..., 0]
        return hessian, gradient

    def judged(self, parameters: FloatArray) -> Fits:
        hessian, _ = self.normal(parameters)
        clipped = (np.minimum(np.abs(error), OUTLIER) for error in self.errors(parameters))
        squares = sum((error**2).sum(axis=1) for error in clipped)
        count = self.has_pass.sum(axis=1) + self.has_step.sum(axis=1)
        # As if one usual error had been seen before: a perfect fit of two points proves little.
        spread = ERROR * np.sqrt((squares + 1.0) / (count + 1.0))
        covariance = np.linalg.inv(hessian) * np.maximum((spread / ERROR) ** 2, 0.04)[:, None, None]
        return Fits(parameters, covariance, spread)


def _usable(seconds: FloatArray) -> BoolArray:
    found: BoolArray = np.isfinite(seconds) & (seconds > 0)
    return found


def log_deviation(fits: Fits, rows: int, shapes: Shapes) -> FloatArray:
    """Standard deviation of the log of the step time of one problem at other shapes."""
    _, _, _, of_step = log_times_and_slopes(fits.parameters[rows], shapes)
    variance = np.einsum("pi,ij,pj->p", of_step, fits.covariance[rows], of_step)
    deviation: FloatArray = np.sqrt(np.maximum(variance, 0.0) + fits.spread[rows] ** 2)
    return deviation
