"""Which changes are carried out, which are dropped because they do not pay, and the order of commands."""

from collections.abc import Set
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batuta.core import event as ev
from batuta.core.admission import Admitted
from batuta.core.apply import apply
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.plan import Command, Plan, Preempt, Resize, Start, Stop
from batuta.core.reason import Reason
from batuta.core.weigh import Costs, lost_work_s
from batuta.core.world import World
from batuta.placement.most_free import MostFreePlacer
from tests.support.fixed_policy import Fixed, rules_that_give
from tests.support.invariants import check_plan
from tests.support.worlds import at, carry_out, make_job, make_nodes, make_world, shown

NOW_S = 100.0
FREE_OF_CHARGE = Costs(enabled=False)


class Caps:
    """Admits each job up to a size."""

    def __init__(self, **caps: int) -> None:
        self.caps = caps

    def admit(self, world: World, now_s: float, without: Set[int] = frozenset()) -> Admitted:
        return Admitted(np.array([self.caps.get(job, 99) for job in world.jobs.ids], dtype=np.int64), {})


def plan_for(world: World, rules: SchedulerProfile) -> Plan:
    plan = decide(world, NOW_S, rules)
    check_plan(world, plan)
    return plan


def told(plan: Plan) -> list[tuple[str, str, str]]:
    """What is commanded, to whom, and the place."""
    return [(type(c).__name__, c.job, _place(c)) for c in plan.commands]


def _place(command: Command) -> str:
    return "" if isinstance(command, Preempt | Stop) else shown(command.placement)


# ----------------------------------------------------------------------------------------------------- growth


def growing(**changes: Any) -> World:
    """A job that runs on one GPU of four and scales perfectly."""
    job = make_job("a", 1, max=4, **{"work_s": 1e6, "restart_s": 10.0} | changes)
    return make_world(make_nodes(4), {"a": "n0:0"}, [job])


def test_growth_that_pays_is_carried_out() -> None:
    plan = plan_for(growing(), rules_that_give(a=4))
    assert told(plan) == [("Resize", "a", "n0:0123")]
    assert plan.commands[0].reason is Reason.GREW
    assert dict(plan.commands[0].evidence) == {"before": 1, "gpus": 4}


def test_growth_that_does_not_pay_is_dropped_and_the_numbers_say_why() -> None:
    """3 GPUs more for 25 s of work and a restart, against two restarts of 20 s at speed 4."""
    plan = plan_for(growing(work_s=200.0, restart_s=20.0), rules_that_give(a=4))
    assert not plan.commands
    decision = plan.decisions.of("a")
    assert decision is not None
    assert decision.reason is Reason.CHANGE_DOES_NOT_PAY
    numbers = dict(decision.evidence)
    assert (numbers["gpus"], numbers["wanted"]) == (1, 4)
    assert numbers["gain_s"] == pytest.approx(3 * (100 / 4 + 20))
    assert numbers["cost_s"] == pytest.approx(2 * 20 * 4)
    assert str(decision) == "stays at 1 GPU: a change to 4 gains 135 s and costs 160 s"


def test_a_size_that_its_user_asks_for_need_not_pay() -> None:
    world = growing(work_s=200.0, restart_s=20.0)
    job = world.jobs.jobs[0]
    apply(world, ev.JobChanged(50.0, replace(job, size=4, min=4, max=4)))
    assert told(plan_for(world, rules_that_give(a=4))) == [("Resize", "a", "n0:0123")]


def test_without_weighing_it_is_carried_out_all_the_same() -> None:
    plan = plan_for(growing(work_s=200.0, restart_s=20.0), rules_that_give(FREE_OF_CHARGE, a=4))
    assert told(plan) == [("Resize", "a", "n0:0123")]


def test_work_that_would_be_lost_counts_against_growth() -> None:
    """Gain 275 + 60 s; cost 2 · 60 s at speed 2, and 100 s if the first checkpoint is still to come."""
    short: dict[str, Any] = {"work_s": 650.0, "restart_s": 60.0}
    assert told(plan_for(growing(**short), rules_that_give(a=2)))
    assert not told(plan_for(growing(**short, checkpoint_interval_s=1e6), rules_that_give(a=2)))


