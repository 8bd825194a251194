"""What jobs may have above their `min`: own quota first, then idle quota of others."""

from typing import Any

from batuta.core import event as ev
from batuta.core.admission import Budget
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.quota import MILLI, ClusterQueue, FlavorQuota, Limits, Quota, ResourceGroup
from batuta.quota.growth import Growers, grow
from batuta.quota.snapshot import QuotaState
from tests.support.quotas import CELL, FLAVOR, GPU, gpus, quota_of
from tests.support.worlds import NOW_S, make_job, make_world

GPUS_ONLY = ((GPU, FLAVOR),)


def budgets(
    quota: Quota, *jobs: tuple[str, int, int], flavors: tuple[tuple[str, str], ...] = GPUS_ONLY, **wishes: Any
) -> tuple[Budget, ...]:
    """What is left to jobs of these queues that hold their `min` and want their `max`, in this order."""
    made = [
        make_job(f"j{k}", low, min=low, max=high, queue=queue, submit_s=float(k), **wishes)
        for k, (queue, low, high) in enumerate(jobs)
    ]
    world = make_world([Node("n0", 64)], {}, made)
    apply(world, ev.QuotaSet(NOW_S, quota))
    state = QuotaState(quota)
    for queue, low, _ in jobs:
        state.tree.queues[queue].add({state.tree.number(CELL): low * MILLI})
    growers = [
        Growers(
            state.tree.queues[one.name],
            {row: flavors for row, (queue, _, _) in enumerate(jobs) if queue == one.name},
        )
        for one in quota.cluster_queues
    ]
    return tuple(budget for _, budget in grow(world, state, growers, world.jobs.max.copy()))


def shown(found: tuple[Budget, ...]) -> list[tuple[list[int], int]]:
    return [(budget.rows.tolist(), budget.gpus) for budget in found]


def test_given_room_for_all_there_is_nothing_to_divide() -> None:
    assert budgets(quota_of(ClusterQueue("a", "", gpus(8))), ("a", 1, 4), ("a", 1, 4)) == ()


def test_given_less_the_jobs_of_a_queue_share_what_it_has() -> None:
    found = budgets(quota_of(ClusterQueue("a", "", gpus(6))), ("a", 1, 4), ("a", 1, 4))
    assert shown(found) == [([0, 1], 6)]


def test_those_who_want_no_more_than_their_min_are_not_asked() -> None:
    found = budgets(quota_of(ClusterQueue("a", "", gpus(6))), ("a", 2, 2), ("a", 1, 8))
    assert shown(found) == [([1], 4)]


def test_a_queue_grows_into_its_own_before_others_borrow_it() -> None:
    quota = quota_of(ClusterQueue("a", "team", gpus(4)), ClusterQueue("b", "team", gpus(4)))
    found = budgets(quota, ("a", 1, 8), ("b", 1, 4))
    assert shown(found) == [([0], 4)]


def test_what_is_idle_is_shared_by_those_who_want_it() -> None:
    queues = [ClusterQueue(name, "team", gpus(2)) for name in "ab"]
    quota = quota_of(*queues, ClusterQueue("idle", "team", gpus(4)))
    found = budgets(quota, ("a", 1, 9), ("b", 1, 9))
    assert shown(found) == [([0], 4), ([1], 4)]


def test_a_borrowing_limit_holds_for_growth_too() -> None:
    quota = quota_of(ClusterQueue("a", "team", gpus(2, 1)), ClusterQueue("idle", "team", gpus(4)))
    assert shown(budgets(quota, ("a", 1, 9))) == [([0], 3)]


def test_given_nothing_idle_everybody_keeps_its_min() -> None:
    quota = quota_of(ClusterQueue("a", "team", gpus(1)), ClusterQueue("b", "team", gpus(1)))
    assert shown(budgets(quota, ("a", 1, 9), ("b", 1, 9))) == [([0], 1), ([1], 1)]


def test_what_is_beside_the_gpus_is_a_limit_of_its_own() -> None:
    """GPUs for eight, CPUs for four: two each. What the job has already is counted in GPUs only here."""
    limits = (Limits(8 * MILLI), Limits(8 * MILLI))
    group = ResourceGroup((GPU, "cpu"), (FlavorQuota(FLAVOR, limits),))
    flavors = ((GPU, FLAVOR), ("cpu", FLAVOR))
    [budget] = budgets(quota_of(ClusterQueue("a", "", (group,))), ("a", 1, 8), flavors=flavors, cpus_milli_per_gpu=2000)
    [(each, most)] = budget.beside
    assert each.tolist() == [2000]
    assert most == (2 + 8) * MILLI
