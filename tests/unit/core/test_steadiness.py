"""A running job is changed once for each arrival or end, and a bounded number of times an hour."""

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.curve import SpeedCurve
from batuta.core.decide import decide
from batuta.core.eligibility import MOST_CHANGES_AN_HOUR, SETTLES_S
from batuta.core.job import JobState
from batuta.core.plan import Command, Resize, Start
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.profile import profile_for
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world

RENT = profile_for("rent")
FLAT = SpeedCurve((0.0, 1.0, 1.01, 1.02, 1.03))


def cycle(world: World, now_s: float) -> dict[str, int]:
    """Decides and carries it out: the new sizes of the jobs that are started or resized."""
    plan = decide(world, now_s, RENT)
    if not plan.empty:
        apply(world, ev.Planned(now_s, plan))
    changed: list[Command] = list(plan.commands)
    for one in changed:
        apply(world, ev.JobStarted(now_s, one.job))
    return {one.job: one.placement.size for one in changed if isinstance(one, Start | Resize)}


def arrives(world: World, name: str, now_s: float, *, most: int = 8, **changes: object) -> None:
    apply(world, ev.JobSubmitted(now_s, make_job(name, 1, max=most, submit_s=now_s, restart_s=1.0, **changes)))


def two_equal_jobs() -> World:
    """One has had all eight GPUs, and half of them goes to one that arrives."""
    jobs = [make_job("a", 1, max=8, restart_s=1.0)]
    world = make_world(make_nodes(4, 4), {"a": "n0:0123 n1:0123"}, jobs)
    arrives(world, "b", NOW_S)
    assert cycle(world, NOW_S) == {"a": 4, "b": 4}
    return world


def test_an_arrival_changes_a_job_once_whatever_is_learned_of_the_new_one() -> None:
    world = two_equal_jobs()
    apply(world, ev.JobProgressed(NOW_S + 2, "b", 1e6, curve=FLAT))
    for second in range(3, int(SETTLES_S), 30):
        assert "a" not in cycle(world, NOW_S + second)


def test_the_next_arrival_or_end_changes_it_again() -> None:
    world = two_equal_jobs()
    apply(world, ev.JobProgressed(NOW_S + 2, "b", 1e6, curve=FLAT))
    cycle(world, NOW_S + 3)
    apply(world, ev.JobEnded(NOW_S + 5, "b", JobState.SUCCEEDED))
    assert cycle(world, NOW_S + 5) == {"a": 8}


def test_when_it_has_settled_it_takes_what_is_free() -> None:
    world = make_world(make_nodes(8), {"a": "n0:0123"}, [make_job("a", 1, max=8, restart_s=1.0)])
    carry_out(world, [Resize("a", at("n0:01"), Reason.SHRANK)], NOW_S)
    apply(world, ev.JobStarted(NOW_S, "a"))
    assert cycle(world, NOW_S + SETTLES_S - 1) == {}
    assert cycle(world, NOW_S + SETTLES_S + 1) == {"a": 8}


def test_it_gives_way_to_a_job_that_waits_for_its_min_even_if_it_was_just_changed() -> None:
    world = two_equal_jobs()
    for number in range(6):
        arrives(world, f"new{number}", NOW_S + 1 + number)
        assert cycle(world, NOW_S + 1 + number)[f"new{number}"] >= 1


def test_a_stream_of_short_jobs_changes_a_long_one_a_bounded_number_of_times_an_hour() -> None:
    """Each arrival takes a GPU of it and each end gives it back: only the first needs a restart."""
    world = make_world(make_nodes(8), {"a": "n0:01234567"}, [make_job("a", 1, max=8, restart_s=0.1)])
    changes = 0
    for number in range(240):
        now_s = NOW_S + 15 * number
        arrives(world, f"s{number}", now_s, most=1, work_s=5.0)
        changes += "a" in cycle(world, now_s)
        apply(world, ev.JobEnded(now_s + 5, f"s{number}", JobState.SUCCEEDED))
        changes += "a" in cycle(world, now_s + 5)
    # A last growth may be followed by one more shrink, for a job that waits for its min.
    assert changes <= MOST_CHANGES_AN_HOUR + 1