@pytest.mark.parametrize(
    ("interval_s", "events", "lost_s"),
    [
        (None, [], 0.0),
        (50.0, [], 3 * 25.0),
        (1000.0, [], 3 * 100.0),
        (1000.0, [ev.JobProgressed(90.0, "a", 7.0)], 3 * 100.0),
    ],
)
def test_half_a_checkpoint_interval_is_lost_but_not_more_than_was_done(
    interval_s: float | None, events: list[ev.Event], lost_s: float
) -> None:
    """A report of progress is no checkpoint."""
    job = make_job("a", 3, checkpoint_interval_s=interval_s)
    world = make_world(make_nodes(4), {"a": "n0:012"}, [job])
    for event in events:
        apply(world, event)
    assert lost_work_s(world, 0, NOW_S) == pytest.approx(lost_s)


def test_what_was_done_before_a_resize_is_saved() -> None:
    world = make_world(make_nodes(4), {"a": "n0:012"}, [make_job("a", 3, max=4, checkpoint_interval_s=1000.0)])
    carry_out(world, [Resize("a", at("n0:0123"), Reason.GREW)], 80.0)
    apply(world, ev.JobStarted(85.0, "a"))
    assert lost_work_s(world, 0, NOW_S) == pytest.approx(4 * 20.0)


# -------------------------------------------------------------------------------------------- shrink and stop


def test_a_shrink_that_nobody_profits_from_is_dropped() -> None:
    world = make_world(make_nodes(4), {"a": "n0:0123"}, [make_job("a", 4, min=1)])
    assert not plan_for(world, rules_that_give(a=2)).commands
    assert told(plan_for(world, rules_that_give(FREE_OF_CHARGE, a=2))) == [("Resize", "a", "n0:01")]


def test_a_stop_that_nobody_profits_from_is_dropped() -> None:
    world = make_world(make_nodes(4), {"a": "n0:01"}, [make_job("a", 2), make_job("b", 4)])
    assert not plan_for(world, rules_that_give()).commands


def test_a_shrink_that_lets_another_start_is_carried_out() -> None:
    world = make_world(make_nodes(4), {"a": "n0:0123"}, [make_job("a", 4, min=1), make_job("b", 2)])
    plan = plan_for(world, rules_that_give(a=2, b=2))
    assert told(plan) == [("Resize", "a", "n0:01"), ("Start", "b", "n0:23")]
    assert dict(plan.commands[0].evidence) == {"before": 4, "gpus": 2}
    assert plan.commands[0].reason is Reason.SHRANK


def test_a_shrink_for_growth_that_does_not_pay_is_dropped_with_it() -> None:
    """`b` is almost done: it does not grow, so `a` need not shrink."""
    jobs = [make_job("a", 3, min=1), make_job("b", 1, max=3, work_s=101.0, restart_s=60.0)]
    world = make_world(make_nodes(4), {"a": "n0:012", "b": "n0:3"}, jobs)
    plan = plan_for(world, rules_that_give(a=1, b=3))
    assert not plan.commands
    assert [decision.reason.name for decision in plan.decisions] == ["FULL_SIZE", "CHANGE_DOES_NOT_PAY"]


@pytest.mark.parametrize(
    ("job", "cap", "kept"),
    [
        (make_job("a", 4, min=1), 99, True),
        (make_job("a", 4, min=1), 4, True),
        (make_job("a", 4, min=1), 3, False),
    ],
)
def test_a_size_that_is_no_longer_allowed_is_not_kept(job: Any, cap: int, kept: bool) -> None:
    world = make_world(make_nodes(4), {"a": "n0:0123"}, [job])
    plan = plan_for(world, rules_that_give(None, Caps(a=cap), a=2))
    assert told(plan) == ([] if kept else [("Resize", "a", "n0:01")])


