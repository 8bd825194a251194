"""An engine that serves people: requests become events, are durable before they are answered or acted on."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.arrays import IntArray
from batuta.core.cluster import Node
from batuta.core.job import DesiredState
from batuta.core.plan import Command, Stop
from batuta.core.policy import PLAIN
from batuta.core.world import World
from batuta.engine.journal import JournaledWorld
from batuta.engine.loop import Cadence, Engine, Live
from batuta.engine.observers import Observer
from batuta.engine.ports import JournalUnavailable
from batuta.engine.profile import profile_for
from batuta.engine.requests import EngineStopped, Requests
from batuta.engine.service import RetryingJournal, Service
from tests.support.worlds import make_job, make_nodes


class Diary:
    """A journal that also notes what was durable when."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.durable = 0
        self.full = False

    def append(self, event: ev.Event) -> None:
        self.events.append(event)

    def commit(self) -> int:
        if self.full:
            raise JournalUnavailable("no room left")
        self.durable = len(self.events)
        return self.durable


class Bell:
    """A backend on which nothing happens by itself."""

    def __init__(self, diary: Diary) -> None:
        self.rung = threading.Event()
        self.diary = diary
        self.commands: list[Command] = []
        self.told: list[ev.Event] = []
        """What happens next."""

    def wake(self) -> None:
        self.rung.set()

    def quiet(self) -> bool:
        return False

    def next_events(self, until_s: float | None) -> Sequence[ev.Event]:
        if self.told:
            events, self.told = self.told, []
            return events
        self.rung.wait(5)
        self.rung.clear()
        return ()

    def execute(self, commands: Sequence[Command], now_s: float) -> Sequence[ev.Event]:
        assert self.diary.durable == len(self.diary.events), "a command before its plan was durable"
        self.commands += commands
        return [ev.JobStarted(now_s, command.job) for command in commands]


def build() -> tuple[Service, Engine, Diary, Bell]:
    diary = Diary()
    bell, journal, guard, world = Bell(diary), RetryingJournal(diary), threading.RLock(), World()
    for node in make_nodes(4):
        apply(world, ev.NodeAdded(0.0, node))
    requests = Requests(bell.wake)
    live = Live(requests, profile_for, guard)
    engine = Engine(JournaledWorld(world, journal), bell, profile_for("fifo"), Observer(), live=live)
    return Service(engine, requests, journal, guard, bell.wake), engine, diary, bell


def test_what_is_asked_for_is_durable_when_it_is_answered_and_is_then_acted_on() -> None:
    service, _, diary, bell = build()
    service.start()
    try:
        events = service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("a", 2))])
        assert [type(event) for event in events] == [ev.JobSubmitted]
        assert diary.durable >= 1
    finally:
        assert service.stop()
    assert [command.job for command in bell.commands] == ["a"]
    with service.reading() as (world, plan):
        assert plan is not None
        assert world.jobs.ids == ["a"]


def test_what_goes_wrong_with_a_request_is_told_to_who_asked_and_to_nobody_else() -> None:
    service, _, diary, _ = build()
    service.start()
    try:
        with pytest.raises(ZeroDivisionError):
            service.ask(lambda world: [ev.TimePassed(1 / 0)])
        service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("a"))])
        with pytest.raises(ValueError, match="exists already"):
            service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("a"))])
        assert service.running
    finally:
        service.stop()
    assert sum(isinstance(event, ev.JobSubmitted) for event in diary.events) == 1, "or nobody could replay it"


def test_what_cannot_be_written_down_has_not_happened() -> None:
    service, engine, diary, _ = build()
    write = diary.append

    def refuse(event: ev.Event) -> None:
        if isinstance(event, ev.JobSubmitted) and event.job.id == "b":
            raise UnicodeError("no text for this")
        write(event)

    diary.append = refuse  # type: ignore[method-assign]
    service.start()
    try:
        with pytest.raises(UnicodeError):
            service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("b"))])
        service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("a"))])
    finally:
        service.stop()
    assert engine.world.jobs.ids == ["a"]


def test_who_has_gone_before_the_engine_came_has_asked_for_nothing() -> None:
    service, engine, _, _ = build()
    gone = service.request(lambda world: [ev.JobSubmitted(1.0, make_job("a"))])
    assert gone.cancel()
    service.start()
    try:
        service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("b"))])
    finally:
        service.stop()
    assert engine.world.jobs.ids == ["b"]


