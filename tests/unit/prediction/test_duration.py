"""Beliefs about lengths of time: quantiles, what is left of them, and what samples with open ends tell."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.prediction.duration import (
    LEAST_S,
    LEVELS,
    Quantiles,
    combine,
    remaining_by_report,
    survival_quantiles,
)

BELIEF = Quantiles((100.0, 200.0, 400.0, 800.0, 1600.0))
some_seconds = st.lists(st.floats(1.0, 1e8), min_size=5, max_size=5)


def test_a_quantile_between_the_levels_lies_between_their_seconds() -> None:
    assert BELIEF.at(0.5) == pytest.approx(400.0)
    assert 400.0 < BELIEF.at(0.6) < 800.0
    assert BELIEF.at(0.99) > 1600.0
    assert 0 < BELIEF.at(0.01) < 100.0


@pytest.mark.parametrize("level", [-0.1, 1.0, math.nan])
def test_a_level_outside_of_0_to_1_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        BELIEF.at(level)


def test_any_numbers_make_a_belief_that_never_falls() -> None:
    made = Quantiles.of((math.nan, math.inf, -3.0, 50.0, 20.0))
    assert list(made.seconds) == sorted(made.seconds)
    assert all(LEAST_S <= seconds < math.inf for seconds in made.seconds)


def test_a_job_that_has_lasted_longer_than_the_median_is_not_over_at_once() -> None:
    left = BELIEF.left_after(500.0)
    # Half of those that last longer than 500 s last longer than this as well.
    assert left.p50_s > 300.0
    assert left.p90_s > BELIEF.p90_s - 500.0


def test_a_job_that_has_outlasted_all_earlier_ones_goes_on_for_a_share_of_its_age() -> None:
    rigid = Quantiles((100.0,) * 5)
    assert 1.0 < rigid.left_after(1000.0).p50_s < 200.0
    assert BELIEF.left_after(1e6).p50_s > 1e4


@given(seconds=some_seconds, spent=st.floats(0.0, 1e8))
def test_what_is_left_is_always_a_belief(seconds: list[float], spent: float) -> None:
    left = Quantiles.of(seconds).left_after(spent)
    assert len(left.seconds) == len(LEVELS)
    assert list(left.seconds) == sorted(left.seconds)
    assert all(LEAST_S <= one < math.inf for one in left.seconds)


@given(seconds=some_seconds, early=st.floats(1.0, 1e6), later=st.floats(1.0, 1e6))
def test_the_longer_a_job_has_lasted_the_later_is_its_end(seconds, early, later) -> None:
    early, later = sorted((early, later))
    belief = Quantiles.of(seconds)
    assert early + belief.left_after(early).p90_s <= (later + belief.left_after(later).p90_s) * (1 + 1e-6) + 1.0


def test_without_open_ends_quantiles_are_those_of_the_sample() -> None:
    values = np.arange(1.0, 100.0)
    found = survival_quantiles(values, np.ones(99, bool))
    assert found.tolist() == [10.0, 25.0, 50.0, 75.0, 90.0]


def test_jobs_that_still_run_make_the_quantiles_longer_and_not_shorter() -> None:
    truth = np.random.default_rng(3).lognormal(6.0, 1.0, 4000)
    so_far = np.random.default_rng(4).uniform(0.0, 2000.0, 4000)
    ended = truth <= so_far
    median, p75 = survival_quantiles(np.minimum(truth, so_far), ended, (0.5, 0.75))

    assert median == pytest.approx(np.quantile(truth, 0.5), rel=0.1)
    assert p75 == pytest.approx(np.quantile(truth, 0.75), rel=0.1)
    # Whoever leaves them out, or takes them for ended, believes in far shorter jobs.
    assert np.quantile(truth[ended], 0.5) < 0.8 * np.quantile(truth, 0.5)


def test_a_sample_in_which_nobody_is_done_gives_its_longest() -> None:
    assert survival_quantiles(np.array([5.0, 9.0]), np.zeros(2, bool)).tolist() == [9.0] * len(LEVELS)


def test_a_report_is_believed_more_the_further_the_job_is() -> None:
    spreads = [remaining_by_report(1000.0, fraction).log_sd for fraction in (0.0, 0.3, 0.9, 1.0)]
    assert spreads == sorted(spreads, reverse=True)
    assert remaining_by_report(1000.0, 0.3).p50_s == pytest.approx(1000.0)


def test_of_two_beliefs_the_surer_one_is_heard_more() -> None:
    sure, unsure = Quantiles.around(100.0, 0.1), Quantiles.around(1000.0, 1.0)
    both = combine(sure, unsure)
    assert both.p50_s == pytest.approx(100.0, rel=0.05)
    assert both.log_sd < sure.log_sd
    assert combine(unsure, sure) == both
