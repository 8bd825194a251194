"""Step times of one application or job, learned point by point: a fit, corrected by what it missed nearby."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray
from batuta.prediction.step_fit import ERROR, USUAL, Expectation, Fits, Points, fit, log_deviation
from batuta.prediction.step_time import PARAMETERS, Shapes, log_times

MOST_POINTS = 250
"""The oldest point is forgotten when there are more."""
OFF = 0.03
"""A new point that the fit misses by more than this share calls for a new fit, …"""
GROWTH = 1.3
"""… and so do so many times as many points as it was made from, or a size larger than all of them."""
_NEAR_GPUS, _NEAR_BATCH, _BORDER = 0.5, 1.0, 2.0
_NEAR_PASS = 0.5
"""Doublings within which a point corrects others; a pass bends more sharply with the batch than a sync."""
_DOUBT = 0.3
"""How much of nothing is mixed into the corrections: far from all points the fit stands alone."""
BELIEF_ERROR = 0.2
"""Relative error of a step time that is only believed."""


class Point(NamedTuple):
    """Where a step time was measured."""

    wide: bool
    gpus: int
    batch: float


class StepModel:
    """What is known of step times. Points come in one by one; `refit` fits many models at once."""

    __slots__ = (
        "_believed",
        "_fits",
        "_fitted",
        "_measured",
        "_misses",
        "_place",
        "expected",
        "largest",
        "stale",
        "version",
    )

    def __init__(self, expected: Expectation = USUAL) -> None:
        self.expected = expected
        """What it expects of synchronising before that was measured."""
        self._measured: dict[Point, tuple[float, float]] = {}
        self._believed: dict[Point, tuple[float, float]] = {}
        self._fits: Fits | None = None
        self._place = 0
        self._fitted = 0
        self._misses: tuple[FloatArray, FloatArray] | None = None
        self.largest = 0
        """The most GPUs that were measured."""
        self.stale = False
        self.version = 0
        """Grows whenever a prediction may be another than before."""

    def __bool__(self) -> bool:
        return bool(self._measured)

    def add(self, point: Point, pass_s: float, step_s: float) -> None:
        """Takes a measurement in; a later one at the same point replaces it. What is no time is ignored."""
        if not (0 < step_s < math.inf and point.gpus > 0 and point.batch > 0):
            return
        if self._measured.get(point) == (pass_s, step_s):
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

    def believe(self, steps_s: Mapping[Point, float]) -> None:
        """Step times that others have told and nobody has measured: they bend the fit a little."""
        self._believed = {point: (math.nan, step_s) for point, step_s in steps_s.items()}
        self.stale = True

    def _is_off(self, point: Point, step_s: float) -> bool:
        assert self._fits is not None
        _, log_step = log_times(self._fits.parameters[self._place], shapes_of([point]))
        return abs(float(log_step[0]) - math.log(step_s)) > OFF

    def times_s(
        self, shapes: Shapes, places: dict[Point, list[int]] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Seconds of a pass and of a step at each shape: as measured, else predicted. Fit it first.

        Who asks for the same shapes again and again gives their `places_of`, too.
        """
        log_pass, log_step = self._corrected(shapes)
        pass_s, step_s = np.exp(log_pass), np.exp(log_step)
        if places is None:
            places = places_of(shapes)
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
            own_alike = _near(own.batch, own.batch, _NEAR_PASS)
            self._misses = slower, times[:, 1] - self._fit_at(own, _nearby(slower, own_alike))[1]
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
    rows = [
        ([*model._measured, *model._believed], [*model._measured.values(), *model._believed.values()])
        for model in stale
    ]
    width = max(len(points) for points, _ in rows)
    gpus, batch = np.ones((len(rows), width)), np.ones((len(rows), width))
    wide = np.zeros((len(rows), width), dtype=bool)
    times, error = np.full((len(rows), width, 2), np.nan), np.full((len(rows), width), ERROR)
    for row, (points, measured) in enumerate(rows):
        own = shapes_of(points)
        n = len(points)
        gpus[row, :n], batch[row, :n], wide[row, :n] = own.gpus, own.batch, own.wide
        times[row, :n] = measured
        error[row, len(stale[row]._measured) : n] = BELIEF_ERROR
    start = np.full((len(rows), PARAMETERS), np.nan)
    for row, model in enumerate(stale):
        if model._fits is not None:
            start[row] = model._fits.parameters[model._place]
    fits = fit(
        Points(Shapes(gpus, batch, wide), times[..., 0], times[..., 1], error),
        start,
        expected=[model.expected for model in stale],
    )
    for row, model in enumerate(stale):
        model._take(fits, row)


def shapes_of(points: Sequence[Point]) -> Shapes:
    table = np.array(points, np.float64).reshape(-1, 3)
    wide: BoolArray = table[:, 0] > 0
    return Shapes(table[:, 1], table[:, 2], wide)


def places_of(shapes: Shapes) -> dict[Point, list[int]]:
    """Where each point stands among the shapes, counted row by row."""
    columns = shapes.wide.ravel().tolist(), shapes.gpus.ravel().tolist(), shapes.batch.ravel().tolist()
    places: dict[Point, list[int]] = {}
    for place, (wide, gpus, batch) in enumerate(zip(*columns, strict=True)):
        places.setdefault(Point(wide, int(gpus), batch), []).append(place)
    return places


def _near(there: FloatArray, here: FloatArray, width: float) -> FloatArray:
    """How near each is to each: 1 for the same, less for every doubling between them."""
    weight: FloatArray = np.exp(-(((np.log2(there)[..., None] - np.log2(here)) / width) ** 2) / 2)
    return weight


def _nearby(missed: FloatArray, near: FloatArray) -> FloatArray:
    """What was missed near each place; nothing where nothing was measured."""
    known = np.isfinite(missed)
    weight = near * known
    mean: FloatArray = weight @ np.where(known, missed, 0.0) / (weight.sum(axis=-1) + _DOUBT)
    return mean
