"""Jobs that are over are forgotten in the order of their ends, when they are too many or too old."""

import math
from collections.abc import Callable, Sequence

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import JobId, JobState
from batuta.core.world import World
from batuta.engine.requests import EngineStopped, RequestFn
from batuta.engine.retention import Keep, Retention, outlived
from tests.support.fixed_policy import rules_that_give
from tests.support.memory_journal import MemoryJournal, replay
from tests.support.observed import SetTime
from tests.support.worlds import make_job, make_nodes, make_world

NOW_S = 1000.0


def over(*ends_s: float) -> World:
    """Jobs j0, j1, … that ended at these times, and one that waits."""
    names = [f"j{number}" for number in range(len(ends_s))]
    world = make_world(make_nodes(4), jobs=[make_job(name) for name in (*names, "alive")])
    for name, end_s in zip(names, ends_s, strict=True):
        apply(world, ev.JobEnded(end_s, name, JobState.SUCCEEDED))
    return world


@pytest.mark.parametrize(
    ("keep", "gone"),
    [
        (Keep(jobs=10, age_s=1e6), []),
        (Keep(jobs=2, age_s=1e6), ["j0", "j1"]),
        (Keep(jobs=0, age_s=math.inf), ["j0", "j1", "j2", "j3"]),
        (Keep(jobs=10, age_s=150.0), ["j0", "j1", "j2"]),
        (Keep(jobs=3, age_s=150.0), ["j0", "j1", "j2"]),
    ],
)
def test_the_first_to_end_are_the_first_to_go(keep: Keep, gone: list[JobId]) -> None:
    world = over(100.0, 200.0, 800.0, 900.0)
    assert outlived(world, keep, NOW_S - keep.age_s, 100) == gone
    assert outlived(world, keep, NOW_S - keep.age_s, 1) == gone[:1]


class Asked:
    """The engine, as far as it is asked for something."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.events: list[ev.Event] = []

    def __call__(self, make: RequestFn) -> None:
        made: Sequence[ev.Event] = make(self.world)
        for event in made:
            apply(self.world, event)
        self.events += made


def retention(asked: Callable[[RequestFn], object], removed: list[JobId], keep: Keep) -> Retention:
    return Retention(keep, asked, removed.append, SetTime(NOW_S).observed())


def test_files_go_with_the_job_and_what_is_left_is_as_it_was() -> None:
    world, removed = over(100.0, 200.0, 800.0), list[JobId]()
    asked = Asked(world)
    retention(asked, removed, Keep(jobs=1)).after_step(world)
    assert removed == ["j0", "j1"]
    assert list(world.past) == ["j2"]
    assert world.jobs.ids == ["alive"]
    assert asked.events == [ev.JobForgotten(NOW_S, "j0"), ev.JobForgotten(NOW_S, "j1")]


def test_a_job_whose_files_stay_is_not_forgotten() -> None:
    world = over(100.0, 200.0)
    asked = Asked(world)

    def remove(job: JobId) -> None:
        if job == "j0":
            raise OSError("the disk is broken")

    Retention(Keep(jobs=0), asked, remove, SetTime(NOW_S).observed()).after_step(world)
    assert list(world.past) == ["j0"]


def test_many_are_forgotten_bit_by_bit() -> None:
    world, removed = over(*(float(number) for number in range(450))), list[JobId]()
    forgetting = retention(Asked(world), removed, Keep(jobs=0))
    for left in (250, 50, 0):
        forgetting.after_step(world)
        assert len(world.past) == left
    assert removed == [f"j{number}" for number in range(450)]


@pytest.mark.parametrize("jump_s", [1e9, -1e9])
def test_no_job_is_forgotten_because_the_clock_jumped(jump_s: float) -> None:
    world, removed, time = over(100.0, 200.0, 800.0), list[JobId](), SetTime(NOW_S)
    forgetting = Retention(Keep(jobs=10, age_s=950.0), Asked(world), removed.append, time.observed())
    time.jumps(jump_s)
    time.passes(20.0)
    forgetting.after_step(world)
    assert removed == []
    time.jumps(-jump_s)
    time.passes(20.0)
    forgetting.after_step(world)
    assert removed == []
    time.passes(20.0)
    forgetting.after_step(world)
    assert removed == ["j0"], "time that passes makes it old"


def test_an_engine_that_stops_is_asked_in_vain() -> None:
    def refuse(make: RequestFn) -> object:
        raise EngineStopped("the server is shutting down")

    world = over(100.0)
    retention(refuse, [], Keep(jobs=0)).after_step(world)
    assert list(world.past) == ["j0"]


def test_a_journal_with_jobs_that_were_forgotten_is_replayed_to_the_same_world() -> None:
    journal, world = MemoryJournal(), World()
    events: list[ev.Event] = [
        *(ev.NodeAdded(0.0, node) for node in make_nodes(4)),
        ev.JobSubmitted(1.0, make_job("a")),
        ev.JobEnded(2.0, "a", JobState.FAILED),
        ev.JobForgotten(3.0, "a"),
        ev.JobForgotten(3.0, "nobody"),
        ev.JobSubmitted(4.0, make_job("a")),
    ]
    for event in events:
        journal.append(event)
        apply(world, event)
    again = replay(iter(journal), rules_that_give())
    assert (again.version, again.now_s) == (world.version, world.now_s)
    assert (again.jobs.ids, again.past) == (["a"], {})


@pytest.mark.parametrize("wrong", [{"jobs": -1}, {"age_s": 0.0}, {"age_s": math.nan}])
def test_what_cannot_be_kept(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Keep(**wrong)  # type: ignore[arg-type]
