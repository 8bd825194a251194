"""Silence is a hang only after a job has shown how often it speaks."""

import pytest

from batuta.prediction.hang import HangMeter, HangReport, HangRules, blocking_ranks

RULES = HangRules(after_s=60.0)


def listened(*times_s: float, meter: HangMeter | None = None) -> HangMeter:
    meter = meter or HangMeter(RULES)
    for time_s in times_s:
        meter.heard(time_s)
    return meter


def silence(meter: HangMeter, since_s: float, until_s: float) -> HangReport | None:
    """What is found by who looks every second."""
    found = (meter.look(float(now_s)) for now_s in range(int(since_s), int(until_s) + 1))
    return next((one for one in found if one is not None), None)


def test_a_job_that_stops_reporting_hangs_after_the_given_time():
    meter = listened(*range(10))
    found = silence(meter, 9, 200)
    assert found is not None
    assert (found.silent_s, found.usual_s) == (60.0, 1.0)


def test_a_job_that_reports_nothing_never_hangs():
    meter = HangMeter(RULES)
    assert silence(meter, 0, 5000) is None


def test_nor_does_one_that_has_hardly_begun_to():
    assert silence(listened(0, 1, 2, 3), 3, 5000) is None


def test_a_job_with_long_steps_gets_many_of_them():
    meter = listened(*range(0, 1000, 100))
    assert silence(meter, 900, 900 + 1999) is None
    found = silence(meter, 900 + 2000, 900 + 2000)
    assert found is not None


def test_a_job_that_was_silent_before_may_be_so_again():
    meter = listened(*range(10), 509, *range(510, 520))
    assert silence(meter, 519, 519 + 1499) is None
    assert silence(meter, 519 + 1500, 519 + 1500) is not None


def test_what_earlier_runs_showed_holds_for_later_ones():
    meter = listened(*range(10), 509, *range(510, 520))
    meter.began()
    assert silence(listened(*range(1000, 1010), meter=meter), 1009, 1009 + 1000) is None


def test_a_new_run_has_to_report_before_its_silence_counts():
    meter = listened(*range(10))
    meter.began()
    assert silence(meter, 10, 5000) is None


def test_a_job_whose_steps_are_all_done_does_not_hang():
    meter = listened(*range(10))
    meter.is_done = True
    assert silence(meter, 9, 5000) is None


def test_time_in_which_nobody_looked_is_not_silence():
    meter = listened(*range(10))
    assert meter.look(10.0) is None
    assert meter.look(40_000.0) is None, "the machine slept, and the job did too"
    assert silence(meter, 40_000, 40_059) is None
    assert silence(meter, 40_060, 40_070) is not None


def test_who_looks_seldom_is_told_when_to_come_again():
    meter = listened(*range(10))
    assert meter.next_look_s(10.0) == 69.0
    meter.heard(50.0)
    assert meter.look(50.0) is None, "to look before that does no harm"
    assert meter.look(69.0) is None
    # The longest silence was 41 s by now.
    assert meter.next_look_s(69.0) == 50.0 + 3 * 41.0
    assert meter.look(50.0 + 3 * 41.0) is not None


def test_and_has_seen_nothing_when_it_comes_too_late():
    meter = listened(*range(10))
    assert meter.look(meter.next_look_s(10.0) + 60.0) is None


def test_of_a_job_that_has_said_nothing_yet_too():
    meter = HangMeter(RULES)
    assert meter.next_look_s(10.0) == 70.0


def test_any_word_is_a_sign_of_life_but_not_that_others_are_waited_for():
    meter = listened(*range(10))
    meter.heard(50.0, rank=1)
    assert silence(meter, 50, 109) is None
    meter.heard(109.0, rank=1, waits=True)
    found = silence(meter, 109, 300)
    assert found is not None
    # The longest silence was 41 s, and three times that is longer than a minute.
    assert found.silent_s == 123.0


def test_never_is_a_rule_too():
    meter = HangMeter(HangRules(after_s=float("inf")))
    assert silence(listened(*range(10), meter=meter), 9, 50_000) is None


@pytest.mark.parametrize(
    ("waits", "guilty"),
    [
        ({0: True, 1: False, 2: True}, (1,)),
        ({0: True, 1: False}, (1,)),
        ({0: True, 1: False, 2: False}, ()),
        ({0: True, 1: True}, ()),
        ({0: False, 1: False, 2: False}, ()),
        ({0: False}, ()),
        ({}, ()),
    ],
)
def test_those_who_do_not_wait_are_to_blame_if_most_others_do(waits, guilty):
    assert blocking_ranks(waits) == guilty


@pytest.mark.parametrize("rules", [{"after_s": 0.0}, {"times_usual": 0.5}, {"times_longest": 0.5}, {"reports": 1}])
def test_rules_that_make_no_sense_are_refused(rules):
    with pytest.raises(ValueError, match="a hang needs"):
        HangRules(**rules)
