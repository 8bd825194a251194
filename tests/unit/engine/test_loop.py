"""The loop decides when it is due, keeps the journal, tells its watcher, and ends when nothing can happen."""

from collections.abc import Sequence

import pytest

from batuta.backends.sim.backend import SimBackend
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.plan import Command, Plan
from batuta.core.world import World
from batuta.engine.journal import JournaledWorld
from batuta.engine.loop import Cadence, Engine
from batuta.engine.observers import Observer
from batuta.engine.profile import profile_for
from tests.support.memory_journal import MemoryJournal
from tests.support.sims import sim_job
from tests.support.worlds import make_nodes


class Notes(Observer):
    """A watcher that writes everything down."""

    def __init__(self) -> None:
        self.seen: list[ev.Event] = []
        self.plans: list[Plan] = []
        self.postponed_s: list[float] = []
        self.versions: list[int] = []
        self.calls: list[str] = []

    @property
    def decided_s(self) -> list[float]:
        return [plan.time_s for plan in self.plans]

    def saw(self, world: World, event: ev.Event) -> None:
        self.calls.append("saw")
        self.seen.append(event)
        self.versions.append(world.version)

    def deciding(self) -> None:
        self.calls.append("deciding")

    def decided(self, world: World, plan: Plan) -> None:
        self.calls.append("decided")
        self.plans.append(plan)

    def postponed(self, world: World) -> None:
        self.calls.append("postponed")
        self.postponed_s.append(world.now_s)


def engine_for(
    jobs: Sequence[SimJob],
    gpus: int,
    cadence: Cadence = Cadence(),  # noqa: B008  (frozen)
    policy: str = "fifo",
    backend: SimBackend | None = None,
) -> tuple[Engine, Notes, MemoryJournal]:
    """An engine on one simulated node, its watcher and its journal."""
    backend = backend or SimBackend(jobs, make_nodes(gpus))
    world, notes, journal = World(), Notes(), MemoryJournal()
    for event in backend.opening():
        apply(world, event)
    return (
        Engine(JournaledWorld(world, journal), backend, profile_for(policy), notes, cadence),
        notes,
        journal,
    )


def decided_s(
    jobs: Sequence[SimJob],
    gpus: int,
    cadence: Cadence = Cadence(),  # noqa: B008  (frozen)
    policy: str = "fifo",
) -> list[float]:
    """When a run decided."""
    engine, notes, _ = engine_for(jobs, gpus, cadence, policy)
    engine.run()
    return notes.decided_s


# -------------------------------------------------------------------------------------------- when it decides


@pytest.mark.parametrize("name", ["round_s", "every_s", "min_interval_s"])
@pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_cadence_that_stands_still_is_refused(name: str, seconds: float) -> None:
    if name == "min_interval_s" and seconds == 0.0:
        assert Cadence(min_interval_s=0.0) == Cadence()
        return
    with pytest.raises(ValueError, match=name):
        Cadence(**{name: seconds})


def test_by_default_every_event_is_decided_on_at_once() -> None:
    jobs = [sim_job("a"), sim_job("b", submit_s=30)]
    assert decided_s(jobs, gpus=2) == [0, 30, 100, 130]


def test_events_of_the_same_moment_are_decided_on_together() -> None:
    assert decided_s([sim_job("a"), sim_job("b"), sim_job("c", submit_s=100)], gpus=2) == [0, 100, 200]


def test_rounds_decide_at_whole_multiples_only() -> None:
    jobs = [sim_job("a", submit_s=10), sim_job("b", submit_s=120, work_s=60)]
    engine, notes, _ = engine_for(jobs, 2, Cadence(round_s=60))
    engine.run()
    assert notes.decided_s == [60, 120, 180]
    assert notes.postponed_s == [10, 160]
    assert {job: past.end_s for job, past in engine.world.past.items()} == {"a": 160, "b": 180}


@pytest.mark.parametrize(("number", "round_s"), [(29380776, 61.19), (32994010, 54.37), (30308678, 59.22)])
def test_rounds_go_on_at_times_since_1970(number: int, round_s: float) -> None:
    """Given a time whose quotient by the length of a round is a whole number, but not in floating point."""
    assert number * round_s / round_s < number
    job = sim_job("a", submit_s=(number - 0.5) * round_s, work_s=2.2 * round_s)
    engine, notes, _ = engine_for([job], 1, Cadence(round_s=round_s))
    for _ in range(20):
        engine.step()
    assert notes.decided_s == pytest.approx([k * round_s for k in range(number, number + 3)], rel=1e-12)


@pytest.mark.parametrize("round_s", [0.1, 1 / 3, 0.7, 1e-3])
def test_rounds_of_any_length_leave_none_out(round_s: float) -> None:
    times = decided_s([sim_job("a", submit_s=round_s / 2, work_s=30.5 * round_s)], 1, Cadence(round_s=round_s))
    assert times == pytest.approx([k * round_s for k in range(1, 32)])


def test_rounds_begin_again_after_a_time_without_jobs() -> None:
    jobs = [sim_job("a", work_s=30), sim_job("b", submit_s=1000, work_s=30)]
    assert decided_s(jobs, 1, Cadence(round_s=60)) == [0, 1020]


