"""How long a training step takes: a model with compute, communication and their overlap, and its fit.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI '21,
section 3.2. A pass over `batch` samples on one GPU takes α_c + β_c·batch. Synchronising n > 1 GPUs takes α
+ β·(n − 2), with one pair (α, β) within a node and one across nodes. The two overlap: a step takes (pass^γ
+ sync^γ)^(1/γ), from their sum (γ = 1) to the longer of them (γ = 10).

The fit is robust least squares on log errors with priors: Levenberg–Marquardt with closed-form
derivatives, the problems of many jobs side by side in arrays. A problem that does not improve any more
keeps its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray

PARAMETERS = 7  # in logs: α_c, β_c, α and β across nodes, α and β within a node; then the logit of the overlap
MOST_OVERLAP = 9.0  # γ lies between 1 and 1 + this
_LOG_LIMIT = 60.0
ERROR = 0.05  # relative error of a measurement that is nothing special
OUTLIER = 3.0  # from so many errors on a point counts linearly, not squared
COLD_STEPS, WARM_STEPS = 20, 8
LEAST_GAIN = 1e-5  # the fit ends when a step reduces the loss of no problem by a larger share than this
_EASY, _HARD = 1e-6, 1e8
_FIXED, _BATCH, _WIDE, _WIDE_N, _NEAR, _NEAR_N, _OVERLAP = range(PARAMETERS)
MOST_POINTS = 250  # the oldest point is forgotten when there are more
OFF = 0.03  # a new point that the fit misses by more than this share calls for a new fit, …
GROWTH = 1.3  # … and so do so many times as many points as it was made from, or a size larger than all of them
_NEAR_GPUS, _NEAR_BATCH, _BORDER = 0.5, 1.0, 2.0
_NEAR_PASS = 0.5  # doublings within which a point corrects others; a pass bends more sharply with the batch than a sync
_DOUBT = 0.3  # how much of nothing is mixed into the corrections: far from all points the fit stands alone
PRIOR_ERROR = 0.2  # relative error of a step time of the prior


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a step time depends on. Arrays of one shape; the last axis counts points."""

    gpus: FloatArray
    batch: FloatArray  # samples of one pass on one GPU; a relative number will do, if it is always the same one
    wide: BoolArray  # whether the GPUs lie on more than one node


