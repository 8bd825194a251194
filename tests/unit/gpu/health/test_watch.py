"""The watch over health, with an engine that does at once what it is asked, and sources that say what a test
wants them to say."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Span
from batuta.core.health_record import State, Target
from batuta.core.health_rules import Finding, HealthRules, Source
from batuta.core.health_signals import Figures
from batuta.core.job import DesiredState, JobId
from batuta.core.world import World
from batuta.engine.requests import RequestFn
from batuta.gpu.health.repair import RepairWorker
from batuta.gpu.health.rules import read_rules
from batuta.gpu.health.state import SETTING, HealthState
from batuta.gpu.health.watch import EngineAccess, HealthWatch
from tests.support.worlds import make_job, make_nodes, make_world

NOW_S = 1_000_000.0
RULES = read_rules()
"""Of a file: what a health rule file is has its own tests."""


@dataclass
class Told:
    """Sources and a ward in one: what a test puts in comes out."""

    log: list[Finding] = field(default_factory=list)
    printed: list[Finding] = field(default_factory=list)
    outcome: tuple[bool, str] | None = (True, "all right")
    can_reset: bool = True
    driver: threading.Event | None = None
    """While it is not set, the driver does not answer."""

    believes_jobs = True

    def kernel_log(self, memory: HealthState) -> list[Finding]:
        found, self.log = self.log, []
        return found

    def look(self, *, at_once: bool = False) -> Figures:
        if self.driver is not None:
            self.driver.wait(20.0)
        return {}

    def figures(self, memory: HealthState, found: Figures, now_s: float) -> list[Finding]:
        return []

    def job_log(self, memory: HealthState, job: JobId, workers: Sequence[Span], now_s: float) -> list[Finding]:
        found, self.printed = self.printed, []
        return found

    def done(self, number: int) -> None: ...

    def in_use(self, target: Target) -> bool:
        return False

    def reset(self, target: Target) -> bool:
        return self.can_reset

    def burn_in(self, target: Target) -> "Told":
        return self

    def poll(self) -> tuple[bool, str] | None:
        return self.outcome

    def close(self) -> None: ...


class Kept(dict[str, str]):
    """Settings that are durable at once."""

    def put(self, key: str, value: str) -> None:
        self[key] = value


@dataclass
class Rig:
    """A World with two nodes of two GPUs, and one watch after another."""

    world: World
    rules: HealthRules = RULES
    told: Told = field(default_factory=Told)
    texts: Kept = field(default_factory=Kept)
    events: list[ev.Event] = field(default_factory=list)
    now_s: float = NOW_S
    deaf: bool = False
    """The engine does not do what it is asked, nor say so."""

    def __post_init__(self) -> None:
        self.watch = self.begin()

    def begin(self) -> HealthWatch:
        """A new watch, as after a restart."""
        doors = EngineAccess(self.ask, self.reading)
        self.watch = HealthWatch(
            self.rules,
            self.world.nodes.nodes,
            self.texts,
            doors,
            self.told,  # type: ignore[arg-type]
            RepairWorker(self.told),  # type: ignore[arg-type]
            lambda: self.now_s,
        )
        return self.watch

    def ask(self, make: RequestFn) -> "Future[Sequence[ev.Event]]":
        answer: Future[Sequence[ev.Event]] = Future()
        if self.deaf:
            return answer
        made = list(make(self.world))
        for event in made:
            apply(self.world, event)
        self.events += made
        answer.set_result(made)
        return answer

    @contextmanager
    def reading(self) -> Iterator[tuple[World, None]]:
        yield self.world, None

    def finds(self, code: int, *jobs: str, gpu: int = 0, node: str = "n0") -> None:
        self.told.log.append(Finding(self.now_s, node, Source.XID, code, "", gpu, jobs))

    def steps(self, times: int = 1, each_s: float = 1.0) -> None:
        for _ in range(times):
            self.now_s += each_s
            self.watch.collect()
            self.watch.repair()

    def state(self, node: str, gpu: int = -1) -> State:
        return self.watch.seen().records[Target(node, gpu)].state

    def heard(self, kind: type) -> list[ev.Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def states_told(self) -> list[str]:
        return [event.state for event in self.events if isinstance(event, ev.HealthChanged)]

    @property
    def ill(self) -> list[str]:
        """Nodes and GPUs that jobs may not have."""
        return [
            f"{node.name}:{gpu}"
            for i, node in enumerate(self.world.nodes.nodes)
            for gpu in range(node.gpus)
            if self.world.ill.get(i, 0) >> gpu & 1
        ]


@pytest.fixture
def rig() -> Rig:
    return Rig(make_world(make_nodes(2, 2)))


def test_a_gpu_goes_out_is_reset_tested_and_comes_back_after_its_probation(rig: Rig):
    rig.told.outcome = None
    rig.finds(62)
    rig.steps()
    assert rig.ill == ["n0:0"]
    (failed,) = rig.heard(ev.GpuFailed)
    assert isinstance(failed, ev.GpuFailed)
    assert failed.reason == "Xid 62: micro-controller halt"
    rig.steps(3)
    assert rig.state("n0", 0) is State.BURN_IN
    rig.told.outcome = (True, "all right")
    rig.steps()
    assert rig.state("n0", 0) is State.PROBATION
    assert rig.ill == ["n0:0"]
    rig.steps(1, 1801.0)
    assert rig.ill == []
    assert rig.states_told == ["ill", "burn-in", "probation", "healthy"]


def test_a_node_is_out_with_all_its_gpus_and_its_cordon_stays_as_people_want_it(rig: Rig):
    rig.finds(79, gpu=1)
    rig.steps()
    assert rig.ill == ["n0:0", "n0:1"]
    assert rig.world.cordoned == 0


def test_a_new_watch_brings_the_world_to_what_the_book_says(rig: Rig):
    # given a book that was kept, and a server that was killed before it obeyed
    rig.finds(79)
    rig.told.outcome = None
    rig.steps()
    forgetful = Rig(make_world(make_nodes(2, 2)), texts=Kept(rig.texts))
    apply(forgetful.world, ev.GpuFailed(NOW_S, "n1", 0))  # of which the book knows nothing
    # then what is ill by the book is out, and what is not is back
    forgetful.steps()
    assert forgetful.ill == ["n0:0", "n0:1"]


def test_what_was_kept_and_cannot_be_read_is_forgotten(rig: Rig):
    rig.texts[SETTING] = '{"form": 99}'
    rig.begin()
    rig.steps()
    assert rig.watch.seen().records == {}


def test_a_job_is_restarted_for_its_own_errors_only_so_often():
    rig = Rig(make_world(make_nodes(2, 2), {"a": "n0:0"}, [make_job("a")]))
    for _ in range(5):
        rig.now_s += 600.0
        rig.finds(31, "a")
        rig.steps()
        apply(rig.world, ev.JobWished(rig.now_s, "a", DesiredState.RUN))
    wished = [event for event in rig.heard(ev.JobWished) if isinstance(event, ev.JobWished)]
    assert [event.wish for event in wished] == [DesiredState.EVICT] * 3
    assert {event.cause for event in wished} == {"health"}
    assert rig.ill == []


def test_a_job_that_fails_with_its_gpu_is_excused_and_one_that_fails_alone_is_not(rig: Rig):
    workers = (Span("n0", (0,)),)
    rig.finds(79, "a")
    assert rig.watch.excuse("a", workers, NOW_S - 60) == "Xid 79: GPU has fallen off the bus"
    assert rig.watch.excuse("b", workers, NOW_S - 60) == ""
    # what happened before it began is no excuse
    rig.finds(79, "c", node="n1")
    assert rig.watch.excuse("c", workers, NOW_S + 60) == ""


def test_a_job_that_prints_why_has_as_many_tries_as_the_rules_say(rig: Rig):
    workers, line = (Span("n0", (0,)),), "CUDA error: invalid device ordinal"
    answers = []
    for _ in range(5):
        rig.now_s += 600.0
        rig.told.printed = [Finding(rig.now_s, "n0", Source.LOG, text=line, gpu=0, jobs=("a",))]
        answers.append(rig.watch.excuse("a", workers, 0.0))
    why = "a GPU that the job was given is not there"
    assert answers == [why, why, why, "", ""]


def test_a_node_that_three_jobs_suspect_is_taken_out(rig: Rig):
    for job in ("a", "b"):
        rig.watch.suspect("n1", job, "rank 3 is a straggler")
        rig.steps()
    assert rig.state("n1") is State.SUSPECT
    assert rig.ill == []
    rig.watch.suspect("n1", "c", "rank 0 is a straggler")
    rig.steps()
    assert rig.ill == ["n1:0", "n1:1"]
    assert rig.heard(ev.JobWished) == []


def test_a_humans_word_overrules_health_but_first_it_ends_their_own_cordon(rig: Rig):
    rig.told.outcome = None
    rig.finds(79)
    rig.steps()
    rig.watch.cordoned("n0", "ana")
    rig.watch.uncordoned("n0", "ana")
    rig.steps()
    assert rig.ill == ["n0:0", "n0:1"]
    rig.watch.uncordoned("n0", "ana")
    rig.steps()
    assert rig.ill == []
    assert rig.watch.seen().records[Target("n0")].who == "ana"


def test_only_what_is_ill_can_be_mended(rig: Rig):
    with pytest.raises(ValueError, match="n0 is not ill"):
        rig.watch.mended("n0", None, "ana")
    rig.told.can_reset = False
    rig.finds(62, gpu=1)
    rig.steps()
    with pytest.raises(ValueError, match="n0 is not ill; what is: n0 GPU 1"):
        rig.watch.mended("n0", None, "ana")
    rig.told.outcome = None
    rig.watch.mended("n0", 1, "ana")
    assert rig.state("n0", 1) is State.BURN_IN


def test_a_row_that_waits_for_a_reset_waits_for_its_job():
    rig = Rig(make_world(make_nodes(2, 2), {"a": "n0:0"}, [make_job("a")]))
    rig.told.outcome = None
    rig.finds(63, "a")
    rig.steps(3)
    assert rig.ill == []
    apply(rig.world, ev.JobInterrupted(rig.now_s, "a"))
    rig.steps()
    assert rig.ill == ["n0:0"]


def test_what_the_guard_rail_holds_is_an_alert():
    rig = Rig(make_world(make_nodes(2, 2)), replace(RULES, limits=replace(RULES.limits, share=0.25)))
    rig.told.outcome, rig.told.can_reset = None, False
    rig.finds(62, gpu=0)
    rig.finds(62, gpu=1)
    rig.steps()
    assert rig.ill == ["n0:0"]
    (alert,) = rig.watch.seen().alerts
    assert alert.target == Target("n0", 1)
    assert rig.states_told == ["ill", "alert"]


def test_a_log_that_cannot_be_read_ends_nobodys_job_and_is_told_once(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def broken(memory: HealthState) -> list[Finding]:
        raise PermissionError("the log may not be read")

    monkeypatch.setattr(rig.told, "kernel_log", broken)
    for _ in range(3):
        assert rig.watch.excuse("a", (), 0.0) == ""
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith("GPU health failed (failure 1): PermissionError: the log may not be read")


def test_a_driver_that_does_not_answer_holds_up_neither_the_log_nor_the_engine(rig: Rig):
    """Given a GPU about which NVML thinks for minutes, what the log says is done, and jobs are excused."""
    rig.told.driver = threading.Event()
    repairing = threading.Thread(target=rig.watch.repair)
    repairing.start()
    try:
        rig.finds(79)
        rig.now_s += 1.0
        rig.watch.collect()
        assert rig.ill == ["n0:0", "n0:1"]
        rig.finds(31, "a", node="n1")
        assert rig.watch.excuse("a", (Span("n1", (0,)),), NOW_S) == "Xid 31: MMU page fault"
        assert rig.watch.seen().records[Target("n0")].state is State.ILL
        assert repairing.is_alive()
    finally:
        rig.told.driver.set()
        repairing.join(20.0)


def test_a_restart_that_the_engine_never_heard_of_is_asked_for_by_the_next_server():
    # given a server that was killed after it had stored what is to be done
    rig = Rig(make_world(make_nodes(2, 2), {"a": "n0:0"}, [make_job("a")]))
    rig.finds(31, "a")
    asked, rig.deaf = rig.now_s, True
    rig.steps()
    assert rig.heard(ev.JobWished) == []
    # then the next one has the job begin again, and once
    rig.deaf = False
    rig.begin()
    rig.steps(3)
    (wished,) = rig.heard(ev.JobWished)
    assert isinstance(wished, ev.JobWished)
    assert wished.time_s > asked
