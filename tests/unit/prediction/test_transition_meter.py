"""What a restart costs, from its steps."""

import pytest

from batuta.prediction import TransitionMeter

NAMES = {"ask": "asked", "stop": "stopped", "start": "started", "go": "progressed"}


def told(story: str) -> TransitionMeter:
    """`ask 10, stop 12`: each step with its time."""
    meter = TransitionMeter()
    for part in filter(None, story.split(", ")):
        name, time_s = part.split()
        getattr(meter, NAMES[name])(float(time_s))
    return meter


@pytest.mark.parametrize(
    ("story", "restart_s"),
    [
        ("", None),
        ("start 0, go 20", 20.0),
        ("start 0, go 20, ask 100, stop 107, start 500, go 510", 22.0),
        ("ask 100, stop 107", None),
        ("ask 100, stop 160, start 161, go 165", 64.0),
        # A crash is a stop that nobody asked for.
        ("start 0, go 5, stop 50, start 60, go 65", 5.0),
        # Asked again: the first counts.
        ("ask 100, ask 102, stop 107, start 200, go 203", 10.0),
        # Ended before any progress.
        ("start 0, stop 3, go 9", None),
        # Only the first progress after a start.
        ("start 0, go 5, go 9", 5.0),
        # A clock that was set back.
        ("start 100, go 5, ask 90, stop 70", None),
        # The median: one slow start does not count.
        ("start 0, go 5, start 10, go 500, start 600, go 607", 7.0),
    ],
)
def test_steps(story: str, restart_s: float | None) -> None:
    assert told(story).restart_s == restart_s


def test_old_transitions_are_forgotten() -> None:
    slow = ", ".join(f"start {i * 1000}, go {i * 1000 + 100}" for i in range(20))
    fast = ", ".join(f"start {i * 1000}, go {i * 1000 + 1}" for i in range(20, 25))
    assert told(f"{slow}, {fast}").restart_s == 1.0
