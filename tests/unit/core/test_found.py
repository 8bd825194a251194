"""What a backend sees counts, whatever was planned: a job is found somewhere, refused, or forgotten."""

import math

import pytest

from batuta.core import event as ev
from batuta.core.apply import AVOID_S, apply
from batuta.core.cluster import Node
from batuta.core.decide import decide
from batuta.core.eligibility import next_release_s
from batuta.core.job import DesiredState, JobState, Share
from batuta.core.job_table import Phase
from batuta.core.plan import Preempt, Resize, Start
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.profile import profile_for
from tests.support.fixed_policy import rules_that_give
from tests.support.invariants import check_invariants, check_plan
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world, shown

TWO_NODES = make_nodes(4, 4)


def phase(world: World, job: str) -> Phase:
    return world.jobs.phase_of(world.jobs.row(job))


def where(world: World, job: str) -> str:
    placement = world.jobs.placements[world.jobs.row(job)]
    return "" if placement is None else shown(placement)


def cell(world: World, job: str, column: str) -> float:
    return float(getattr(world.jobs, column)[world.jobs.row(job)])


def find(world: World, job: str, text: str, **more: object) -> None:
    apply(world, ev.JobFound(NOW_S, job, at(text), **more))  # type: ignore[arg-type]
    check_invariants(world, changed=world.jobs.ids, as_planned=False)


# ------------------------------------------------------------------------------------- where a job is found


def test_a_waiting_job_that_is_found_runs_from_now_on() -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 2)])
    find(world, "j", "n1:23")
    assert (phase(world, "j"), where(world, "j")) == (Phase.RUNNING, "n1:23")
    assert (cell(world, "j", "first_start_s"), cell(world, "j", "rate")) == (NOW_S, 2.0)
    assert world.layout.free == [0b1111, 0b0011]


def test_one_that_makes_no_progress_yet_is_starting() -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 2)])
    find(world, "j", "n1:23", running=False)
    assert (phase(world, "j"), cell(world, "j", "rate")) == (Phase.STARTING, 0.0)
    apply(world, ev.JobStarted(NOW_S + 1, "j"))
    assert phase(world, "j") is Phase.RUNNING


def test_a_resize_that_did_not_work_leaves_no_trace_but_the_time() -> None:
    world = make_world(TWO_NODES, {"j": "n0:01"}, [make_job("j", 2, min=1, max=4)])
    restarts = cell(world, "j", "restarts")
    carry_out(world, [Resize("j", at("n0:01 n1:01"), Reason.GREW)], 500.0)
    find(world, "j", "n0:01")
    assert (phase(world, "j"), where(world, "j")) == (Phase.RUNNING, "n0:01")
    assert cell(world, "j", "restarts") == restarts + 1, "what was told is not taken back"
    assert world.layout.free == [0b1100, 0b1111]


@pytest.mark.parametrize(
    ("found", "left", "lost"),
    [
        ("n0:01", "n0:01", 2),  # too few for it
        ("n0:01 n1:01 ghost:0", "n0:01 n1:01", 1),  # a node that nobody knows
        ("n0:01 n2:01", "n0:01", 2),  # a node that is lost
        ("n0:01 n1:03", "n0:01 n1:0", 1),  # a GPU that is ill
        ("n0:01 n1:09", "n0:01 n1:0", 1),  # a GPU that the node does not have
        ("n0:01 n0:12", "n0:01 n0:2", 1),  # the same GPU twice
    ],
)
def test_a_job_that_is_found_without_all_its_gpus_is_broken(found: str, left: str, lost: int) -> None:
    world = make_world(make_nodes(4, 4, 4), {}, [make_job("j", 4)], lost=["n2"])
    apply(world, ev.GpuFailed(NOW_S, "n1", 3))
    find(world, "j", found)
    assert (phase(world, "j"), where(world, "j")) == (Phase.BROKEN, left)
    assert (cell(world, "j", "lost_gpus"), cell(world, "j", "rate")) == (lost, 0.0)


def test_half_a_replica_is_none() -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 2, max=4, gpus_per_replica=2)])
    find(world, "j", "n0:01 n1:0")
    assert phase(world, "j") is Phase.BROKEN
    plan = decide(world, NOW_S, rules_that_give(j=2))
    assert [(type(command), shown(command.placement)) for command in plan.commands] == [(Resize, "n0:01")]  # type: ignore[union-attr]


@pytest.mark.parametrize("found", ["", "ghost:01", "n2:01"])
def test_a_job_that_is_found_nowhere_waits(found: str) -> None:
    world = make_world(make_nodes(4, 4, 4), {"j": "n0:01"}, [make_job("j", 2)], lost=["n2"])
    find(world, "j", found)
    assert (phase(world, "j"), where(world, "j")) == (Phase.WAITING, "")
    assert world.layout.free == [0b1111, 0b1111, 0]


