"""The times of events when the clock jumps."""

from batuta.core import event as ev
from batuta.core.job import JobState
from batuta.engine.ports import JUMP_S, EventBuffer


def test_the_time_that_was_asked_for_is_told_when_it_has_come() -> None:
    assert EventBuffer().nothing_until(100.0, 100.4) == [ev.TimePassed(100.0)]


def test_a_clock_that_has_jumped_is_followed_at_once() -> None:
    """In steps of a minute the engine went through a day in 1,440 cycles."""
    buffer = EventBuffer()
    assert buffer.nothing_until(100.0, 86_500.0) == [ev.TimePassed(86_500.0)]
    buffer.append(ev.JobEnded(90_000.0, "1", JobState.SUCCEEDED))
    assert [event.time_s for event in buffer.take(86_560.0, 90_000.0)] == [90_000.0]


def test_an_event_is_not_after_what_was_asked_for() -> None:
    buffer = EventBuffer()
    buffer.append(ev.JobEnded(101.0, "1", JobState.SUCCEEDED))
    assert [event.time_s for event in buffer.take(100.0, 100.0 + JUMP_S)] == [100.0]
