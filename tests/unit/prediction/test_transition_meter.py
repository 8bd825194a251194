"""What each step of a restart takes."""

import pytest

from batuta.prediction import TransitionMeter, TransitionTimes

NAMES = {"ask": "asked", "save": "checkpointed", "stop": "stopped", "start": "started", "go": "progressed"}


def told(story: str) -> TransitionMeter:
    """`ask 10, stop 12`: each step with its time."""
    meter = TransitionMeter()
    for part in filter(None, story.split(", ")):
        name, time_s = part.split()
        getattr(meter, NAMES[name])(float(time_s))
    return meter


@pytest.mark.parametrize(
    ("story", "times", "restart_s"),
    [
        ("", (None, None, None), None),
        ("start 0, go 20", (None, None, 20.0), 20.0),
        ("start 0, go 20, ask 100, save 105, stop 107, start 500, go 510", (5.0, 2.0, 15.0), 22.0),
        ("ask 100, save 105, stop 107", (5.0, 2.0, None), None),
        # No checkpoint came: the grace ran out.
        ("ask 100, stop 160, start 161, go 165", (None, 60.0, 4.0), 64.0),
        # A crash is a stop that nobody asked for.
        ("start 0, go 5, stop 50, start 60, go 65", (None, None, 5.0), 5.0),
        # Its checkpoints are no steps.
        ("start 0, save 2, go 5, save 9", (None, None, 5.0), 5.0),
        # Asked again and answered again: the first counts.
        ("ask 100, ask 102, save 105, save 106, stop 107", (5.0, 2.0, None), None),
        # Ended before any progress.
        ("start 0, stop 3, go 9", (None, None, None), None),
        # Only the first progress after a start.
        ("start 0, go 5, go 9", (None, None, 5.0), 5.0),
        # A clock that was set back.
        ("start 100, go 5, ask 90, save 80, stop 70", (None, None, None), None),
        # The median: one slow start does not count.
        ("start 0, go 5, start 10, go 500, start 600, go 607", (None, None, 7.0), 7.0),
    ],
)
def test_steps(story: str, times: tuple[float | None, ...], restart_s: float | None) -> None:
    meter = told(story)
    assert meter.times == TransitionTimes(*times)
    assert meter.restart_s == restart_s


def test_old_transitions_are_forgotten() -> None:
    slow = ", ".join(f"start {i * 1000}, go {i * 1000 + 100}" for i in range(20))
    fast = ", ".join(f"start {i * 1000}, go {i * 1000 + 1}" for i in range(20, 25))
    assert told(f"{slow}, {fast}").restart_s == 1.0


def test_lost_work_is_a_median_too() -> None:
    meter = TransitionMeter()
    for work_s in (0.0, 10.0, 500.0):
        meter.lost(work_s)
    assert meter.times.lost_s == 10.0