def test_more_than_its_max_runs_until_it_is_resized() -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 1, max=2)])
    find(world, "j", "n0:012")
    assert phase(world, "j") is Phase.RUNNING
    plan = decide(world, NOW_S, profile_for("elastic-fifo"))
    assert [(command.job, command.reason) for command in plan.commands] == [("j", Reason.CUT_TO_MAX)]


def test_gpus_of_two_types_count_as_those_of_the_first_worker() -> None:
    nodes = [Node("n0", 4, gpu_type="a"), Node("n1", 4, gpu_type="b")]
    world = make_world(nodes, {}, [make_job("j", 4)])
    find(world, "j", "n1:01 n0:01")
    assert world.nodes.types[int(cell(world, "j", "gpu_type"))] == "b"
    assert world.capacity() == [2, 6]


def test_a_job_that_is_over_or_unknown_is_not_found() -> None:
    world = make_world(TWO_NODES, {"j": "n0:0"}, [make_job("j")])
    apply(world, ev.JobEnded(NOW_S, "j", JobState.SUCCEEDED))
    find(world, "j", "n0:0")
    find(world, "nobody", "n0:0")
    assert world.layout.total_free == 8


def test_a_cancelled_job_that_is_found_is_stopped_again() -> None:
    world = make_world(TWO_NODES, {"j": "n0:0"}, [make_job("j")])
    apply(world, ev.JobWished(NOW_S, "j", DesiredState.CANCEL))
    apply(world, ev.Planned(NOW_S, decide(world, NOW_S, rules_that_give())))
    find(world, "j", "n0:0")
    assert [c.reason for c in decide(world, NOW_S, rules_that_give()).commands] == [Reason.CANCELLING]


# ------------------------------------------------------------------------------------------ among other jobs


@pytest.mark.parametrize(
    ("found", "b_phase", "b_keeps"),
    [("n0:01", Phase.BROKEN, "n0:23"), ("n0:0123", Phase.WAITING, ""), ("n1:01", Phase.RUNNING, "n0:123")],
)
def test_who_was_thought_to_have_these_gpus_loses_them(found: str, b_phase: Phase, b_keeps: str) -> None:
    world = make_world(TWO_NODES, {"b": "n0:123"}, [make_job("a", 1, max=4), make_job("b", 3)])
    find(world, "a", found)
    assert (where(world, "a"), phase(world, "a")) == (found, Phase.RUNNING)
    assert (where(world, "b"), phase(world, "b")) == (b_keeps, b_phase)


def test_shares_lie_beside_each_other_but_not_beside_a_whole_job() -> None:
    half = Share(memory_mib=1, compute_percent=60)
    jobs = [make_job("a", share=half), make_job("b", share=half), make_job("c")]
    world = make_world(TWO_NODES, {"a": "n0:0", "c": "n0:1"}, jobs)
    find(world, "b", "n0:0")
    assert (where(world, "a"), where(world, "b")) == ("n0:0", "n0:0"), "even if that is too much"
    find(world, "b", "n0:1")
    assert (where(world, "b"), where(world, "c")) == ("n0:1", "")
    find(world, "c", "n0:1")
    assert (where(world, "b"), where(world, "c")) == ("", "n0:1")


def test_a_share_has_one_gpu_whatever_was_told() -> None:
    world = make_world(TWO_NODES, {}, [make_job("a", share=Share(compute_percent=50))])
    find(world, "a", "n0:01 n1:0")
    assert (where(world, "a"), phase(world, "a")) == ("n0:0", Phase.RUNNING)


# ------------------------------------------------------------------------------------------- and left alone


def test_who_runs_and_could_not_grow_is_not_resized_for_a_while() -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 2, min=1, max=4, restart_s=0.0)])
    find(world, "j", "n0:01", not_before_s=NOW_S + 10)
    rules = profile_for("elastic-fifo")
    plan = decide(world, NOW_S + 1, rules)
    check_plan(world, plan)
    assert not plan.commands
    assert [decision.reason for decision in plan.decisions] == [Reason.RESIZE_BACKOFF]
    assert next_release_s(world, NOW_S + 1) == NOW_S + 10
    assert [type(command) for command in decide(world, NOW_S + 11, rules).commands] == [Resize]


def test_a_gang_that_has_a_part_of_its_seats_keeps_them_until_it_is_tried_again() -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 4)])
    find(world, "j", "n0:01", running=False, not_before_s=NOW_S + 10, avoid=("n0",))
    rules = profile_for("fifo")
    plan = decide(world, NOW_S + 1, rules)
    check_plan(world, plan)
    assert not plan.commands, "its pods would be killed"
    again = decide(world, NOW_S + 11, rules)
    (command,) = again.commands
    assert isinstance(command, Resize)
    assert shown(command.placement) == "n0:01 n1:01", "it is made whole, but not on the node that it avoids"


