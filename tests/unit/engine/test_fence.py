"""What an engine can do without does not end it: it is logged, counted, and tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from batuta.core import event as ev
from batuta.core.plan import Plan, no_decisions
from batuta.core.world import World
from batuta.engine.fence import TELL_AGAIN_S, Fence
from batuta.engine.observers import Observer, Observers
from batuta.engine.requests import EngineStopped
from tests.support.local_replicas import wait_until
from tests.support.no_threads import no_new_threads

PAUSE_S = 0.01
PLAN = Plan(0, 0.0, "x", (), (), no_decisions())


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def fail() -> None:
    raise OSError("disk full")


def test_what_fails_within_is_counted_and_goes_no_further() -> None:
    fence = Fence()
    for _ in range(3):
        with fence.around("saving"):
            fail()
    trouble = fence.troubles["saving"]
    assert (trouble.failures, trouble.why, trouble.is_failing) == (3, "OSError: disk full", True)


def test_a_part_that_works_again_is_not_failing_any_more() -> None:
    clock = Clock()
    fence = Fence(clock)
    with fence.around("saving"):
        fail()
    clock.now_s += 10.0
    with fence.around("saving"):
        pass
    assert (fence.troubles["saving"].failures, fence.troubles["saving"].is_failing) == (1, False)


def test_a_part_that_fails_all_the_time_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Given a part of which every other call works, the log does not fill up either."""
    clock = Clock()
    fence = Fence(clock)
    for _ in range(500):
        with fence.around("saving"):
            fail()
        with fence.around("saving"):
            pass
        clock.now_s += TELL_AGAIN_S / 100
    assert len(caplog.records) == 5
    assert fence.troubles["saving"].failures == 500


def test_the_end_of_the_server_is_no_trouble() -> None:
    fence = Fence()
    with fence.around("asking"):
        raise EngineStopped("the server is shutting down")
    assert not fence.troubles


def test_who_wants_to_end_the_process_is_heeded() -> None:
    with pytest.raises(KeyboardInterrupt), Fence().around("saving"):
        raise KeyboardInterrupt


# --------------------------------------------------------------------------------------------------- threads


def test_a_thread_that_cannot_be_started_is_started_later() -> None:
    fence, ran = Fence(pause_s=PAUSE_S), threading.Event()
    with no_new_threads():
        thread = fence.start("watching", ran.set)
        assert not thread.is_alive()
        assert "can't start new thread" in fence.troubles["watching"].why
    time.sleep(PAUSE_S)
    fence.tend()
    assert ran.wait(10)


def test_a_thread_that_dies_is_started_again_after_a_pause() -> None:
    fence, deaths = Fence(pause_s=PAUSE_S), list[int]()

    def die_twice() -> None:
        if len(deaths) < 2:
            deaths.append(1)
            fail()

    def has_died_twice() -> bool:
        fence.tend()
        return len(deaths) == 2 and fence.troubles["watching"].failures == 2

    fence.start("watching", die_twice)
    wait_until(has_died_twice, what="both deaths")


def test_a_thread_that_was_never_started_is_not_started_after_its_end() -> None:
    fence, ran = Fence(pause_s=PAUSE_S), threading.Event()
    with no_new_threads():
        thread = fence.start("watching", ran.set)
    thread.join(1.0)
    time.sleep(2 * PAUSE_S)
    fence.tend()
    assert not ran.wait(0.1)


def test_work_that_cannot_be_begun_is_begun_later() -> None:
    worker, done = (fence := Fence(pause_s=PAUSE_S)).background("saving"), threading.Event()
    with no_new_threads():
        assert not worker.begin(done.set)
    wait_until(lambda: worker.is_ready, what="its pause is over")
    assert worker.begin(done.set)
    assert done.wait(10)
    wait_until(lambda: not fence.troubles["saving"].is_failing, what="it works again")


def test_after_each_failure_it_rests_longer() -> None:
    worker = Fence(pause_s=PAUSE_S).background("saving")
    rests = []
    for _ in range(4):
        assert not worker.do(fail)
        begun_s = time.monotonic()
        wait_until(lambda: worker.is_ready, what="its pause is over")
        rests.append(time.monotonic() - begun_s)
    assert rests[3] > 4 * PAUSE_S


# ------------------------------------------------------------------------------------------------- observers


class Broken(Observer):
    def saw(self, world: World, event: ev.Event) -> None:
        raise ZeroDivisionError

    def deciding(self) -> None:
        raise ZeroDivisionError

    def step_done(self, step: str) -> None:
        raise ZeroDivisionError

    def decided(self, world: World, plan: Plan) -> None:
        raise ZeroDivisionError

    def postponed(self, world: World) -> None:
        raise ZeroDivisionError


class Notes(Observer):
    def __init__(self, name: str, told: list[str]) -> None:
        self._note: Callable[[str], None] = lambda what: told.append(f"{name} {what}")

    def saw(self, world: World, event: ev.Event) -> None:
        self._note("saw")

    def deciding(self) -> None:
        self._note("deciding")

    def step_done(self, step: str) -> None:
        self._note(step)

    def decided(self, world: World, plan: Plan) -> None:
        self._note("decided")

    def postponed(self, world: World) -> None:
        self._note("postponed")


def test_an_observer_that_fails_keeps_no_other_from_what_happens() -> None:
    fence, told = Fence(), list[str]()
    listed = [("broken", Broken()), ("first", Notes("first", told)), ("last", Notes("last", told))]
    watchers = Observers(fence, [*listed, ("silent", Observer())])
    watchers.saw(World(), ev.TimePassed(1.0))
    watchers.deciding()
    watchers.step_done("place")
    watchers.decided(World(), PLAN)
    watchers.postponed(World())
    assert told == [
        *("first saw", "last saw"),
        *("last deciding", "first deciding", "first place", "last place"),
        *("first decided", "last decided", "first postponed", "last postponed"),
    ]
    assert fence.troubles["broken"].failures == 5
