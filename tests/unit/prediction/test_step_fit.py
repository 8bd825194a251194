"""Step times from a few measured points: the form, the fit of many at once, and how sure it is."""

import numpy as np
import pytest

from batuta.core.arrays import FloatArray
from batuta.prediction.step_time import (
    PARAMETERS,
    Points,
    Shapes,
    fit,
    log_deviation,
    log_times,
    log_times_and_slopes,
)

TRUE = np.array([-3.0, -6.5, -2.5, -6.0, -3.5, -7.0, -1.0])
GPUS, BATCH = [1, 2, 4, 8, 16, 32], [16, 64]


def grid(gpus: list[int] = GPUS, batch: list[int] = BATCH, problems: int = 1) -> Shapes:
    n, b = (np.tile(axis.ravel().astype(float), (problems, 1)) for axis in np.meshgrid(gpus, batch))
    return Shapes(n, b, n > 4)


def times(parameters: FloatArray, shapes: Shapes) -> Points:
    log_pass, log_step = log_times(parameters[..., None, :], shapes)
    return Points(shapes, np.exp(log_pass), np.exp(log_step))


def test_the_slopes_are_those_of_the_form() -> None:
    random = np.random.default_rng(0)
    parameters, shapes = random.normal(size=(5, 1, PARAMETERS)), grid(problems=5)
    _, _, of_pass, of_step = log_times_and_slopes(parameters, shapes)
    for k in range(PARAMETERS):
        nudge = np.zeros(PARAMETERS)
        nudge[k] = 1e-6
        above, below = log_times(parameters + nudge, shapes), log_times(parameters - nudge, shapes)
        np.testing.assert_allclose((above[0] - below[0]) / 2e-6, of_pass[..., k], atol=1e-8)
        np.testing.assert_allclose((above[1] - below[1]) / 2e-6, of_step[..., k], atol=1e-8)


def test_a_step_takes_at_least_a_pass_and_at_most_pass_and_communication_together() -> None:
    points = times(TRUE, grid())
    assert (points.step_s >= points.pass_s * (1 - 1e-12)).all()
    alone = points.shapes.gpus == 1
    np.testing.assert_allclose(points.step_s[alone], points.pass_s[alone])


def test_enough_points_give_the_times_at_sizes_nobody_tried() -> None:
    known = times(TRUE, grid(gpus=[1, 2, 4, 8, 32]))
    found = fit(known).parameters
    wanted = grid(gpus=[16, 64], batch=[32])
    np.testing.assert_allclose(times(found, wanted).step_s, times(TRUE, wanted).step_s, rtol=0.05)


def test_many_are_fitted_side_by_side_as_if_each_were_alone() -> None:
    random = np.random.default_rng(1)
    true = TRUE + 0.3 * random.normal(size=(20, PARAMETERS))
    together = fit(times(true, grid(problems=20)), steps=30).parameters
    alone = fit(times(true[7:8], grid()), steps=30).parameters
    wanted = grid(gpus=[64], batch=[32])
    np.testing.assert_allclose(times(together[7:8], wanted).step_s, times(alone, wanted).step_s, rtol=0.02)


def test_one_absurd_point_does_not_spoil_the_others() -> None:
    points = times(TRUE, grid())
    points.step_s[0, 3] *= 20
    wanted = grid(gpus=[2, 16])
    found = fit(points).parameters
    np.testing.assert_allclose(times(found, wanted).step_s, times(TRUE, wanted).step_s, rtol=0.25)


def test_communication_is_found_although_the_prior_thinks_little_of_it() -> None:
    slow = TRUE + np.array([0, 0, 4.0, 4.0, 3.0, 3.0, 0])
    known = times(slow, grid(gpus=[4, 16], batch=[32]))
    wanted = grid(gpus=[64], batch=[32])
    assert times(fit(known).parameters, wanted).step_s == pytest.approx(times(slow, wanted).step_s, rel=0.5)


def test_steps_alone_are_enough_and_what_is_not_measured_is_left_out() -> None:
    known = times(TRUE, grid())
    known.pass_s[:] = np.nan
    known.step_s[0, -1] = np.nan
    found = fit(known)
    assert np.isfinite(found.parameters).all()
    np.testing.assert_allclose(times(found.parameters, grid()).step_s, times(TRUE, grid()).step_s, rtol=0.1)


def test_the_further_from_all_points_the_less_sure() -> None:
    found = fit(times(TRUE, grid(gpus=[1, 2, 4], batch=[32])))
    shapes = Shapes(np.array([2.0, 8.0, 64.0]), np.full(3, 32.0), np.array([False, True, True]))
    near, beyond, far = log_deviation(found, 0, shapes)
    assert near < 0.1 < beyond <= far


def test_a_warm_start_that_was_wrong_is_left() -> None:
    known = times(TRUE, grid())
    found = fit(known, start=np.full((1, PARAMETERS), -20.0)).parameters
    np.testing.assert_allclose(times(found, grid()).step_s, known.step_s, rtol=0.1)