def test_a_decision_that_is_owed_is_made_as_soon_as_the_interval_is_over() -> None:
    jobs = [sim_job(name, submit_s=at_s, work_s=1000) for name, at_s in (("a", 0), ("b", 30), ("c", 250))]
    engine, notes, _ = engine_for(jobs, 3, Cadence(min_interval_s=100))
    engine.run()
    assert notes.decided_s == [0, 100, 250, 1000, 1100, 1250]
    assert notes.postponed_s == [30]


def test_a_decision_that_changes_nothing_begins_no_interval() -> None:
    jobs = [sim_job(name, submit_s=at_s, work_s=500) for name, at_s in (("a", 0), ("b", 200), ("c", 210))]
    assert decided_s(jobs, 1, Cadence(min_interval_s=100))[:3] == [0, 200, 210]


def test_while_jobs_wait_it_decides_every_so_often() -> None:
    assert decided_s([sim_job("a"), sim_job("b")], 1, Cadence(every_s=60)) == [0, 60, 100, 200]


def test_what_a_command_brings_to_light_is_decided_on_at_once() -> None:
    """A job without checkpoints on demand falls back when it is preempted: it may have another place then."""
    long = sim_job("long", work_s=9000, checkpoint_interval_s=600.0)
    assert decided_s([long, sim_job("short", submit_s=700)], 1, policy="srjf")[:4] == [0, 700, 700, 800]


# ----------------------------------------------------------------------------------------------- when it ends

EVERY_CADENCE = [
    Cadence(),
    Cadence(round_s=60),
    Cadence(min_interval_s=45),
    Cadence(every_s=60),
    Cadence(min_interval_s=45, every_s=60),
]


@pytest.mark.parametrize("cadence", EVERY_CADENCE)
def test_a_job_that_can_never_run_does_not_keep_it_from_ending(cadence: Cadence) -> None:
    engine, _, _ = engine_for([sim_job("huge", size=8), sim_job("a", submit_s=10)], 2, cadence)
    engine.run()
    assert engine.world.jobs.ids == ["huge"]
    assert list(engine.world.past) == ["a"]


@pytest.mark.parametrize("cadence", EVERY_CADENCE)
def test_all_jobs_that_can_run_are_over_in_the_end(cadence: Cadence) -> None:
    jobs = [sim_job(f"j{k}", size=1 + k % 3, submit_s=17.0 * k, restart_s=5.0) for k in range(20)]
    engine, _, _ = engine_for(jobs, 4, cadence, "elastic-tiresias")
    engine.run()
    assert len(engine.world.past) == 20


def test_after_the_end_there_is_nothing_to_step_over() -> None:
    engine, notes, _ = engine_for([sim_job("a")], 1)
    engine.run()
    assert not engine.step()
    assert not engine.step()
    assert notes.decided_s == [0, 100]


def test_without_jobs_it_ends_before_it_begins() -> None:
    engine, notes, journal = engine_for([], 1)
    engine.run()
    assert (notes.calls, journal.events) == ([], [])


# ---------------------------------------------------------------------------------------- who is told of what


def test_the_journal_tells_the_life_of_a_job_in_order() -> None:
    engine, _, journal = engine_for([sim_job("a", restart_s=10)], 1)
    engine.run()
    kinds = [(type(event).__name__, event.time_s) for event in journal]
    assert kinds == [("JobSubmitted", 0), ("Planned", 0), ("JobStarted", 10), ("JobEnded", 110)]


def test_a_plan_is_in_the_journal_before_it_is_carried_out() -> None:
    last: list[tuple[ev.Event, Sequence[Command]]] = []

    class Suspicious(SimBackend):
        def execute(self, commands: Sequence[Command], now_s: float) -> list[ev.Event]:
            last.append((journal.events[-1], commands))
            return SimBackend.execute(self, commands, now_s)

    jobs = [sim_job("a", work_s=500), sim_job("b", submit_s=10)]
    engine, _, journal = engine_for([], 1, policy="srjf", backend=Suspicious(jobs, make_nodes(1)))
    engine.run()
    assert len(last) == 3
    for event, commands in last:
        assert isinstance(event, ev.Planned)
        assert event.plan.commands == commands


def test_a_plan_that_changes_nothing_is_not_journaled() -> None:
    engine, notes, journal = engine_for([sim_job("a"), sim_job("b", submit_s=5)], 1)
    engine.run()
    planned = [event.plan for event in journal if isinstance(event, ev.Planned)]
    assert planned == [plan for plan in notes.plans if not plan.empty]
    assert [plan.time_s for plan in planned] == [0, 100]


def test_the_watcher_is_told_of_everything_that_is_journaled_and_of_every_decision() -> None:
    jobs = [sim_job(f"j{k}", submit_s=13.0 * k, restart_s=5.0, max=3) for k in range(12)]
    engine, notes, journal = engine_for(jobs, 4, Cadence(min_interval_s=30), "elastic-fifo")
    engine.run()
    assert notes.seen == journal.events
    # One node was there before; after that, every event raises the version by one, and the watcher sees each.
    assert notes.versions == list(range(2, 2 + len(journal.events)))
    assert notes.calls.count("deciding") == notes.calls.count("decided") == len(notes.plans)
    assert notes.postponed_s


def test_the_watcher_hears_of_the_steps_in_order() -> None:
    engine, notes, _ = engine_for([sim_job("a")], 1)
    engine.step()
    # The submission; the decision with its plan and the start that it led to.
    assert notes.calls == ["saw", "deciding", "saw", "saw", "decided"]