def log_times(
    parameters: FloatArray, shapes: Shapes, slower: FloatArray | float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Logs of the seconds of a pass, which is known to be `slower` in logs, and of a step; parameters: (…, 1, 7)."""
    forward = _Forward(parameters, shapes, slower)
    return forward.log_pass, forward.log_step


def log_times_and_slopes(
    parameters: FloatArray, shapes: Shapes
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The same, and their derivatives by the seven parameters in a new last axis."""
    forward = _Forward(parameters, shapes)
    return forward.log_pass, forward.log_step, *forward.slopes()


class _Forward:
    """One evaluation of the model, with what its derivatives need."""

    def __init__(self, parameters: FloatArray, shapes: Shapes, slower: FloatArray | float = 0.0) -> None:
        logs = np.clip(parameters, -_LOG_LIMIT, _LOG_LIMIT)
        level = np.exp(logs[..., :_OVERLAP])
        fixed, by_batch = level[..., _FIXED], level[..., _BATCH] * shapes.batch
        wide = shapes.wide
        base = np.where(wide, level[..., _WIDE], level[..., _NEAR])
        by_gpu = np.where(wide, level[..., _WIDE_N], level[..., _NEAR_N]) * np.maximum(shapes.gpus - 2.0, 0.0)
        alone = shapes.gpus <= 1
        self.wide, self.alone = wide, alone
        self.log_pass = np.log(fixed + by_batch) + slower
        self.fixed_share = fixed / (fixed + by_batch)
        self.base_share = base / (base + by_gpu)
        self.log_sync = np.log(base + by_gpu)
        self.overlap = 1.0 + MOST_OVERLAP / (1.0 + np.exp(-np.clip(parameters[..., _OVERLAP], -30.0, 30.0)))
        # exp(γ·(sync − pass)): how much more the one counts than the other.
        with np.errstate(over="ignore"):
            odds = np.exp(np.clip(self.overlap * (self.log_sync - self.log_pass), -500.0, 500.0))
        self.pass_share = np.where(alone, 1.0, 1.0 / (1.0 + odds))
        self.excess = np.where(alone, 0.0, np.log1p(odds) / self.overlap)
        self.log_step = self.log_pass + self.excess

    def slopes(self) -> tuple[FloatArray, FloatArray]:
        """Derivatives of the logs of a pass and of a step by each parameter."""
        of_pass = np.zeros((*self.log_pass.shape, PARAMETERS))
        of_pass[..., _FIXED] = self.fixed_share
        of_pass[..., _BATCH] = 1.0 - self.fixed_share
        of_step: FloatArray = self.pass_share[..., None] * of_pass
        sync = 1.0 - self.pass_share
        for base, by_gpu, here in ((_WIDE, _WIDE_N, self.wide), (_NEAR, _NEAR_N, ~self.wide)):
            of_step[..., base] = np.where(here, sync * self.base_share, 0.0)
            of_step[..., by_gpu] = np.where(here, sync * (1.0 - self.base_share), 0.0)
        by_overlap = (sync * (self.log_sync - self.log_pass) - self.excess) / self.overlap
        part = (self.overlap - 1.0) / MOST_OVERLAP
        by_logit = by_overlap * MOST_OVERLAP * part * (1.0 - part)
        of_step[..., _OVERLAP] = np.where(self.alone, 0.0, by_logit)
        return of_pass, of_step


class SyncPrior(NamedTuple):
    """What to expect of synchronising before it was measured. It is weak: a few points override it."""

    sync: float = 0.1  # its part of a pass, within a node
    across: float = 3.0  # so many times as long across nodes


DEFAULT_SYNC_PRIOR = SyncPrior()


@dataclass(frozen=True, slots=True)
class Points:
    """Measured times of many problems: (problems, points). NaN where one was not measured."""

    shapes: Shapes
    pass_s: FloatArray
    step_s: FloatArray
    error: FloatArray | float = ERROR  # relative error of each point: larger for a prior than for a measurement


@dataclass(frozen=True, slots=True)
class Fits:
    """Parameters of every problem, and how sure they are."""

    parameters: FloatArray  # (problems, 7)
    covariance: FloatArray  # (problems, 7, 7): of the parameters, errors of the measurements and priors together
    spread: FloatArray  # (problems,): standard deviation of the log errors that are left


def fit(
    points: Points,
    start: FloatArray | None = None,
    steps: int | None = None,
    expected: Sequence[SyncPrior] | None = None,
) -> Fits:
    """The most likely parameters of each problem; `start` has those of an earlier fit, NaN rows for none.

    `expected` has what each problem expects of synchronising; None: the usual.
    """
    target = _prior(points, expected or [DEFAULT_SYNC_PRIOR] * len(points.step_s))
    problem = _Problem(points, target)
    begin = _first_look(points, target)
    if steps is None:
        steps = COLD_STEPS if start is None or not np.isfinite(start).all() else WARM_STEPS
    if start is not None:
        # A new point may have shown that the old fit was in the wrong valley: the better of two starts.
        known = np.asarray(np.isfinite(start).all(axis=1))
        before = np.where(known[:, None], start, begin)
        begin = np.where((problem.loss(before) < problem.loss(begin))[:, None], before, begin)
    return problem.with_uncertainty(problem.solve(begin, steps))


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
            # Across nodes it takes longer, even if not measured yet.
            blind = known & ~(wide & np.isfinite(extra_s)).any(axis=1)
            begin[blind, _WIDE] = begin[blind, _NEAR] + target[blind, _WIDE] - target[blind, _NEAR]
            begin[blind, _WIDE_N] = begin[blind, _WIDE] - 4.0
    return begin


def _prior(points: Points, expected: Sequence[SyncPrior]) -> FloatArray:
    """What to expect before anything is measured (problems, 7). It is weak: a few points override it.

    Half of a pass is fixed; synchronising is as expected and grows slowly with the GPUs.
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
    return target


def _make_precision() -> FloatArray:
    """The precision of the prior (7, 7): of single parameters and of differences of two, by standard deviation."""
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
    return np.where((count > 0) & (middle > 0), middle, 1.0)


class _Problem:
    """All problems side by side."""

    def __init__(self, points: Points, target: FloatArray) -> None:
        self.shapes, self.target = points.shapes, target
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
            if better.any() and gained < LEAST_GAIN:
                break
        return parameters

    def errors(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        return self._scaled(*log_times(parameters[:, None, :], self.shapes))

    def _scaled(self, log_pass: FloatArray, log_step: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Errors in units of what is nothing special; 0 where nothing was measured."""
        return (
            np.where(self.has_pass, log_pass - self.log_pass, 0.0) / self.error,
            np.where(self.has_step, log_step - self.log_step, 0.0) / self.error,
        )

    def loss(self, parameters: FloatArray) -> FloatArray:
        away = parameters - self.target
        total: FloatArray = np.einsum("bi,ij,bj->b", away, _PRECISION, away)
        for error in self.errors(parameters):
            size = np.abs(error)
            huber = np.where(size <= OUTLIER, size**2, OUTLIER * (2 * size - OUTLIER))
            total += huber.sum(axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    def normal(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Second and first derivatives of half the loss, with outliers counted less."""
        log_pass, log_step, of_pass, of_step = log_times_and_slopes(parameters[:, None, :], self.shapes)
        hessian = np.broadcast_to(_PRECISION, (len(parameters), PARAMETERS, PARAMETERS)).copy()
        gradient = (parameters - self.target) @ _PRECISION
        errors = self._scaled(log_pass, log_step)
        for error, slope, there in zip(errors, (of_pass, of_step), (self.has_pass, self.has_step), strict=True):
            weight = there / np.maximum(np.abs(error) / OUTLIER, 1.0) / self.error**2
            weighted = np.swapaxes(slope * weight[..., None], 1, 2)
            hessian += weighted @ slope
            gradient += (weighted @ (error * self.error)[..., None])[..., 0]
        return hessian, gradient

    def with_uncertainty(self, parameters: FloatArray) -> Fits:
        hessian, _ = self.normal(parameters)
        clipped = (np.minimum(np.abs(error), OUTLIER) for error in self.errors(parameters))
        squares = sum((error**2).sum(axis=1) for error in clipped)
        count = self.has_pass.sum(axis=1) + self.has_step.sum(axis=1)
        # As if one usual error had been seen before: a perfect fit of two points proves little.
        spread = ERROR * np.sqrt((squares + 1.0) / (count + 1.0))
        covariance = np.linalg.inv(hessian) * np.maximum((spread / ERROR) ** 2, 0.04)[:, None, None]
        return Fits(parameters, covariance, spread)


def _usable(seconds: FloatArray) -> BoolArray:
    return np.isfinite(seconds) & (seconds > 0)


def log_deviation(fits: Fits, row: int, shapes: Shapes) -> FloatArray:
    """Standard deviation of the log of the step time of one problem at other shapes."""
    _, _, _, of_step = log_times_and_slopes(fits.parameters[row], shapes)
    variance = np.einsum("pi,ij,pj->p", of_step, fits.covariance[row], of_step)
    found: FloatArray = np.sqrt(np.maximum(variance, 0.0) + fits.spread[row] ** 2)
    return found


class Point(NamedTuple):
    """Where a step time was measured."""

    wide: bool
    gpus: int
    batch: float


@dataclass(slots=True, eq=False)
class StepModel:
    """What is known of step times. Points come in one by one; `refit` fits many models at once."""

    expected: SyncPrior = DEFAULT_SYNC_PRIOR  # what it expects of synchronising before that was measured
    largest: int = 0  # the most GPUs that were measured
    stale: bool = False
    version: int = 0  # grows whenever a prediction may be another than before
    _measured: dict[Point, tuple[float, float]] = field(default_factory=dict)
    _prior: dict[Point, tuple[float, float]] = field(default_factory=dict)
    _fits: Fits | None = None
    _place: int = 0
    _fitted: int = 0
    _misses: tuple[FloatArray, FloatArray] | None = None

    def __bool__(self) -> bool:
        return bool(self._measured)

    def add(self, point: Point, pass_s: float, step_s: float) -> None:
        """Takes a measurement in; a later one at the same point replaces it. What is no time is ignored."""
        is_time = 0 < step_s < math.inf and point.gpus > 0 and point.batch > 0
        if not is_time or self._measured.get(point) == (pass_s, step_s):
            return
        self.stale |= (
            self._fits is None
            or point.gpus > self.largest
            or len(self._measured) + 1 >= GROWTH * self._fitted
            or self._is_off(point, step_s)
        )
        self._measured.pop(point, None)
        self._measured[point] = (pass_s, step_s)
        if len(self._measured) > MOST_POINTS:
            del self._measured[next(iter(self._measured))]
        self.largest = max(self.largest, point.gpus)
        self._misses = None
        self.version += 1

    def set_prior(self, steps_s: Mapping[Point, float]) -> None:
        """Set step times of the prior: they bend the fit a little."""
        self._prior = {point: (math.nan, step_s) for point, step_s in steps_s.items()}
        self.stale = True

    def _is_off(self, point: Point, step_s: float) -> bool:
        return abs(float(self._fit_at(shapes_of([point]))[1][0]) - math.log(step_s)) > OFF

    def times_s(self, shapes: Shapes, places: dict[Point, list[int]] | None = None) -> tuple[FloatArray, FloatArray]:
        """Seconds of a pass and of a step at each shape: as measured, or by the fit; `places` are `indices_of`."""
        log_pass, log_step = self._corrected(shapes)
        pass_s, step_s = np.exp(log_pass), np.exp(log_step)
        if places is None:
            places = indices_of(shapes)
        for point, (measured_pass_s, measured_step_s) in self._measured.items():
            at = places.get(point)
            if at is not None:
                step_s.flat[at] = measured_step_s
                if math.isfinite(measured_pass_s):
                    pass_s.flat[at] = measured_pass_s
        return pass_s, step_s

    def fitted_s(self, shapes: Shapes) -> FloatArray:
        """Seconds of a step by the fit alone, whatever was measured there."""
        return np.exp(self._fit_at(shapes)[1])

    def log_deviation(self, shapes: Shapes) -> FloatArray:
        """How sure the step times are: the standard deviation of their logs, at each point of a row."""
        assert self._fits is not None
        return log_deviation(self._fits, self._place, shapes)

    def _fit_at(self, shapes: Shapes, slower: FloatArray | float = 0.0) -> tuple[FloatArray, FloatArray]:
        assert self._fits is not None, "a model is fitted before it is asked"
        return log_times(self._fits.parameters[self._place], shapes, slower)

    def _corrected(self, shapes: Shapes) -> tuple[FloatArray, FloatArray]:
        """Logs of the times by the fit, and by what it missed nearby.

        A pass takes as long on every GPU, however many there are: what was missed at a batch counts for all
        sizes, and a step is made of such passes. What is then missed of a step is the synchronising, and
        counts for sizes nearby on the same side of a node.
        """
        own = shapes_of(list(self._measured))
        if self._misses is None:
            times = np.log(np.array(list(self._measured.values())).reshape(-1, 2))
            slower = times[:, 0] - self._fit_at(own)[0]
            own_near = _near(own.batch, own.batch, _NEAR_PASS)
            self._misses = slower, times[:, 1] - self._fit_at(own, _nearby(slower, own_near))[1]
        slower, later = self._misses
        log_pass, log_step = self._fit_at(shapes, _nearby(slower, _near(shapes.batch, own.batch, _NEAR_PASS)))
        near = _near(shapes.gpus, own.gpus, _NEAR_GPUS) * _near(shapes.batch, own.batch, _NEAR_BATCH)
        near *= np.exp(-_BORDER * (shapes.wide[..., None] != own.wide))
        return log_pass, log_step + _nearby(later, near)

    def _take(self, fits: Fits, place: int) -> None:
        self._fits, self._place = fits, place
        self._fitted, self._misses, self.stale = len(self._measured), None, False
        self.version += 1


def refit(models: Iterable[StepModel]) -> None:
    """Fits all models anew that call for it, side by side; each starts from where it was."""
    stale = [model for model in models if model.stale]
    if not stale:
        return
    rows = [([*model._measured, *model._prior], [*model._measured.values(), *model._prior.values()]) for model in stale]
    width = max(len(points) for points, _ in rows)
    gpus, batch = np.ones((len(rows), width)), np.ones((len(rows), width))
    wide = np.zeros((len(rows), width), dtype=bool)
    times, error = np.full((len(rows), width, 2), np.nan), np.full((len(rows), width), ERROR)
    for row, (points, measured) in enumerate(rows):
        own, n = shapes_of(points), len(points)
        gpus[row, :n], batch[row, :n], wide[row, :n] = own.gpus, own.batch, own.wide
        times[row, :n] = measured
        error[row, len(stale[row]._measured) : n] = PRIOR_ERROR
    start = np.full((len(rows), PARAMETERS), np.nan)
    for row, model in enumerate(stale):
        if model._fits is not None:
            start[row] = model._fits.parameters[model._place]
    known = Points(Shapes(gpus, batch, wide), times[..., 0], times[..., 1], error)
    fits = fit(known, start, expected=[model.expected for model in stale])
    for row, model in enumerate(stale):
        model._take(fits, row)


def shapes_of(points: Sequence[Point]) -> Shapes:
    table = np.array(points, np.float64).reshape(-1, 3)
    wide: BoolArray = table[:, 0] > 0
    return Shapes(table[:, 1], table[:, 2], wide)


def indices_of(shapes: Shapes) -> dict[Point, list[int]]:
    """Where each point stands among the shapes, counted row by row."""
    columns = shapes.wide.ravel().tolist(), shapes.gpus.ravel().tolist(), shapes.batch.ravel().tolist()
    places: dict[Point, list[int]] = {}
    for place, (wide, gpus, batch) in enumerate(zip(*columns, strict=True)):
        places.setdefault(Point(wide, int(gpus), batch), []).append(place)
    return places


def _near(there: FloatArray, here: FloatArray, width: float) -> FloatArray:
    """How near each is to each: 1 for the same, less for every doubling between them."""
    return np.exp(-(((np.log2(there)[..., None] - np.log2(here)) / width) ** 2) / 2)


def _nearby(missed: FloatArray, near: FloatArray) -> FloatArray:
    """What was missed near each place; nothing where nothing was measured."""
    known = np.isfinite(missed)
    weight = near * known
    found: FloatArray = weight @ np.where(known, missed, 0.0) / (weight.sum(axis=-1) + _DOUBT)
    return found
