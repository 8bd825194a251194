import math

import pytest

from batuta.report.formatting import count, decimals_for, duration, fixed, percent, significant, times


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "0.0123 s"),
        (59.96, "60.0 s"),
        (119, "119 s"),
        (150, "2.50 min"),
        (3600, "60 min"),
        (8489.59, "2.36 h"),
        (9999 * 86400, "9,999 d"),
        (math.nan, "–"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(9.999, "10.0"), (123456.7, "123,457"), (0.00012345, "0.000123"), (-2.5, "-2.50"), (3.0, "3")],
)
def test_three_digits(value, text):
    assert significant(value) == text


def test_factors_shares_and_counts():
    assert times(1.4189) == "1.42×"
    assert times(13.69) == "13.7×"
    assert percent(0.876) == "88 %"
    assert count(1, "job") == "1 job"
    assert count(12000, "job") == "12,000 jobs"


def test_columns_show_small_values_beside_large_ones():
    assert decimals_for([120.0, 0.3]) == 1
    assert decimals_for([5.0, 0.0, 7.0]) == 0
    assert decimals_for([math.nan]) == 0
    assert fixed(0.004, 2) == "<0.01"
    assert fixed(0.0, 2) == "0.00"
    assert fixed(1234.5, 0) == "1,234"
