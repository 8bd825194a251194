"""A second policy that only watches: what it would have done is told, and nothing is touched."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from batuta.backends.sim.backend import SimBackend
from batuta.core.apply import apply
from batuta.core.decide import SchedulerProfile
from batuta.core.policy import PLAIN
from batuta.core.world import World
from batuta.engine.journal import JournaledWorld
from batuta.engine.loop import Engine
from batuta.engine.profile import profile_for
from batuta.engine.shadow import Shadow
from tests.support.deep import deep
from tests.support.memory_journal import MemoryJournal
from tests.support.sims import sim_job
from tests.support.worlds import make_nodes

JOBS = [
    sim_job("a", 1, min=1, max=4, work_s=100.0),
    sim_job("b", 2, min=1, max=4, work_s=300.0, submit_s=10.0),
    sim_job("c", 4, work_s=50.0, submit_s=20.0),
]


def lived(policy: str, shadow: str, rules_of: Callable[[str], SchedulerProfile] = profile_for) -> tuple[list, Shadow]:
    """The journal of a small simulation with a shadow beside it, and the shadow."""
    backend, world, journal = SimBackend(JOBS, make_nodes(4)), World(), MemoryJournal()
    for event in backend.opening():
        apply(world, event)
    watch = Shadow(world, rules_of, shadow, clock=lambda: 0.0)
    engine = Engine(JournaledWorld(world, journal), backend, profile_for(policy), watch)
    while engine.step():
        wait_until_idle(watch)
    watch.close()
    return journal.events, watch


def wait_until_idle(shadow: Shadow) -> None:
    """So that it looks at every cycle: a simulation does not wait for it."""
    give_up = time.monotonic() + 10.0
    while shadow._case is not None or time.monotonic() < shadow._ready_s:
        assert time.monotonic() < give_up
        time.sleep(0.0005)


def test_a_shadow_of_the_same_policy_agrees_always() -> None:
    _, shadow = lived("elastic-fifo", "elastic-fifo")
    report = shadow.report
    assert report.policy == "elastic-fifo"
    assert report.cycles > 3
    assert report.agreed == report.cycles
    assert report.would == report.did
    assert report.differences == ()


def test_another_policy_would_have_done_something_else() -> None:
    _, shadow = lived("fifo", "elastic-fifo")
    report = shadow.report
    assert 0 < report.agreed < report.cycles
    assert report.would["resize"] > report.did.get("resize", 0)


def test_what_happens_is_the_same_with_and_without_a_shadow() -> None:
    alone, _ = lived("fifo", "")
    watched, _ = lived("fifo", "elastic-srjf")
    assert deep(alone) == deep(watched)


def test_a_policy_that_fails_is_only_the_shadows_trouble() -> None:
    class Broken:
        name = "broken"
        traits = PLAIN

        def allocate(self, view: object) -> np.ndarray:
            raise ZeroDivisionError("oh")

    def rules_of(policy: str) -> SchedulerProfile:
        return replace(profile_for("fifo"), policy=Broken())

    events, shadow = lived("fifo", "broken", rules_of)
    assert deep(events) == deep(lived("fifo", "")[0])
    assert "ZeroDivisionError" in shadow.report.trouble
    assert shadow.report.failed > 0


def test_one_that_watches_no_more_counts_no_more() -> None:
    _, shadow = lived("fifo", "elastic-fifo")
    shadow.watch("")
    assert shadow.report.policy == ""
    assert shadow.report.cycles == 0
