"""A whole cycle: it reads and does not write, says the same again, and goes step by step."""

from dataclasses import replace

import pytest

from batuta.core import event as ev
from batuta.core.apply import StalePlanError, apply
from batuta.core.decide import STEPS, decide
from batuta.core.job import NO_RESTART_S
from batuta.core.plan import Preempt
from batuta.core.world import World
from tests.support.fixed_policy import rules_that_give
from tests.support.invariants import check_invariants, check_plan, fingerprint
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world


def some_world() -> World:
    jobs = [
        make_job("a", 2, max=4),
        make_job("b", 1, max=2, submit_s=1.0),
        make_job("c", 3, min=1, submit_s=2.0),
    ]
    return make_world(make_nodes(4, 2), {"a": "n0:01"}, jobs)


RULES = rules_that_give(a=2, b=2, c=2)


def test_deciding_changes_nothing_and_says_the_same_again() -> None:
    world = some_world()
    before = fingerprint(world)
    plan = decide(world, NOW_S, RULES)
    check_plan(world, plan)
    assert fingerprint(world) == before
    assert decide(world, NOW_S, RULES) == plan
    assert decide(world.fork(), NOW_S, RULES) == plan


def test_a_plan_is_of_a_version_a_time_and_a_policy() -> None:
    world = some_world()
    plan = decide(world, NOW_S, RULES)
    assert (plan.world_version, plan.time_s, plan.policy) == (world.version, NOW_S, "fixed")


def test_what_was_decided_once_is_not_decided_again() -> None:
    world = some_world()
    first = decide(world, NOW_S, RULES)
    apply(world, ev.Planned(NOW_S, first))
    check_invariants(world)
    assert [command.job for command in first.commands] == ["b", "c"]
    assert decide(world, NOW_S, RULES).empty, "jobs in transition are left alone"
    for job in ("b", "c"):
        apply(world, ev.JobStarted(NOW_S, job))
    assert decide(world, NOW_S, RULES).empty


@pytest.mark.parametrize(
    "meanwhile",
    [
        ev.TimePassed(NOW_S),
        ev.NodeLost(NOW_S, "n1"),
        ev.JobInterrupted(NOW_S, "a"),
        ev.JobStarted(NOW_S, "x"),
    ],
)
def test_a_plan_that_came_too_late_is_refused(meanwhile: ev.Event) -> None:
    world = some_world()
    plan = decide(world, NOW_S, RULES)
    apply(world, meanwhile)
    with pytest.raises(StalePlanError):
        apply(world, ev.Planned(NOW_S, plan))
    check_invariants(world)


def test_every_step_is_told_in_its_order() -> None:
    steps: list[str] = []
    decide(some_world(), NOW_S, RULES, steps.append)
    assert tuple(steps) == STEPS


def test_without_jobs_there_is_nothing_to_decide() -> None:
    world = make_world(make_nodes(4))
    plan = decide(world, NOW_S, RULES)
    assert plan.empty
    assert list(plan.decisions) == []


def test_without_nodes_everybody_waits_and_is_told_why() -> None:
    world = make_world([], {}, [make_job("a"), make_job("b", 3)])
    plan = decide(world, NOW_S, RULES)
    check_plan(world, plan)
    assert plan.empty
    assert [decision.gpus for decision in plan.decisions] == [0, 0]


def test_plans_that_differ_in_one_decision_are_not_equal() -> None:
    world = some_world()
    plan = decide(world, NOW_S, RULES)
    assert plan != decide(world, NOW_S, rules_that_give(a=2, b=1, c=2))
    assert plan.decisions != "something else"


def test_without_reasons_the_commands_are_the_same() -> None:
    world = some_world()
    plan, bare = decide(world, NOW_S, RULES), decide(world, NOW_S, replace(RULES, explains=False))
    assert bare.commands == plan.commands
    assert len(plan.decisions) == 3
    assert not len(bare.decisions)


def test_a_job_that_would_not_come_back_from_a_restart_is_not_stopped_for_another() -> None:
    """Given one that runs and one that the policy prefers, the first is stopped if it can be restarted."""
    never_saves = {"checkpoint_interval_s": NO_RESTART_S}
    for facts, stopped in (
        ({"restart_s": 30.0}, ["b"]),
        ({"restart_s": NO_RESTART_S}, []),
        (never_saves, []),
        ({"checkpoint_interval_s": 600.0}, ["b"]),
        (never_saves | {"max": 4}, ["b"]),  # its user says that it may be resized
    ):
        jobs = [make_job("a", 4), make_job("b", 2, submit_s=1.0, **facts)]
        world = make_world(make_nodes(4), {"b": "n0:01"}, jobs)
        plan = decide(world, NOW_S, rules_that_give(a=4))
        check_plan(world, plan)
        assert [command.job for command in plan.commands if isinstance(command, Preempt)] == stopped
