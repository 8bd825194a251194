"""A curve from measured points and a prior."""

import pytest

from batuta.core.curve import SpeedCurve, linear_curve, power_curve
from batuta.prediction.curve_fit import Footprint, differs, fit_curve

PRIOR = power_curve(16, 0.9)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        # One point says what the prior's 1 stands for, not how the job scales.
        ({4: 10.0}, {1: 1.0, 2: 2**0.9, 4: 4**0.9, 16: 16**0.9}),
        # Through the points; between them straight in log-log; beyond them no better than before.
        ({1: 5.0, 4: 10.0}, {1: 1.0, 2: 2**0.5, 3: 3**0.5, 4: 2.0, 8: 2.0 * 2**0.5, 16: 4.0}),
        # Nor better than the prior, however well it went so far.
        ({1: 5.0, 4: 20.0}, {4: 4.0, 16: 4.0 * 4**0.9}),
        # A job that was slower with more is not believed to be slower still.
        ({1: 5.0, 4: 10.0, 8: 9.0}, {8: 1.8, 16: 1.8}),
        ({1: 1.0, 2: 1.5, 8: 3.0}, {1: 1.0, 2: 1.5, 4: 1.5 * 2**0.5, 8: 3.0}),
        # Below the first point like the prior too.
        ({2: 2**0.9, 4: 3.0}, {1: 1.0, 2: 2**0.9, 4: 3.0}),
        # A job may be slower with more.
        ({1: 2.0, 4: 3.0, 8: 2.5}, {4: 1.5, 8: 1.25}),
        # Never above linear.
        ({1: 1.0, 2: 3.0}, {1: 1.0, 2: 2.0, 4: 4.0}),
        # A point beyond the largest size still counts.
        ({1: 1.0, 32: 4.0}, {1: 1.0, 8: 4 ** (3 / 5), 16: 4 ** (4 / 5)}),
    ],
)
def test_points_and_prior(measured: dict[int, float], expected: dict[int, float]) -> None:
    fit = fit_curve(PRIOR, 16, {Footprint(n): rate for n, rate in measured.items()})
    assert fit is not None
    assert {n: fit.curve.at(n) for n in expected} == pytest.approx(expected)
    assert len(fit.curve.speeds) == 17


def test_nothing_measured_is_no_fit() -> None:
    assert fit_curve(PRIOR, 16, {}) is None


def test_what_one_stands_for() -> None:
    fit = fit_curve(PRIOR, 16, {Footprint(4): 4**0.9 * 7})
    assert fit is not None
    assert fit.units_per_s == pytest.approx(7.0)


def test_the_type_of_gpu_is_taken_out() -> None:
    rates = {Footprint(1): 10.0, Footprint(2, gpu_speed=2.0): 30.0}
    fit = fit_curve(PRIOR, 4, rates)
    assert fit is not None
    assert fit.curve.at(2) == pytest.approx(1.5)


def test_a_size_measured_on_one_node_and_on_two_tells_the_cost_of_the_way() -> None:
    rates = {Footprint(1): 10.0, Footprint(4): 30.0, Footprint(4, nodes=2): 24.0, Footprint(8, nodes=2): 40.0}
    fit = fit_curve(PRIOR, 8, rates)
    assert fit is not None
    assert fit.curve.across_nodes == pytest.approx(0.8)
    assert (fit.curve.at(4), fit.curve.at(8)) == pytest.approx((3.0, 5.0))


def test_without_such_a_size_the_priors_factors_stand() -> None:
    prior = SpeedCurve(PRIOR.speeds, across_nodes=0.5, across_racks=0.8)
    fit = fit_curve(prior, 8, {Footprint(1): 10.0, Footprint(4, 2, 2): 10.0})
    assert fit is not None
    assert (fit.curve.across_nodes, fit.curve.across_racks) == (0.5, 0.8)
    assert fit.curve.at(4) == pytest.approx(1 / 0.5 / 0.8)


@pytest.mark.parametrize(
    ("prior", "at_4", "at_8"),
    [
        (linear_curve(16), 4.0, 8.0),
        (linear_curve(1), 4**0.9, 8**0.9),
        (SpeedCurve.of([0, 2, 4]), 2 * 2**0.9, 2 * 4**0.9),
        # A prior with nothing in it, or above linear, is none.
        (SpeedCurve.of([0, 0, 0]), 4**0.9, 8**0.9),
        (SpeedCurve.of([0, 1, 9]), 4.0, 8.0),
    ],
)
def test_any_prior_has_a_shape_to_follow(prior: SpeedCurve, at_4: float, at_8: float) -> None:
    fit = fit_curve(prior, 8, {Footprint(1): 3.0})
    assert fit is not None
    assert (fit.curve.at(4), fit.curve.at(8)) == pytest.approx((at_4, at_8))


@pytest.mark.parametrize(
    ("a", "b", "is_different"),
    [
        ([0, 1, 2], [0, 1, 2], False),
        ([0, 1, 2], [0, 1, 1.98], False),
        ([0, 1, 2], [0, 1, 1.9], True),
        ([0, 1, 2], [0, 1], True),
        ([0, 1, 0], [0, 1, 0], False),
    ],
)
def test_difference_of_curves(a: list[float], b: list[float], is_different: bool) -> None:
    assert differs(SpeedCurve.of(a), SpeedCurve.of(b), 0.02) is is_different
