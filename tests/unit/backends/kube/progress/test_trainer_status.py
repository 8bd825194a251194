"""How far training is, as the status of a UnifiedJob says it."""

import pytest

from batuta.backends.kube.operator.unified_job_status import Outlook, short_time, trainer_status
from batuta.core.job import Progress


def test_nothing_is_said_of_a_job_that_says_nothing():
    assert trainer_status(None, 5.0, 0.0) == {}


def test_a_job_that_reports_shows_percent_what_is_left_and_its_numbers():
    progress = Progress(fraction=0.429, step=429, total_steps=1000, loss=0.5, samples_per_s=64.0)
    shown = trainer_status(progress, 754.2, 0.0)
    assert (shown["progress"], shown["eta"]) == ("42%", "12m35s")
    assert shown["trainerStatus"] == {
        "progressPercentage": 42,
        "estimatedRemainingSeconds": 755,
        "metrics": [
            {"name": "loss", "value": "0.5"},
            {"name": "samples_per_second", "value": "64.0"},
            {"name": "step", "value": "429"},
        ],
        "lastUpdatedTime": "1970-01-01T00:00:00Z",
    }


def test_what_is_left_stands_until_something_else_is_heard():
    """Given the same progress later, with less left, nothing is new: the status is not written for it."""
    outlook = Outlook()
    assert outlook.progresses(Progress(fraction=0.5), 100.0, now_s=10.0)
    assert not outlook.progresses(Progress(fraction=0.5), 90.0, now_s=20.0)
    assert not outlook.progresses(None, None, now_s=30.0)
    assert (outlook.left_s, outlook.heard_s) == (100.0, 10.0)


def test_what_nobody_knows_is_named_with_nothing_so_that_it_is_not_kept():
    shown = trainer_status(Progress(fraction=1.0), None, 0.0)
    assert (shown["progress"], shown["eta"]) == ("100%", None)
    shown = trainer_status(Progress(step=7), 50.0, 0.0)
    assert (shown["progress"], shown["eta"], shown["trainerStatus"]["progressPercentage"]) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.2, "1s"),
        (59.0, "59s"),
        (60.0, "1m"),
        (754.2, "12m35s"),
        (3600.0, "1h"),
        (11_100.0, "3h5m"),
        (187_200.0, "2d4h"),
        (1e300, "11574d1h"),
    ],
)
def test_time_spans_have_two_units_at_most(seconds, text):
    assert short_time(seconds) == text
