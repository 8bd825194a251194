"""A tree is plain if a few numbers per queue say all there is to know of it."""

import pytest

from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    Cohort,
    FlavorQuota,
    Limits,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    Strategy,
    Within,
)
from batuta.quota.memory import Memory
from batuta.quota.plain_quota import NO_LIMIT, PlainQuota
from tests.support.quotas import GPU, gpus, quota_of


def plain(quota: Quota) -> PlainQuota:
    memory = Memory()
    memory.empty_tree(quota)
    return memory.plain


def with_rules(**rules: object) -> Quota:
    """Two queues that share a cohort; the first has these rules."""
    first = ClusterQueue("a", "team", **{"groups": gpus(4), **rules})  # type: ignore[arg-type]
    return quota_of(first, ClusterQueue("b", "team", gpus(2)))


CPU_TOO = (ResourceGroup((GPU, "cpu"), (FlavorQuota("gpu", (Limits(4 * MILLI), Limits(8 * MILLI))),)),)
TWO_FLAVORS = (
    ResourceGroup((GPU,), (FlavorQuota("x", (Limits(MILLI),)), FlavorQuota("y", (Limits(MILLI),)))),
)
ONLY_CPU = (ResourceGroup(("cpu",), (FlavorQuota("gpu", (Limits(4 * MILLI),)),)),)


def test_queues_that_lend_all_they_have_are_described_by_numbers() -> None:
    found = plain(
        quota_of(
            ClusterQueue("a", "team", gpus(4, borrowing=1), preemption=Preemption(Within.LOWER_PRIORITY)),
            ClusterQueue("alone", "", gpus(3)),
            ClusterQueue("b", "team", gpus(2), preemption=Preemption(Within.NEVER, Reclaim.ANY)),
        )
    )
    assert found.names == ["a", "b", "alone"]
    assert (found.nominal // MILLI).tolist() == [4, 2, 3]
    assert (found.most // MILLI).tolist() == [5, 6, 3]
    assert found.borrows.tolist() == [MILLI, NO_LIMIT, NO_LIMIT]
    assert found.pushes.tolist() == [True, False, False]
    assert found.reclaims.tolist() == [False, True, False]
    assert found.at.tolist() == [0, 0, 1]
    assert (found.trees.capacity // MILLI).tolist() == [6, 3]


def test_what_a_cohort_has_itself_belongs_to_its_tree() -> None:
    found = plain(quota_of(Cohort("team", "", gpus(3)), ClusterQueue("a", "team", gpus(4))))
    assert (found.trees.capacity // MILLI).tolist() == [7]


@pytest.mark.parametrize(
    "quota",
    [
        with_rules(groups=gpus(4, lending=1)),
        with_rules(strategy=Strategy.STRICT_FIFO),
        with_rules(preemption=Preemption(Within.NEVER, Reclaim.ANY, while_borrowing=True)),
        with_rules(groups=CPU_TOO),
        with_rules(groups=TWO_FLAVORS),
        with_rules(groups=ONLY_CPU),
        with_rules(groups=()),
        with_rules(groups=gpus(4, flavor="other")),
        quota_of(Cohort("team", "all"), ClusterQueue("a", "team", gpus(4))),
        quota_of(ClusterQueue("a", "team", gpus(4)), fair_sharing=True),
    ],
    ids=[
        "keeps something back",
        "strict",
        "pushes while borrowing",
        "counts CPUs",
        "has two flavors",
        "counts no GPUs",
        "has nothing",
        "has another flavor",
        "nested",
        "shares fairly",
    ],
)
def test_a_tree_of_which_there_is_more_to_say_is_not_plain(quota: Quota) -> None:
    assert plain(quota).names == []
