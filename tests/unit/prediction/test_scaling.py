"""A curve from measured points, a prior, and the physics of a step."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from batuta.core.curve import SpeedCurve, linear_curve, power_curve
from batuta.prediction.scaling import FitCache, Footprint, Scaling, SpeedMeasurements, fit_all
from batuta.prediction.speed_meter import differs
from tests.unit.prediction.made_runs import sure

PRIOR = power_curve(16, 0.9)


def measured(
    rates: Mapping[Any, float], prior: SpeedCurve = PRIOR, largest: int = 16, **more: Any
) -> SpeedMeasurements:
    spelled = {n if isinstance(n, Footprint) else Footprint(n): rate for n, rate in rates.items()}
    return SpeedMeasurements(prior, largest, spelled, **more)


def scaling(rates: Mapping[Any, float], prior: SpeedCurve = PRIOR, largest: int = 16, **more: Any) -> Scaling:
    return sure(FitCache().scaling(measured(rates, prior, largest, **more)))


def step_s(n: int, sync_s: float, by_gpu_s: float) -> float:
    """A step of one second of compute, shared by all, that nothing overlaps with."""
    return 1.0 / n + (sync_s + by_gpu_s * (n - 2) if n > 1 else 0.0)


# -------------------------------------------------------------------------------- what the curve is like


@pytest.mark.parametrize(
    "rates",
    [
        {1: 5.0, 4: 10.0},
        {1: 5.0, 4: 19.0, 8: 33.0},
        {1: 2.0, 4: 3.0, 8: 2.5},  # slower with more
        {1: 1.0, 3: 2.5, 5: 2.6, 16: 2.7},
    ],
)
def test_the_curve_goes_through_what_was_measured(rates: dict[int, float]) -> None:
    found = scaling(rates)
    assert {n: found.curve.at(n) for n in rates} == pytest.approx({n: r / rates[1] for n, r in rates.items()})
    assert found.units_per_s == pytest.approx(rates[1])
    assert len(found.curve.speeds) == 17


def test_one_point_says_what_the_priors_one_is_and_not_how_the_job_scales() -> None:
    found = scaling({4: 4**0.9 * 7})
    assert found.curve.speeds == pytest.approx(PRIOR.speeds)
    assert found.units_per_s == pytest.approx(7.0)


def test_nothing_measured_is_no_scaling() -> None:
    assert FitCache().scaling(measured({})) is None


def test_a_job_that_follows_the_physics_is_foretold_where_it_never_ran() -> None:
    true = {n: 1.0 / step_s(n, 0.02, 0.001) for n in range(1, 17)}
    found = scaling({n: true[n] for n in (1, 2, 4, 8)})
    for n in (3, 6, 12, 16):
        assert found.curve.at(n) == pytest.approx(true[n] / true[1], rel=0.08), n


def test_steps_that_grow_with_the_gpus_are_told_from_steps_that_are_shared() -> None:
    # A step of 32 samples on each GPU: a pass always takes 1 s, synchronising 0.2 s.
    true = {n: 32.0 * n / (1.0 + (0.2 if n > 1 else 0.0)) for n in range(1, 17)}
    found = scaling({n: true[n] for n in (1, 2, 4)}, step_units={n: 32.0 * n for n in (1, 2, 4)})
    assert found.curve.at(16) == pytest.approx(true[16] / true[1], rel=0.1)


def test_between_two_measured_sizes_no_speed_is_outside_of_theirs() -> None:
    curve = scaling({1: 10.0, 4: 36.8, 8: 40.0}).curve
    assert all(3.68 <= curve.at(n) <= 4.0 for n in (5, 6, 7))


def test_a_job_that_gained_little_from_its_last_gpus_does_not_gain_more_from_the_next() -> None:
    curve = scaling({1: 5.0, 4: 10.0, 8: 11.0}).curve
    assert curve.at(16) <= 2.2 * 1.1 + 1e-9
    assert scaling({1: 5.0, 4: 10.0, 8: 9.0}).curve.at(16) <= 1.8 + 1e-9


def test_no_speed_is_above_linear() -> None:
    curve = scaling({1: 1.0, 2: 3.0}).curve
    assert all(curve.at(n) <= n for n in range(1, 17))


def test_a_point_beyond_the_largest_size_still_counts() -> None:
    found = scaling({1: 1.0, 32: 4.0}).curve
    assert len(found.speeds) == 17
    assert 2.0 < found.at(16) < 4.0


# -------------------------------------------------------------------------------- where the GPUs are


def test_the_type_of_gpu_is_taken_out() -> None:
    found = scaling({1: 10.0, Footprint(2, gpu_speed=2.0): 30.0})
    assert found.curve.at(2) == pytest.approx(1.5)


def test_a_size_measured_on_one_node_and_on_two_tells_the_cost_of_the_way() -> None:
    rates = {1: 10.0, 4: 30.0, Footprint(4, nodes=2): 24.0, Footprint(8, nodes=2): 40.0}
    curve = scaling(rates).curve
    assert curve.across_nodes == pytest.approx(0.8)
    assert (curve.at(4), curve.at(8)) == pytest.approx((3.0, 5.0))


def test_without_such_a_size_the_physics_says_what_the_way_costs() -> None:
    curve = scaling({1: 10.0, 2: 19.5, 4: 38.0, Footprint(8, nodes=2): 40.0}).curve
    assert curve.across_nodes < 0.8
    assert curve.at(8) * curve.across_nodes == pytest.approx(4.0)


def test_as_long_as_one_way_only_was_measured_the_priors_factors_stand() -> None:
    prior = SpeedCurve(PRIOR.speeds, across_nodes=0.9, across_racks=0.8)
    curve = scaling({Footprint(4, 2): 10.0, Footprint(8, 2, 2): 12.0}, prior).curve
    assert (curve.across_nodes, curve.across_racks) == (0.9, 0.8)
    assert curve.at(8) / curve.at(4) == pytest.approx(1.2 / 0.8)


# -------------------------------------------------------------------------------- what is believed, too


def test_what_the_prior_believes_counts_beyond_what_was_measured() -> None:
    rates = {1: 1.0, 2: 1.8}
    poor = SpeedCurve.of([0, 1, 1.8, 2.1, 2.3, 2.4, 2.5, 2.55, 2.6])
    good = linear_curve(8)
    assert scaling(rates, poor, 8).curve.at(8) < 0.8 * scaling(rates, good, 8).curve.at(8)


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
    found = scaling({1: 3.0}, prior, 8)
    assert (found.curve.at(4), found.curve.at(8)) == pytest.approx((at_4, at_8))


# -------------------------------------------------------------------------------- how sure, how noisy


def test_the_further_from_what_was_measured_the_less_sure() -> None:
    for rates in ({1: 10.0}, {1: 10.0, 2: 19.0}):
        doubt = FitCache().doubt(measured(rates))
        assert doubt[15] > 2 * doubt[0]
    few, many = (FitCache().doubt(measured({n: n**0.9 for n in sizes})) for sizes in ((1, 2), (1, 2, 4, 8)))
    assert many[15] < few[15]
    assert np.isinf(FitCache().doubt(measured({}))).all()


def test_samples_beyond_the_gradient_noise_count_for_less() -> None:
    growing: dict[str, Any] = {"step_units": {1: 32.0, 2: 64.0, 4: 128.0}}
    rates = {1: 100.0, 2: 200.0, 4: 400.0}
    raw, noisy = scaling(rates, **growing), scaling(rates, **growing, noise_units=32.0)
    assert raw.curve.at(4) == pytest.approx(4.0)
    assert noisy.curve.at(4) == pytest.approx(4.0 * (32 + 32) / (32 + 128), rel=0.02)
    # Steps of the same work teach the same, whoever does them.
    assert scaling(rates, noise_units=32.0).curve == scaling(rates).curve


# -------------------------------------------------------------------------------- when it fits


def test_what_changes_little_is_not_fitted_again_and_still_goes_through_the_points() -> None:
    fits = FitCache()
    before = sure(fits.scaling(measured({1: 10.0, 4: 30.0})))
    after = sure(fits.scaling(measured({1: 10.0, 4: 30.05})))
    assert before.curve.at(4) == pytest.approx(3.0)
    assert after.curve.at(4) == pytest.approx(3.005)
    assert after == scaling({1: 10.0, 4: 30.05}), "what was asked before makes no difference"


def test_many_fits_at_once_are_the_same_as_one_by_one() -> None:
    asked = [measured({1: 10.0, 2: 10.0 + k, 8: 30.0 + k}) for k in range(6)]
    shared = [FitCache() for _ in asked]
    fit_all(zip(shared, asked, strict=True))
    for fits, one in zip(shared, asked, strict=True):
        assert sure(fits.scaling(one)).curve.speeds == pytest.approx(
            sure(FitCache().scaling(one)).curve.speeds, rel=1e-9
        )


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
