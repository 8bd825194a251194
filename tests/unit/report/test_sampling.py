import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.report.plot import cumulative_shares, mean_per_bin, step_sum, thin_steps

steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=300)


@given(steps, st.integers(8, 60))
def test_thinned_steps_are_few_true_and_keep_ends_and_extremes(points, limit):
    time = np.cumsum([gap for gap, _ in points]).astype(float)
    value = np.array([float(height) for _, height in points])
    thin_time, thin_value = thin_steps(time, value, limit)
    assert len(thin_time) <= limit
    assert (np.diff(thin_time) >= 0).all()
    assert set(zip(thin_time, thin_value, strict=True)) <= set(zip(time, value, strict=True))
    if time[-1] > time[0]:
        assert (thin_time[0], thin_value[0]) == (time[0], value[0])
        assert (thin_time[-1], thin_value[-1]) == (time[-1], value[-1])
        assert (thin_value.min(), thin_value.max()) == (value.min(), value.max())


def test_few_points_lose_repeats_only():
    time, value = thin_steps(np.arange(6.0), np.array([1.0, 1, 2, 2, 2, 2]), 100)
    assert time.tolist() == [0, 2, 5]
    assert value.tolist() == [1, 2, 2]


def test_mean_per_bin_is_weighted_by_time_and_zero_outside():
    time, value = np.array([0.0, 1.0, 4.0]), np.array([8.0, 0.0, 5.0])
    assert mean_per_bin(time, value, np.array([0.0, 2.0, 4.0, 6.0])).tolist() == [4.0, 0.0, 0.0]


def test_step_sum_adds_changes_at_the_same_time():
    time, level = step_sum(np.array([5.0, 1.0, 1.0]), np.array([-3.0, 1.0, 2.0]))
    assert time.tolist() == [1.0, 5.0]
    assert level.tolist() == [3.0, 0.0]


@pytest.mark.parametrize("limit", [10, 1000])
def test_shares_end_at_the_finished_part(limit):
    values, shares = cumulative_shares(np.arange(50.0)[::-1], 100, limit)
    assert len(values) <= limit
    assert (values[0], values[-1]) == (0.0, 49.0)
    assert (shares[0], shares[-1]) == (0.01, 0.5)
