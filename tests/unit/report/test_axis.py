import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.report.plot import log_axis, log_time_axis, nice_step, number_axis, share_axis, time_axis

PX = (100.0, 600.0)


def labels(axis):
    return [tick.label for tick in axis.ticks if tick.label]


@pytest.mark.parametrize(("rough", "step"), [(0.9, 1), (1.1, 2), (2.2, 2.5), (3, 5), (7, 10), (0.03, 0.05), (0, 1)])
def test_nice_steps(rough, step):
    assert nice_step(rough) == pytest.approx(step)


def test_time_ticks_are_in_one_unit_that_the_title_names():
    axis = time_axis(31 * 3600, PX, "Time")
    assert axis.title == "Time (h)"
    assert labels(axis) == ["0", "6", "12", "18", "24", "30"]
    assert time_axis(100 * 86400, PX, "Time").title == "Time (d)"
    assert labels(time_axis(45, PX, "Time")) == ["0", "10", "20", "30", "40"]


def test_log_time_ticks_have_units_and_room():
    axis = log_time_axis(1, 30 * 86400, PX, "JCT")
    shown = [(axis.px(tick.value), tick.label) for tick in axis.ticks if tick.label]
    assert {"1 min", "1 h", "1 d"} <= {text for _, text in shown}
    for (left, text), (right, other) in pairwise(shown):
        assert right - left > (len(text) + len(other)) * 3.5


def test_log_axis_around_one():
    assert labels(log_axis(0.1, 12, PX, "ρ")) == ["0.1", "0.2", "0.5", "1", "2", "5", "10"]
    assert len(labels(log_axis(0.95, 1.03, PX, "ρ"))) >= 2


def test_counts_have_whole_ticks():
    assert labels(number_axis(1, PX, "jobs", kind="whole")) == ["0", "1"]
    assert labels(number_axis(11, PX, "jobs", kind="whole")) == ["0", "2", "4", "6", "8", "10", "12"]
    assert labels(number_axis(51, PX, "jobs", kind="whole")) == ["0", "20", "40", "60"]
    assert labels(share_axis(PX, "used"))[-1] == "100 %"


# From a nanosecond to thirty million years, either sign, and what a division by zero may leave behind.
numbers = st.one_of(
    st.floats(1e-9, 1e15),
    st.floats(-1e15, -1e-9),
    st.sampled_from([0.0, math.nan, math.inf, -math.inf]),
)


@given(numbers, numbers)
def test_any_range_gives_an_axis_with_finite_pixels(low, high):
    for axis in (
        number_axis(high, PX, ""),
        time_axis(min(high, 1e12), PX, ""),
        log_axis(low, min(high, 1e12), PX, ""),
        log_time_axis(low, min(high, 1e12), PX, ""),
    ):
        assert axis.ticks is not None
        assert len(axis.ticks) < 100
        for value in (axis.low, axis.high, 1.0):
            assert PX[0] - 1e-6 <= axis.px(value) <= PX[1] + 1e-6
        assert all(math.isfinite(axis.px(tick.value)) for tick in axis.ticks)
