"""A job that gives up GPUs is on them until it has saved its work: a job that starts there waits for it."""

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.decide import decide
from batuta.core.job import JobState
from batuta.core.plan import Resize, Start
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.store.snapshots import decode_world, encode_world
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world

RENT = profile_for("rent")


def shrinking() -> World:
    """Job `other` has four of eight GPUs, and was just told to leave the last two of these."""
    world = make_world(make_nodes(8), {"other": "n0:0123"}, [make_job("other", 1, max=4)])
    carry_out(world, [Resize("other", at("n0:01"), Reason.SHRANK)], NOW_S)
    return world


def arrives(world: World, name: str, size: int) -> Start:
    apply(world, ev.JobSubmitted(NOW_S, make_job(name, size, submit_s=NOW_S)))
    plan = decide(world, NOW_S, RENT)
    (start,) = [one for one in plan.commands if isinstance(one, Start)]
    apply(world, ev.Planned(NOW_S, plan))
    return start


def reason_of(world: World, job: str) -> Reason:
    decision = decide(world, NOW_S + 1, RENT).decisions.of(job)
    assert decision is not None
    return decision.reason


def test_an_arrival_is_placed_where_no_job_is_any_more() -> None:
    world = shrinking()
    assert arrives(world, "new", 2).placement == at("n0:45")
    assert reason_of(world, "new") is Reason.FULL_SIZE


def test_where_all_other_gpus_are_taken_it_starts_when_the_job_has_left_and_is_told_so() -> None:
    world = shrinking()
    arrives(world, "first", 4)
    assert arrives(world, "new", 1).placement == at("n0:2")
    assert reason_of(world, "new") is Reason.WAITING_FOR_RELEASE
    apply(world, ev.JobStarted(NOW_S + 1, "other"))
    assert reason_of(world, "new") is Reason.FULL_SIZE


def test_a_job_that_runs_shows_that_another_has_left_its_gpus() -> None:
    world = shrinking()
    arrives(world, "first", 4)
    arrives(world, "new", 1)
    apply(world, ev.JobStarted(NOW_S + 1, "new"))
    assert arrives(world, "last", 1).placement == at("n0:3")
    assert reason_of(world, "last") is Reason.WAITING_FOR_RELEASE
    assert world.leaving == {"other": at("n0:3")}


def test_one_that_ends_or_was_stopped_is_on_no_gpu() -> None:
    ended, stopped = shrinking(), shrinking()
    apply(ended, ev.JobEnded(NOW_S + 1, "other", JobState.FAILED))
    apply(stopped, ev.TransitionTimed(NOW_S + 1, "other", 0, None, 0.5))
    assert ended.leaving == stopped.leaving == {}


def test_a_snapshot_keeps_who_is_leaving() -> None:
    world = shrinking()
    assert decode_world(encode_world(world)).leaving == world.fork().leaving == {"other": at("n0:23")}