def test_another_policy_decides_from_the_next_cycle_on() -> None:
    service, engine, _, _ = build()
    service.start()
    try:
        service.ask(lambda world: [ev.PolicySet(1.0, "elastic-fifo")])
        service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("a", 1, max=4))])
        service.ask(lambda world: [ev.JobWished(2.0, "nobody", DesiredState.RUN)])
    finally:
        service.stop()
    assert engine.profile.policy.name == engine.world.policy == "elastic-fifo"
    assert engine.world.jobs.held.tolist() == [4]


def test_a_full_disk_holds_the_engine_up_and_loses_nothing() -> None:
    service, _, diary, bell = build()
    service.start()
    try:
        diary.full = True
        asked: list[object] = []
        asker = threading.Thread(
            target=lambda: asked.append(service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("a"))]))
        )
        asker.start()
        asker.join(0.3)
        assert not asked
        assert not bell.commands
        assert service.trouble == "no room left"
        with pytest.raises(JournalUnavailable):
            service.ask(lambda world: [])
        diary.full = False
        asker.join(10)
        assert len(asked) == 1
        assert service.trouble == ""
    finally:
        service.stop()
    assert [command.job for command in bell.commands] == ["a"]


def test_nobody_waits_for_an_engine_that_has_stopped() -> None:
    service, _, _, _ = build()
    service.start()
    service.stop()
    with pytest.raises(EngineStopped):
        service.ask(lambda world: [])


def test_reports_of_progress_alone_lead_to_a_decision_only_now_and_then() -> None:
    _, engine, _, bell = build()
    engine.cadence = Cadence(calm_s=5.0)
    told: list[list[ev.Event]] = [
        [ev.JobSubmitted(10.0, make_job("a", 1))],
        [ev.JobProgressed(11.0, "a", 50.0)],
        [ev.JobProgressed(14.0, "a", 40.0)],
        [ev.JobProgressed(15.5, "a", 40.0)],
        [ev.JobProgressed(16.0, "a", 40.0), ev.JobWished(16.0, "a", DesiredState.PARK)],
    ]
    decided = []
    for events in told:
        bell.told = events
        engine.step()
        plan = engine.last_plan
        assert plan is not None
        decided.append(plan.time_s)
    assert decided == [10.0, 10.0, 10.0, 15.5, 16.0]


def test_a_job_that_has_to_leave_its_gpus_gets_others_at_once() -> None:
    _, engine, _, bell = build()
    bell.told = [ev.NodeAdded(1.0, Node("n9", 1)), ev.JobSubmitted(1.0, make_job("a", 1))]
    engine.step()
    bell.told = [ev.JobWished(2.0, "a", DesiredState.EVICT)]
    engine.step()
    assert engine.world.jobs.held.tolist() == [0]
    assert engine._wake_s() == 2.0


class Clockwork(Bell):
    """A backend on which only time passes."""

    def next_events(self, until_s: float | None) -> Sequence[ev.Event]:
        assert until_s is not None, "nobody would ever decide"
        return [ev.TimePassed(until_s)]


def test_what_a_killed_server_had_not_decided_yet_is_decided_at_the_next_start() -> None:
    """A job that runs and reports nothing was cancelled; the server was killed before it decided on that."""
    _, before, diary, bell = build()
    bell.told = [ev.JobSubmitted(1.0, make_job("a", 1))]
    before.step()
    apply(before.world, ev.JobWished(2.0, "a", DesiredState.CANCEL))
    clockwork = Clockwork(diary)
    live = Live(Requests(clockwork.wake), profile_for, threading.RLock())
    after = Engine(
        JournaledWorld(before.world, RetryingJournal(diary)),
        clockwork,
        profile_for("fifo"),
        Observer(),
        live=live,
    )
    after.step()
    assert [(type(command), command.job) for command in clockwork.commands] == [(Stop, "a")]
    assert after.world.now_s == 2.0


class Stubborn:
    """A policy that cannot decide."""

    name = "stubborn"
    traits = PLAIN

    def allocate(self, view: object) -> IntArray:
        raise ZeroDivisionError("no idea")


def test_a_policy_that_cannot_decide_is_reported_and_can_be_replaced() -> None:
    service, engine, _, bell = build()
    engine.profile = replace(engine.profile, policy=Stubborn())
    service.start()
    try:
        service.ask(lambda world: [ev.JobSubmitted(1.0, make_job("a"))])
        service.ask(lambda world: [])
        assert service.trouble == "nothing is decided: no idea"
        assert service.running
        assert not bell.commands
        service.ask(lambda world: [ev.PolicySet(2.0, "fifo")])
        service.ask(lambda world: [])
        assert service.trouble == ""
    finally:
        service.stop()
    assert [command.job for command in bell.commands] == ["a"]
