"""A span of a journal under the same and under other policies."""

from functools import partial

import pytest

from batuta.backends.sim.backend import SimBackend
from batuta.backends.sim.forecast.forecast import ProfileSource
from batuta.backends.sim.forecast.replay import JournalSpan, read_span, replay_span, summarise_replays
from batuta.backends.sim.run import RunOptions, simulate
from batuta.backends.sim.workload import SimJob
from batuta.core.apply import apply
from batuta.core.world import World
from batuta.engine.profile import profile_for
from tests.support.memory_journal import MemoryJournal
from tests.support.sims import sim_job
from tests.support.worlds import make_nodes, scaling

LIE = 1000.0
"""What the scheduler is told of every job's work; the truth is another."""


def liar(name: str, size: int, work_s: float, submit_s: float, told_s: float = LIE) -> SimJob:
    return sim_job(name, size, submit_s=submit_s, work_s=told_s, restart_s=10.0, truth=(work_s, scaling(size)))


JOBS = [
    liar("long", 4, 4000.0, 0.0),
    liar("middle", 4, 1200.0, 5.0),
    liar("short", 4, 200.0, 10.0, told_s=500.0),
    liar("late", 2, 300.0, 600.0),
]


def lived(policy: str = "fifo") -> list:
    journal = MemoryJournal()
    simulate(SimBackend(JOBS, make_nodes(4)), profile_for(policy), RunOptions("past", "4 GPUs"), journal=journal)
    return journal.events


def span_of(events: list, from_s: float, to_s: float) -> JournalSpan:
    """The World of a time, and what happened since."""
    world, rest = World(), []
    for event in events:
        if event.time_s < from_s:
            apply(world, event)
        else:
            rest.append(event)
    return read_span(world, rest, from_s, to_s)


def replayed(span: JournalSpan, policy: str) -> dict[str, float]:
    return replay_span(span, ProfileSource(lambda: profile_for(policy))).end_s


@pytest.mark.parametrize("from_s", [-1.0, 300.0, 1100.0])
def test_the_same_policy_does_the_same_again(from_s: float) -> None:
    span = span_of(lived(), from_s, 1e6)
    for job, end_s in replayed(span, "fifo").items():
        assert end_s == pytest.approx(span.actual.end_s[job]), job
    assert set(span.actual.end_s) <= set(span.truth)


def test_work_is_what_a_job_ran_and_not_what_was_believed_of_it() -> None:
    truth = span_of(lived(), -1.0, 1e6).truth
    assert {job: round(one.work_s) for job, one in truth.items()} == {
        "long": 4000,
        "middle": 1200,
        "short": 200,
        "late": 300,
    }
    assert {one.measured.restart_s for one in truth.values()} == {10.0}


def test_a_job_that_is_not_over_is_believed() -> None:
    span = span_of(lived(), -1.0, 1000.0)
    assert not span.truth["long"].ended
    assert span.truth["long"].work_s > 3900.0
    assert any("believed" in note for note in span.notes)


def test_another_policy_is_held_against_what_really_happened() -> None:
    span = span_of(lived(), -1.0, 1e6)
    futures = [(name, replay_span(span, ProfileSource(partial(profile_for, name)))) for name in ("fifo", "srjf")]
    really, again, other = summarise_replays(span, futures)
    assert (really.policy, really.jobs, really.missing) == ("", 4, 0)
    assert again.jct_s == pytest.approx(really.jct_s)
    assert again.gpu_hours == pytest.approx(really.gpu_hours)
    assert again.wait_s == pytest.approx(really.wait_s)
    assert other.jct_s < really.jct_s