def test_who_finds_no_place_at_a_size_that_it_may_have_is_stopped() -> None:
    """Its node is closed to newcomers, and this placer places anew whatever changes."""
    job = make_job("a", 4, min=1)
    world = make_world(make_nodes(4), {"a": "n0:0123"}, [job], cordoned=["n0"])
    rules = SchedulerProfile(Fixed({"a": 2}), MostFreePlacer(), Caps(a=2), Costs())
    plan = plan_for(world, rules)
    assert told(plan) == [("Preempt", "a", "")]
    assert not plan_for(world, replace(rules, admission=Caps(a=4))).commands


@pytest.mark.parametrize("change", [{"size": 2, "max": 2}, {"size": 2, "max": 5, "sizes": (1, 2, 5)}])
def test_a_size_that_the_user_no_longer_wants_is_not_kept(change: dict[str, Any]) -> None:
    world = make_world(make_nodes(4), {"a": "n0:0123"}, [make_job("a", 4, min=1)])
    apply(world, ev.JobChanged(50.0, make_job("a", **{"min": 1} | change)))
    assert told(plan_for(world, rules_that_give(a=2))) == [("Resize", "a", "n0:01")]


def test_a_shrink_to_the_most_that_the_user_wants_is_not_blamed_on_other_jobs() -> None:
    world = make_world(make_nodes(4), {"a": "n0:0123"}, [make_job("a", 4, min=1)])
    apply(world, ev.JobChanged(50.0, make_job("a", 2, max=2, min=1)))
    command = plan_for(world, rules_that_give(a=2)).commands[0]
    assert command.reason is Reason.CUT_TO_MAX
    assert command.reason.sentence(command.evidence) == "shrinks from 4 to 2 GPUs: it may have 2 at most"


# ------------------------------------------------------------------------------------------------ broken jobs


def test_a_broken_job_is_repaired_whatever_that_costs() -> None:
    job = make_job("a", 3, min=1, work_s=1.0, restart_s=1000.0)
    world = make_world(make_nodes(2, 4), {"a": "n0:01 n1:0"}, [job], lost=["n0"])
    plan = plan_for(world, rules_that_give(a=3))
    assert told(plan) == [("Resize", "a", "n1:012")]
    assert (plan.commands[0].reason, dict(plan.commands[0].evidence)) == (
        Reason.REPAIRED,
        {"lost": 2, "gpus": 3},
    )


def test_a_broken_job_goes_on_with_what_is_left_if_that_is_a_legal_size() -> None:
    world = make_world(make_nodes(2, 1), {"a": "n0:01 n1:0"}, [make_job("a", 3, min=1)], lost=["n0"])
    assert told(plan_for(world, rules_that_give(a=1))) == [("Resize", "a", "n1:0")]


def test_a_broken_job_without_a_legal_size_loses_the_rest() -> None:
    world = make_world(make_nodes(2, 1), {"a": "n0:01 n1:0"}, [make_job("a", 3)], lost=["n0"])
    plan = plan_for(world, rules_that_give(a=3))
    assert told(plan) == [("Preempt", "a", "")]
    assert (plan.commands[0].reason, dict(plan.commands[0].evidence)) == (Reason.LOST_NODE, {"lost": 2})


# ------------------------------------------------------------------------------------------------------ order


def test_gpus_are_freed_before_they_are_taken() -> None:
    jobs = [
        make_job("grows", 1, max=3),
        make_job("shrinks", 4, min=1),
        make_job("starts", 2),
        make_job("stops", 2),
    ]
    world = make_world(make_nodes(8), {"grows": "n0:0", "shrinks": "n0:1234", "stops": "n0:56"}, jobs)
    plan = plan_for(world, rules_that_give(grows=3, shrinks=2, starts=2))
    assert [(type(c), c.job) for c in plan.commands] == [
        (Preempt, "stops"),
        (Resize, "shrinks"),
        (Resize, "grows"),
        (Start, "starts"),
    ]
    assert dict(plan.commands[0].evidence) == {"before": 2}
    assert dict(plan.commands[3].evidence) == {"gpus": 2}
