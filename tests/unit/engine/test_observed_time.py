"""Ages are counted by time that has passed: a clock that jumps makes nothing older."""

import math

import pytest

from batuta.engine.observed_time import SETTING
from tests.support.observed import KeptTexts, SetTime

DAY_S = 86_400.0
NOW_S = 1_000 * DAY_S
YEAR_S = 365 * DAY_S


def test_without_jumps_an_age_is_what_the_clock_says():
    time = SetTime(NOW_S)
    observed = time.observed()
    time.passes(3 * DAY_S)
    assert observed.before_s(2 * DAY_S) == NOW_S + DAY_S
    assert observed.before_s(30 * DAY_S) == NOW_S - 27 * DAY_S
    assert observed.before_s(math.inf) == -math.inf


def test_a_jump_ahead_makes_nothing_older():
    time = SetTime(NOW_S)
    observed = time.observed()
    time.passes(DAY_S)
    time.jumps(YEAR_S)
    assert observed.before_s(7 * DAY_S) == NOW_S - 6 * DAY_S
    time.passes(2 * DAY_S)
    assert observed.before_s(DAY_S) == time.wall_s - DAY_S, "what came after the jump is as old as the clock says"
    assert observed.before_s(7 * DAY_S) == NOW_S - 4 * DAY_S


def test_a_jump_ahead_that_is_taken_back_leaves_all_as_it_was():
    time = SetTime(NOW_S)
    observed = time.observed()
    time.jumps(YEAR_S)
    assert observed.look()
    time.jumps(-YEAR_S)
    time.passes(DAY_S)
    assert observed.before_s(7 * DAY_S) == NOW_S - 6 * DAY_S


def test_a_jump_back_makes_nothing_older():
    time = SetTime(NOW_S)
    observed = time.observed()
    time.jumps(-YEAR_S)
    assert observed.before_s(7 * DAY_S) == NOW_S - YEAR_S - 7 * DAY_S


def test_a_clock_that_is_put_right_after_it_was_set_back_ages_things_as_before():
    time = SetTime(NOW_S)
    observed = time.observed()
    time.jumps(-YEAR_S)
    assert observed.look()
    time.passes(DAY_S)
    time.jumps(YEAR_S)
    assert observed.before_s(7 * DAY_S) == NOW_S - 6 * DAY_S


def test_several_jumps_add_up():
    time = SetTime(NOW_S)
    observed = time.observed()
    for _ in range(100):
        time.jumps(YEAR_S)
        assert observed.look()
        time.passes(DAY_S / 10)
    assert NOW_S - 1e-3 < observed.before_s(10 * DAY_S) < NOW_S + 1e-3
    assert observed.before_s(20 * DAY_S) <= NOW_S - 10 * DAY_S + 1e-3


def test_small_corrections_are_no_jump():
    time = SetTime(NOW_S)
    observed = time.observed()
    time.jumps(30.0)
    assert not observed.look()


def test_what_was_observed_outlives_the_process():
    time, settings = SetTime(NOW_S), KeptTexts()
    observed = time.observed(settings)
    time.jumps(YEAR_S)
    assert observed.look()
    observed.save()
    time.passes(3_600.0)
    assert time.observed(settings).before_s(7 * DAY_S) == NOW_S + 3_600.0 - 7 * DAY_S


def test_of_a_time_in_which_no_process_was_there_a_day_counts():
    """Nobody can tell a server that was off for a year from a clock that was set while it was off for a minute."""
    time, settings = SetTime(NOW_S), KeptTexts()
    time.observed(settings).save()
    time.passes(YEAR_S)
    observed = time.observed(settings)
    assert observed.before_s(7 * DAY_S) == NOW_S - 6 * DAY_S


def test_a_process_that_finds_nothing_kept_goes_by_the_last_event():
    time = SetTime(NOW_S)
    assert time.observed(last_s=NOW_S - YEAR_S).before_s(7 * DAY_S) == NOW_S - YEAR_S - 6 * DAY_S


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seen_s": "x"}', '{"seen_s": 1, "jumps": [[1]]}', '{"seen_s": NaN}'])
def test_what_cannot_be_read_is_as_if_it_was_not_there(text):
    time, settings = SetTime(NOW_S), KeptTexts()
    settings.put(SETTING, text)
    assert time.observed(settings).before_s(DAY_S) == NOW_S - DAY_S
