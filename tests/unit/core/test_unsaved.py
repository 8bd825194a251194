"""Elastic jobs of which no checkpoint was seen keep their size, and shrink only so that another starts."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from batuta.core import event as ev
from batuta.core.admission import Admitted
from batuta.core.apply import apply
from batuta.core.arrays import IntArray
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import Job, JobState
from batuta.core.plan import Command, Migrate, Resize, Start
from batuta.core.policy import PLAIN
from batuta.core.reason import Reason
from batuta.core.view import PoolView
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.placement.placer import TopologyPlacer
from batuta.policies.registry import policy_names
from tests.support.fixed_policy import rules_that_give
from tests.support.invariants import check_plan
from tests.support.worlds import NOW_S, at, make_job, make_nodes, make_world, scaling


class EqualShares:
    """Everybody gets as much as everybody else, and what is left goes to the first."""

    name = "equal-shares"
    traits = PLAIN

    def allocate(self, view: PoolView) -> IntArray:
        gpus = np.zeros(len(view), dtype=np.int64)
        for row in np.argsort(view.submit_s, kind="stable").tolist():
            if gpus.sum() + view.min[row] <= view.capacity:
                gpus[row] = view.min[row]
        while True:
            up = view.sizes.next(gpus)
            rows = [
                row
                for row in np.argsort(gpus, kind="stable").tolist()
                if 0 < gpus[row] < up[row] and gpus.sum() - gpus[row] + up[row] <= view.capacity
            ]
            if not rows:
                return gpus
            gpus[rows[0]] = up[rows[0]]


EQUAL = SchedulerProfile(EqualShares(), TopologyPlacer())


def never_saves(name: str, **changes: Any) -> Job:
    return make_job(name, **{"size": 1, "max": 8, "restartable": False} | changes)


def commands(world: World, rules: SchedulerProfile = EQUAL, now_s: float = NOW_S) -> tuple[Command, ...]:
    plan = decide(world, now_s, rules)
    check_plan(world, plan)
    return plan.commands


def sizes(found: Iterable[Command]) -> dict[str, int]:
    return {one.job: one.placement.size for one in found if isinstance(one, Start | Resize)}


def test_it_does_not_grow_into_gpus_that_are_free() -> None:
    world = make_world(make_nodes(8), {"a": "n0:01"}, [never_saves("a")])
    assert commands(world) == ()


def test_it_grows_as_soon_as_a_checkpoint_of_it_was_seen() -> None:
    world = make_world(make_nodes(8), {"a": "n0:01"}, [never_saves("a")])
    apply(world, ev.JobCheckpointed(NOW_S, "a", NOW_S))
    assert sizes(commands(world)) == {"a": 8}


def test_it_grows_when_its_script_saves_on_request_though_nothing_is_saved_yet() -> None:
    world = make_world(make_nodes(8), {"a": "n0:01"}, [never_saves("a")])
    apply(world, ev.JobCheckpointed(NOW_S, "a"))
    assert sizes(commands(world)) == {"a": 8}


def test_one_that_is_declared_restartable_is_resized_at_once() -> None:
    world = make_world(make_nodes(8), {"a": "n0:01"}, [never_saves("a", restartable=True)])
    assert sizes(commands(world)) == {"a": 8}


def test_it_gives_nothing_to_a_job_that_grows() -> None:
    """The others share what is left, however unfair the policy finds that."""
    world = make_world(make_nodes(8), {"a": "n0:012345", "b": "n0:6"}, [never_saves("a"), make_job("b", 1, max=8)])
    assert sizes(commands(world)) == {"b": 2}


def test_a_job_that_waits_takes_from_those_that_save_before_it_takes_from_one_that_does_not() -> None:
    jobs = [never_saves("a"), make_job("b", 1, max=8), make_job("c", 1)]
    world = make_world(make_nodes(8), {"a": "n0:0123", "b": "n0:4567"}, jobs)
    assert sizes(commands(world)) == {"b": 3, "c": 1}


def test_it_is_restarted_with_half_of_its_gpus_so_that_another_job_starts() -> None:
    world = make_world(make_nodes(8), {"a": "n0:01234567"}, [never_saves("a"), make_job("b", 1)])
    shrink, start = commands(world)
    assert sizes((shrink, start)) == {"a": 4, "b": 1}
    assert shrink.reason is Reason.SHRANK_UNSAVED
    assert shrink.reason.sentence(shrink.evidence) == (
        "starts again with 4 instead of 8 GPUs, so that another job can start; no checkpoint of it was seen, "
        "so 1000 s of its work are lost"
    )


@pytest.mark.parametrize(("low", "high", "gets"), [(1, 8, 4), (1, 3, 3), (2, 8, 4)])
def test_the_job_that_starts_has_what_was_given_up_as_far_as_the_policy_wants(low, high, gets) -> None:
    """Otherwise it would be restarted a moment later, or keep its smallest size for ever."""
    jobs = [never_saves("a"), never_saves("b", size=low, min=low, max=high)]
    world = make_world(make_nodes(8), {"a": "n0:01234567"}, jobs)
    assert sizes(commands(world)) == {"a": 4, "b": gets}


def test_it_shrinks_further_than_to_half_where_the_other_needs_more_and_never_below_its_min() -> None:
    jobs = [never_saves("a", min=2), make_job("b", 6), make_job("c", 7)]
    world = make_world(make_nodes(8), {"a": "n0:01234567"}, jobs[:2])
    assert sizes(commands(world)) == {"a": 2, "b": 6}
    world = make_world(make_nodes(8), {"a": "n0:01234567"}, [jobs[0], jobs[2]])
    assert commands(world) == ()


def test_many_arrivals_restart_it_three_times_and_not_seven() -> None:
    world = make_world(make_nodes(8), {"a": "n0:01234567"}, [never_saves("a")])
    restarts, now_s = 0, NOW_S
    for k in range(7):
        now_s += 100.0
        apply(world, ev.JobSubmitted(now_s, make_job(f"b{k}", 1, submit_s=now_s)))
        plan = decide(world, now_s, EQUAL)
        apply(world, ev.Planned(now_s, plan))
        for command in plan.commands:
            apply(world, ev.JobStarted(now_s, command.job))
            restarts += command.job == "a"
    assert (restarts, world.jobs.held.tolist()) == (3, [1] * 8)


def test_the_one_that_loses_the_least_work_is_restarted() -> None:
    world = make_world(make_nodes(8), {"old": "n0:0123"}, [never_saves("old")])
    apply(world, ev.JobSubmitted(900.0, never_saves("young", submit_s=900.0)))
    apply(world, ev.JobFound(900.0, "young", at("n0:4567")))
    apply(world, ev.JobSubmitted(NOW_S, make_job("b", 1, submit_s=NOW_S)))
    assert sizes(commands(world)) == {"young": 2, "b": 1}


def test_a_policy_that_would_not_start_the_other_job_shrinks_nobody() -> None:
    world = make_world(make_nodes(8), {"a": "n0:01234567"}, [never_saves("a"), make_job("b", 1)])
    assert commands(world, rules_that_give(a=8)) == ()


def test_its_user_may_still_ask_for_another_size() -> None:
    world = make_world(make_nodes(8), {"a": "n0:01"}, [never_saves("a")])
    apply(world, ev.JobChanged(NOW_S, make_job("a", 4, max=4, restartable=False)))
    assert sizes(commands(world)) == {"a": 4}


def test_less_quota_still_takes_its_gpus() -> None:
    class Strict:
        def admit(self, world: World, now_s: float, without: Any = frozenset()) -> Admitted:
            return Admitted(np.array([2]), {})

    world = make_world(make_nodes(8), {"a": "n0:0123"}, [never_saves("a")])
    assert sizes(commands(world, SchedulerProfile(EqualShares(), TopologyPlacer(), Strict()))) == {"a": 2}


@pytest.mark.parametrize("saves", [False, True])
def test_it_is_not_moved_closer_together(saves: bool) -> None:
    job = make_job("a", 2, max=4, restartable=False, curve=scaling(4, across_nodes=0.5))
    world = make_world(make_nodes(2, 2, 1), {"a": "n0:0 n1:0"}, [job, make_job("b", 1)])
    if saves:
        apply(world, ev.JobCheckpointed(NOW_S, "a", NOW_S))
    moved = [one.job for one in commands(world, rules_that_give(a=2, b=1)) if isinstance(one, Migrate)]
    assert moved == ["a"] * saves


@pytest.mark.parametrize("policy", policy_names())
def test_under_every_policy_it_only_ever_shrinks_and_only_when_another_job_starts(policy: str) -> None:
    """Twelve jobs come and go around it: some save, some have one size."""
    rules = profile_for(policy)
    world = make_world(make_nodes(8), {"a": "n0:0123"}, [never_saves("a", work_s=1e5)])
    now_s, seen = NOW_S, [4]
    for k in range(12):
        now_s += 200.0
        largest = (8, 1, 4)[k % 3]
        job = make_job(f"b{k}", 1, max=largest, submit_s=now_s, work_s=500.0)
        apply(world, ev.JobSubmitted(now_s, job))
        for _ in range(3):
            now_s += 50.0
            plan = decide(world, now_s, rules)
            check_plan(world, plan)
            apply(world, ev.Planned(now_s, plan))
            for command in plan.commands:
                apply(world, ev.JobStarted(now_s, command.job))
            has = int(world.jobs.held[world.jobs.row("a")])
            if has != seen[-1]:
                assert any(isinstance(one, Start) for one in plan.commands), plan.commands
                seen.append(has)
        if k % 2:
            apply(world, ev.JobEnded(now_s, f"b{k - 1}", JobState.SUCCEEDED))
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] >= 1
