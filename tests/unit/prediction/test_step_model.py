"""Step times learned point by point."""

import math

import numpy as np
import pytest

from batuta.prediction.step_time import MOST_POINTS, Point, StepModel, refit, shapes_of


def true_times(point: Point) -> tuple[float, float]:
    pass_s = 0.05 + 0.002 * point.batch
    sync_s = 0.0 if point.gpus == 1 else (0.06 if point.wide else 0.02) * (1 + point.gpus / 50)
    return pass_s, math.hypot(pass_s, sync_s)


def taught(*points: Point) -> StepModel:
    model = StepModel()
    for point in points:
        model.add(point, *true_times(point))
    refit([model])
    return model


NEAR = [Point(False, n, b) for n in (1, 2, 4) for b in (16.0, 64.0)]
WIDE = [Point(True, n, b) for n in (8, 16) for b in (16.0, 64.0)]


def test_a_measured_point_is_used_as_it_was_measured() -> None:
    model = taught(*NEAR, *WIDE)
    odd = Point(True, 8, 32.0)
    model.add(odd, 0.5, 0.9)
    refit([model])
    pass_s, step_s = model.times_s(shapes_of([odd, NEAR[0], odd]))
    assert pass_s.tolist() == [0.5, true_times(NEAR[0])[0], 0.5]
    assert step_s.tolist() == [0.9, true_times(NEAR[0])[1], 0.9]


def test_what_was_not_measured_is_near_the_truth() -> None:
    model = taught(*NEAR, *WIDE)
    unseen = [Point(False, 2, 32.0), Point(True, 12, 32.0), Point(True, 32, 32.0)]
    _, step_s = model.times_s(shapes_of(unseen))
    assert step_s.tolist() == pytest.approx([true_times(point)[1] for point in unseen], rel=0.1)


def test_a_point_corrects_its_neighbours_and_not_those_far_away() -> None:
    model = taught(*NEAR, *WIDE)
    beside, far = Point(True, 16, 60.0), Point(False, 1, 16.5)
    before = model.times_s(shapes_of([beside, far]))[1]
    surprise = Point(True, 16, 58.0)
    pass_s, step_s = true_times(surprise)
    model.add(surprise, pass_s, step_s * 1.02)  # not enough for a new fit
    assert not model.stale
    after = model.times_s(shapes_of([beside, far]))[1]
    assert after[0] > before[0] * 1.002
    assert after[1] == pytest.approx(before[1], rel=1e-3)


def test_a_pass_that_is_slow_at_a_batch_is_slow_on_any_number_of_gpus() -> None:
    model = taught(*NEAR, *WIDE)
    odd, alone, far = Point(True, 16, 32.0), Point(False, 1, 32.0), Point(False, 1, 8.0)
    before = model.times_s(shapes_of([alone, far]))
    pass_s, step_s = true_times(odd)
    model.add(odd, pass_s * 1.3, math.hypot(pass_s * 1.3, math.sqrt(step_s**2 - pass_s**2)))
    refit([model])
    (slow_s, far_s), step_s_of = model.times_s(shapes_of([alone, far]))
    assert slow_s > before[0][0] * 1.08
    assert step_s_of[0] == pytest.approx(slow_s, rel=0.02)  # nothing to synchronise with
    assert far_s == pytest.approx(before[0][1], rel=0.05)


def test_steps_alone_say_nothing_of_passes() -> None:
    model = StepModel()
    for point in (*NEAR, *WIDE):
        model.add(point, math.nan, true_times(point)[1])
    refit([model])
    unseen = [Point(False, 2, 32.0), Point(True, 12, 32.0)]
    pass_s, step_s = model.times_s(shapes_of(unseen))
    assert np.isfinite(pass_s).all()
    assert step_s.tolist() == pytest.approx([true_times(point)[1] for point in unseen], rel=0.1)


def test_a_new_fit_is_made_only_when_something_new_was_seen() -> None:
    model = taught(*NEAR, *WIDE)
    middle, large = Point(False, 2, 30.0), Point(True, 64, 16.0)
    pass_s, step_s = true_times(middle)
    calls = []
    for point, times in (
        (NEAR[0], true_times(NEAR[0])),  # known
        (middle, (pass_s, step_s * 1.5)),  # far from what was expected
        (large, true_times(large)),  # the largest so far
    ):
        model.add(point, *times)
        calls.append(model.stale)
        refit([model])
    assert calls == [False, True, True]
    assert model.largest == 64


@pytest.mark.parametrize("step_s", [math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_time_is_ignored(step_s: float) -> None:
    model = StepModel()
    model.add(Point(False, 1, 16.0), 0.1, step_s)
    assert not model


def test_the_oldest_points_are_forgotten() -> None:
    model = taught(*(Point(False, 1, float(b)) for b in range(1, MOST_POINTS + 10)))
    _, step_s = model.times_s(shapes_of([Point(False, 1, 1.0)]))
    assert np.isfinite(step_s).all()
    assert len(model._measured) == MOST_POINTS


def test_uncertainty_shrinks_where_points_are() -> None:
    few, many = taught(*NEAR), taught(*NEAR, *WIDE)
    wide = shapes_of([Point(True, 16, 32.0)])
    assert many.log_deviation(wide)[0] < few.log_deviation(wide)[0] / 2
