"""Whose quota others use: what is borrowed is lent by somebody, over random trees of cohorts."""

from hypothesis import given
from hypothesis import strategies as st

from batuta.core.quota import MILLI, ClusterQueue, Cohort
from batuta.quota.tree import QuotaTree, borrowed_by, idle_of, lent_in, split
from tests.support.quotas import CELL, gpus, quota_of

few = st.integers(0, 9)
maybe = st.none() | few


@st.composite
def used_trees(draw: st.DrawFn) -> QuotaTree:
    """Cohorts in up to three levels with queues at any of them; jobs take what is left, in turn."""
    cohorts = [Cohort("c0", "", gpus(draw(few)))]
    for k in range(1, draw(st.integers(1, 4))):
        parent = f"c{draw(st.integers(0, k - 1))}"
        lending = draw(maybe)
        cohorts.append(Cohort(f"c{k}", parent, gpus(draw(few), draw(maybe), lending)))
    queues = [
        ClusterQueue(
            f"q{k}",
            f"c{draw(st.integers(0, len(cohorts) - 1))}",
            gpus(draw(few), draw(maybe), draw(maybe)),
        )
        for k in range(draw(st.integers(1, 5)))
    ]
    tree = QuotaTree(quota_of(*cohorts, *queues))
    fr = tree.fr_number[CELL]
    for name in draw(st.permutations([queue.name for queue in queues])):
        node = tree.queues[name]
        node.add({fr: min(max(0, node.left(fr)), draw(st.integers(0, 20)) * MILLI)})
    return tree


@given(used_trees())
def test_all_that_is_borrowed_is_lent(tree: QuotaTree) -> None:
    """By the quotas of cohorts themselves, or by queues, none of which lends what it uses or keeps back."""
    fr, lent = tree.fr_number[CELL], lent_in(tree)
    for node in (*tree.queues.values(), *tree.cohorts.values()):
        given_away = lent[node].get(fr, 0)
        assert 0 <= given_away <= idle_of(node, fr)
        assert not (given_away and borrowed_by(node, fr)), "nobody lends while it borrows"
    for cohort in tree.cohorts.values():
        own = cohort.limits[fr].nominal
        taken = sum(borrowed_by(child, fr) for child in cohort.children) + lent[cohort].get(fr, 0)
        found = sum(lent[child].get(fr, 0) for child in cohort.children) + borrowed_by(cohort, fr)
        assert max(0, taken - own) <= found <= taken
        assert found == max(0, taken - own) or borrowed_by(cohort, fr) == 0


@given(st.integers(0, 50), st.lists(st.integers(0, 20), min_size=1, max_size=6), st.sampled_from([1, MILLI]))
def test_a_split_adds_up_and_is_in_proportion(amount: int, idle: list[int], unit: int) -> None:
    amount, idle = amount * unit, [one * unit for one in idle]
    parts = split(amount, idle)
    assert sum(parts) == min(amount, sum(idle))
    assert all(part % unit == 0 for part in parts), "whole GPUs stay whole"
    for part, own in zip(parts, idle, strict=True):
        exact = min(own, amount * own / sum(idle)) if sum(idle) else 0
        assert part <= own
        assert abs(part - exact) < unit or part == exact