def test_it_is_not_left_alone_when_it_loses_more() -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 4, min=2)])
    find(world, "j", "n0:01 n1:01", not_before_s=NOW_S + 100)
    apply(world, ev.NodeLost(NOW_S + 1, "n1"))
    (command,) = decide(world, NOW_S + 1, profile_for("fifo")).commands
    assert command.reason is Reason.REPAIRED


def test_a_higher_priority_may_still_take_its_gpus() -> None:
    world = make_world(make_nodes(4), {}, [make_job("j", 4), make_job("vip", 4, priority=9)])
    find(world, "j", "n0:0123", not_before_s=NOW_S + 100)
    plan = decide(world, NOW_S + 1, rules_that_give(vip=4))
    assert [type(command) for command in plan.commands] == [Preempt, Start]


# ------------------------------------------------------------------------------ nodes that would not have it


def test_a_job_goes_elsewhere_when_a_node_would_not_have_it() -> None:
    world = make_world(TWO_NODES, {"j": "n0:01"}, [make_job("j", 2)])
    apply(world, ev.JobInterrupted(NOW_S, "j", "binder", NOW_S + 5, avoid=("n0", "ghost")))
    check_invariants(world)
    rules = profile_for("fifo")
    (start,) = decide(world, NOW_S + 6, rules).commands
    assert isinstance(start, Start)
    assert start.placement.nodes == ("n1",)
    apply(world, ev.TimePassed(NOW_S + 5 + AVOID_S))
    assert not world.avoided
    (start,) = decide(world, NOW_S + 70, rules).commands
    assert isinstance(start, Start)
    assert start.placement.nodes == ("n0",)


def test_it_asks_again_when_the_node_has_changed() -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 2)])
    apply(world, ev.JobInterrupted(NOW_S, "j", avoid=("n0",)))
    apply(world, ev.JobInterrupted(NOW_S, "j", avoid=("n1",)))
    assert world.avoided["j"].nodes == 0b11
    apply(world, ev.NodeChanged(NOW_S, Node("n0", 4, labels=(("a", "b"),))))
    assert world.avoided["j"].nodes == 0b10
    apply(world, ev.NodeChanged(NOW_S, Node("n1", 4, labels=(("a", "b"),))))
    assert not world.avoided


def test_the_engine_wakes_when_nodes_may_be_asked_again() -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 2)])
    assert next_release_s(world, NOW_S) == math.inf
    apply(world, ev.JobInterrupted(NOW_S, "j", avoid=("n0",)))
    assert next_release_s(world, NOW_S) == NOW_S + AVOID_S


@pytest.mark.parametrize("job", ["j", "nobody"])
def test_nothing_is_avoided_for_a_job_that_is_over(job: str) -> None:
    world = make_world(TWO_NODES, {}, [make_job("j", 2)])
    apply(world, ev.JobInterrupted(NOW_S, job, avoid=("n0",)))
    apply(world, ev.JobEnded(NOW_S, "j", JobState.CANCELLED))
    apply(world, ev.JobInterrupted(NOW_S, job, avoid=("n0",)))
    assert not world.avoided


# ------------------------------------------------------------------------------------------------- forgotten


def test_a_job_that_is_forgotten_leaves_its_id_to_another() -> None:
    world = make_world(TWO_NODES, {"j": "n0:0"}, [make_job("j")])
    apply(world, ev.JobEnded(NOW_S, "j", JobState.SUCCEEDED))
    with pytest.raises(ValueError, match="exists already"):
        apply(world, ev.JobSubmitted(NOW_S, make_job("j", 2)))
    apply(world, ev.JobForgotten(NOW_S, "j"))
    assert (world.past, world.forgotten) == ({}, 1)
    apply(world, ev.JobSubmitted(NOW_S, make_job("j", 2)))
    check_invariants(world, {"j"})


def test_a_job_that_is_not_over_is_not_forgotten() -> None:
    world = make_world(TWO_NODES, {"j": "n0:0"}, [make_job("j")])
    apply(world, ev.JobForgotten(NOW_S, "j"))
    apply(world, ev.JobForgotten(NOW_S, "nobody"))
    assert (where(world, "j"), world.forgotten) == ("n0:0", 0)


def test_when_it_really_ended_counts() -> None:
    world = make_world(TWO_NODES, {"j": "n0:0"}, [make_job("j")])
    apply(world, ev.JobEnded(NOW_S, "j", JobState.SUCCEEDED, ended_s=NOW_S - 100))
    assert world.past["j"].end_s == NOW_S - 100
    assert world.past["j"].attained_gpu_s == NOW_S - 100
