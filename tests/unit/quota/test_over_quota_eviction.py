"""Quota that was cut: who goes, and who need not."""

from batuta.core.quota import MILLI, ClusterQueue, Cohort, Quota
from batuta.quota.preemption import evict_over_quota
from batuta.quota.snapshot import QuotaState
from batuta.quota.tree import Amounts
from batuta.quota.workload import Workload
from tests.support.quotas import CELL, gpus, quota_of


def after_cut(
    quota: Quota, *holders: tuple[str, str, int], stay: tuple[str, ...] = (), **lost_s: float
) -> tuple[list[str], QuotaState]:
    """Names of those who go, given holders as (name, queue, GPUs), whether they may have that or not."""
    state = QuotaState(quota)
    for since, (name, queue, size) in enumerate(holders):
        workload = Workload(name, state.tree.queues[queue], (), lost_s=lost_s.get(name, 0.0))
        usage: Amounts = {state.tree.number(CELL): size * MILLI}
        state.book(workload, usage, float(since))
    gone = evict_over_quota(state, state.tree.queues, lambda workload: workload.key not in stay)
    return sorted(str(workload.key) for workload in gone), state


def own(name: str, nominal: int, cohort: str = "", borrowing: int | None = None) -> ClusterQueue:
    return ClusterQueue(name, cohort, gpus(nominal, borrowing))


def test_given_enough_nobody_goes() -> None:
    gone, _ = after_cut(quota_of(own("a", 4)), ("x", "a", 2), ("y", "a", 2))
    assert gone == []


def test_who_loses_least_goes_and_only_as_many_as_must() -> None:
    gone, state = after_cut(quota_of(own("a", 4)), ("x", "a", 2), ("y", "a", 2), ("z", "a", 2), x=50.0, y=5.0, z=20.0)
    assert gone == ["y"]
    assert state.tree.queues["a"].left(0) == 0


def test_a_small_one_need_not_go_if_a_large_one_has_to() -> None:
    gone, _ = after_cut(quota_of(own("a", 2)), ("small", "a", 1), ("large", "a", 4), small=1.0, large=9.0)
    assert gone == ["large"]


def test_those_who_cannot_go_now_stay_and_others_go_for_them() -> None:
    gone, _ = after_cut(quota_of(own("a", 2)), ("x", "a", 2), ("y", "a", 2), stay=("x",), y=100.0)
    assert gone == ["y"]


def test_in_a_cohort_that_is_short_borrowers_go_and_owners_stay() -> None:
    quota = quota_of(own("owner", 4, "all"), own("borrower", 0, "all"))
    gone, _ = after_cut(quota, ("x", "owner", 4), ("y", "borrower", 2), y=1000.0)
    assert gone == ["y"]


def test_a_queue_above_its_borrowing_limit_gives_up_its_own() -> None:
    """The cohort has enough; it is the queue that may not have so much."""
    quota = quota_of(own("a", 1, "all", borrowing=1), own("idle", 8, "all"), own("b", 0, "all"))
    gone, _ = after_cut(quota, ("x", "a", 2), ("y", "a", 2), ("z", "b", 2), x=9.0, y=1.0)
    assert gone == ["y"]


def test_a_cohort_above_its_borrowing_limit_is_brought_down_and_others_are_not() -> None:
    quota = quota_of(
        Cohort("root", "", gpus(8)),
        Cohort("left", "root", gpus(0, borrowing=2)),
        *(own("a", 0, "left"), own("b", 0, "root")),
    )
    gone, _ = after_cut(quota, ("x", "a", 2), ("y", "a", 2), ("z", "b", 2), x=9.0, y=1.0)
    assert gone == ["y"]
