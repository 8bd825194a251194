"""What a user wants of a job holds until it is fulfilled: given a wish, then these commands."""

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.decide import decide
from batuta.core.eligibility import next_release_s
from batuta.core.job import DesiredState, JobState
from batuta.core.job_table import Phase
from batuta.core.plan import Preempt, Start, Stop
from batuta.core.reason import Reason
from batuta.core.world import World
from tests.support.fixed_policy import rules_that_give
from tests.support.invariants import check_invariants, check_plan
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world

RULES = rules_that_give(j=2)


def world_with(running: bool) -> World:
    return make_world(make_nodes(2, 2), {"j": "n0:01"} if running else {}, [make_job("j", 2)])


def cycle(world: World, now_s: float = NOW_S) -> list[tuple[type, Reason]]:
    plan = decide(world, now_s, RULES)
    check_plan(world, plan)
    apply(world, ev.Planned(now_s, plan))
    check_invariants(world)
    return [(type(command), command.reason) for command in plan.commands]


@pytest.mark.parametrize("running", [True, False])
def test_a_cancelled_job_is_stopped_once_and_is_over_when_the_backend_says_so(running: bool) -> None:
    world = world_with(running)
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.CANCEL))
    assert cycle(world) == [(Stop, Reason.CANCELLING)]
    assert world.jobs.phase_of(0) is Phase.STOPPING
    assert cycle(world) == []
    apply(world, ev.JobEnded(NOW_S, "j", JobState.CANCELLED))
    assert world.past["j"].state is JobState.CANCELLED
    assert world.jobs.held_back == 0


def test_a_cancel_cannot_be_taken_back() -> None:
    world = world_with(running=True)
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.CANCEL))
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.RUN))
    assert cycle(world) == [(Stop, Reason.CANCELLING)]


def test_a_parked_job_waits_until_it_is_started_again() -> None:
    world = world_with(running=True)
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.PARK))
    assert cycle(world) == [(Preempt, Reason.PARKED)]
    assert cycle(world, NOW_S + 1e6) == []
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.RUN))
    assert cycle(world) == [(Start, Reason.ADMITTED)]


def test_a_job_in_transition_does_not_have_to_finish_it_to_be_parked() -> None:
    world = world_with(running=False)
    assert cycle(world) == [(Start, Reason.ADMITTED)]
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.PARK))
    assert cycle(world) == [(Preempt, Reason.PARKED)]


def test_a_job_on_a_drained_node_goes_elsewhere() -> None:
    world = world_with(running=True)
    apply(world, ev.NodeCordoned(NOW_S, "n0"))
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.EVICT))
    assert cycle(world) == [(Preempt, Reason.EVICTED)]
    assert cycle(world) == [(Start, Reason.ADMITTED)]
    placement = world.jobs.placements[0]
    assert placement is not None
    assert placement.nodes == ("n1",)


def test_a_job_that_holds_nothing_is_not_evicted() -> None:
    world = world_with(running=False)
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.EVICT))
    assert cycle(world) == [(Start, Reason.ADMITTED)]


def test_a_job_that_failed_is_not_started_before_its_time() -> None:
    world = world_with(running=True)
    apply(world, ev.JobInterrupted(NOW_S, "j", not_before_s=NOW_S + 8))
    assert cycle(world) == []
    assert next_release_s(world, NOW_S) == NOW_S + 8
    assert cycle(world, NOW_S + 8) == [(Start, Reason.ADMITTED)]
    assert next_release_s(world, NOW_S) == float("inf")


def test_whoever_says_run_does_not_wait_for_the_back_off() -> None:
    world = world_with(running=True)
    apply(world, ev.JobInterrupted(NOW_S, "j", not_before_s=NOW_S + 8))
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.RUN))
    assert cycle(world) == [(Start, Reason.ADMITTED)]
