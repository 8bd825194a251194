"""How long a job waits that has failed."""

from dataclasses import replace

from batuta.backends.kube.operator.context import RESTART_BACKOFF, Timing


def test_the_pause_doubles_with_each_failure_up_to_six_minutes():
    pauses_s = [Timing().restart_backoff.pause_s(failures) for failures in (1, 2, 3, 6, 7, 1000)]
    assert pauses_s == [10.0, 20.0, 40.0, 320.0, 360.0, 360.0]


def test_a_long_pause_is_not_cut_short():
    assert replace(RESTART_BACKOFF, first_s=1000.0).pause_s(3) == 1000.0
