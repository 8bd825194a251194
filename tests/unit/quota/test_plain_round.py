"""Plain trees in which nothing moves are answered at once, and as one claim after the other would be."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batuta.core import event as ev
from batuta.core.decide import decide
from batuta.core.job import DesiredState
from batuta.core.quota import ClusterQueue, Flavor, Preemption, Quota, StopPolicy, Within
from batuta.core.reason import Reason
from batuta.quota.answers import Answers
from batuta.quota.census import Census
from batuta.quota.doors import doors_of
from batuta.quota.memory import Memory
from batuta.quota.past import Past
from batuta.quota.plain_round import PlainRound
from batuta.quota.tree_round import TreeRound
from tests.support.quota_stories import Cluster
from tests.support.quotas import gpus, quota_of

PATIENCE_S = 100.0
PUSHES = Preemption(Within.LOWER_PRIORITY)


def team(first: int = 4, second: int = 4, **rules: Any) -> Quota:
    """Two queues that lend to each other; the first has these rules."""
    borrowing = rules.pop("borrowing", None)
    return quota_of(
        ClusterQueue("a", "team", gpus(first, borrowing), **rules), ClusterQueue("b", "team", gpus(second))
    )


def full(quota: Quota | None = None, sizes: tuple[int, int] = (3, 4), **wishes: Any) -> Cluster:
    """Both queues run something, and nothing is in motion. What runs in queue `a` takes longer."""
    cluster = Cluster(quota or team(), (16,), patience_s=PATIENCE_S)
    cluster.submit("a1", "a", sizes[0], work_s=3000.0, **wishes)
    cluster.submit("b1", "b", sizes[1], work_s=2000.0)
    cluster.cycle(checked=False)
    return cluster


class Look:
    """What is said to the trees of a cluster that are settled at once."""

    def __init__(self, cluster: Cluster, kind: type[PlainRound] | type[TreeRound] = PlainRound) -> None:
        world, memory = cluster.world, Memory()
        tree = memory.empty_tree(world.effective_quota)
        doors = doors_of(world, memory.doors)
        census = Census(world, cluster.now_s, doors, memory.number_of, frozenset(), PATIENCE_S)
        trees = sorted(set(memory.number_of.values()) & census.rows.keys())
        made = kind(world, cluster.now_s, trees, census, tree, memory)
        self.answers = made.serve()
        made.grow(world.jobs.max, self.answers)
        self.past = made.as_past(self.answers)
        self._cluster, self._rows = cluster, census.rows

    def why(self, job: str) -> tuple[Reason, dict[str, float]]:
        [answers] = self.answers.values()
        row = self._cluster.world.jobs.row(job)
        place = self._rows[0].tolist().index(row)
        reason, numbers = answers.reasons[answers.refused.index(place)]
        return reason, dict(numbers)


def as_values(answers: dict[int, Answers], past: dict[int, Past]) -> dict[int, Any]:
    def listed(column: Any) -> Any:
        return np.asarray(column).tolist()

    return {
        number: (
            listed(one.cap),
            dict(zip(one.refused, one.reasons, strict=True)),
            {name: (listed(new.places), new.flavors) for name, new in one.new.items()},
            one.holding,
            one.losers,
            one.contested,
            {
                name: [(listed(own.rows), own.gpus, own.beside) for own in budgets]
                for name, budgets in one.budgets.items()
            },
            [listed(column) for column in past[number].timing or ()],
        )
        for number, one in answers.items()
    }


def wait_long(cluster: Cluster, *jobs: tuple[str, str, int], **wishes: Any) -> None:
    """These come, and wait until they let nobody pass any more."""
    for name, queue, size in jobs:
        cluster.submit(name, queue, size, **wishes)
    cluster.passes(PATIENCE_S)


def nothing_waits() -> Cluster:
    return full(max=8)


def all_are_served() -> Cluster:
    cluster = full()
    wait_long(cluster, ("a2", "a", 1))
    return cluster


def something_is_kept() -> Cluster:
    cluster = full()
    wait_long(cluster, ("a2", "a", 4), ("a3", "a", 1), work_s=1e6)
    return cluster


def a_queue_may_not_borrow_what_others_give_back() -> Cluster:
    cluster = full(team(borrowing=0))
    wait_long(cluster, ("a2", "a", 4), ("a3", "a", 1), work_s=1e6)
    return cluster


def each_would_have_what_is_kept_for_the_other() -> Cluster:
    cluster = full(sizes=(3, 3))
    wait_long(cluster, ("a2", "a", 2), ("b2", "b", 2))
    return cluster


def somebody_could_never_have_it() -> Cluster:
    cluster = full()
    wait_long(cluster, ("a2", "a", 9), ("a3", "a", 2))
    return cluster


def somebody_is_too_young_to_block_others() -> Cluster:
    cluster = full()
    cluster.submit("a2", "a", 4)
    cluster.submit("a3", "a", 2)
    return cluster


def somebody_is_parked() -> Cluster:
    cluster = full()
    wait_long(cluster, ("a2", "a", 1))
    cluster.happens(ev.JobWished(cluster.now_s, "a2", DesiredState.PARK))
    return cluster


def somebody_is_just_starting() -> Cluster:
    cluster = Cluster(team(), (16,), patience_s=PATIENCE_S)
    cluster.submit("b1", "b", 4)
    cluster.submit("a1", "a", 2, min=2, max=16)
    cluster.now_s += 1.0
    cluster.happens(ev.Planned(cluster.now_s, decide(cluster.world, cluster.now_s, cluster.rules)))
    assert cluster.world.jobs.moving
    assert cluster.sizes == {"a1": 4, "b1": 4}
    wait_long(cluster, ("a2", "a", 1), ("b2", "b", 1))
    return cluster


def nobody_could_push_enough_aside() -> Cluster:
    cluster = full(team(preemption=PUSHES))
    wait_long(cluster, ("a2", "a", 5), priority=1)
    return cluster


def some_nodes_are_not_for_its_queue() -> Cluster:
    quota = team()
    labelled = quota_of(Flavor("gpu", (("disk", "ssd"),)), *quota.cluster_queues)
    cluster = Cluster(labelled, (16,), patience_s=PATIENCE_S)
    cluster.submit("a1", "a", 1)
    assert Look(cluster).why("a1") == (Reason.NO_MATCHING_FLAVOR, {})
    return cluster


@pytest.mark.parametrize(
    "story",
    [
        nothing_waits,
        all_are_served,
        something_is_kept,
        each_would_have_what_is_kept_for_the_other,
        a_queue_may_not_borrow_what_others_give_back,
        somebody_could_never_have_it,
        somebody_is_too_young_to_block_others,
        somebody_is_parked,
        somebody_is_just_starting,
        nobody_could_push_enough_aside,
        some_nodes_are_not_for_its_queue,
    ],
)
def test_where_nothing_moves_all_are_told_at_once_what_each_would_be_told(
    story: Callable[[], Cluster],
) -> None:
    cluster = story()
    at_once, one_by_one = Look(cluster), Look(cluster, TreeRound)
    assert list(at_once.answers) == [0]
    assert as_values(at_once.answers, at_once.past) == as_values(one_by_one.answers, one_by_one.past)


def somebody_can_borrow() -> Cluster:
    cluster = full()
    cluster.ends("b1")
    wait_long(cluster, ("a2", "a", 4))
    return cluster


def somebody_could_push_another_aside() -> Cluster:
    cluster = full(team(preemption=PUSHES))
    wait_long(cluster, ("a2", "a", 4), priority=1)
    return cluster


def somebody_who_has_come_later_could_push_another_aside() -> Cluster:
    cluster = full(team(preemption=PUSHES))
    wait_long(cluster, ("a2", "a", 4))
    cluster.submit("a3", "a", 4, priority=1)
    return cluster


def others_have_borrowed_what_somebody_wants_behind_one_that_could_never_have_it() -> Cluster:
    cluster = full(sizes=(1, 6))
    cluster.ends("a1")
    wait_long(cluster, ("a2", "a", 9), ("a3", "a", 3))
    return cluster


def somebody_smaller_passes_one_that_is_young() -> Cluster:
    cluster = full()
    cluster.submit("a2", "a", 4)
    cluster.submit("a3", "a", 1)
    return cluster


def somebody_ends_before_it_is_needed() -> Cluster:
    cluster = full()
    wait_long(cluster, ("a2", "a", 4))
    cluster.submit("a3", "a", 1, work_s=1.0)
    return cluster


def quota_was_cut() -> Cluster:
    cluster = full()
    cluster.quota_is(team(1, 4))
    return cluster


def a_queue_is_held() -> Cluster:
    cluster = full()
    cluster.quota_is(team(stop=StopPolicy.HOLD))
    return cluster


def somebody_runs_in_another_flavor() -> Cluster:
    cluster = full()
    queues = (
        ClusterQueue("a", "team", gpus(4, flavor="new")),
        ClusterQueue("b", "team", gpus(4, flavor="new")),
    )
    cluster.quota_is(quota_of(*queues))
    return cluster


@pytest.mark.parametrize(
    "story",
    [
        somebody_can_borrow,
        somebody_could_push_another_aside,
        somebody_who_has_come_later_could_push_another_aside,
        others_have_borrowed_what_somebody_wants_behind_one_that_could_never_have_it,
        somebody_smaller_passes_one_that_is_young,
        somebody_ends_before_it_is_needed,
        quota_was_cut,
        a_queue_is_held,
        somebody_runs_in_another_flavor,
    ],
)
def test_where_more_has_to_be_done_a_tree_is_left(story: Callable[[], Cluster]) -> None:
    assert Look(story()).answers == {}


def test_a_tree_in_which_something_moves_keeps_no_other_from_being_settled() -> None:
    cluster = Cluster(quota_of(ClusterQueue("a", "", gpus(4)), *team().cluster_queues[1:]), (16,))
    cluster.submit("b1", "b", 3)
    cluster.submit("b2", "b", 2)
    cluster.submit("b3", "b", 1)
    cluster.submit("a1", "a", 4)
    [(number, answers)] = Look(cluster).answers.items()
    assert (number, list(answers.new)) == (0, ["a"])


def test_the_first_is_told_what_was_left_before_that_was_kept_for_it() -> None:
    look = Look(something_is_kept())
    assert look.why("a2") == (
        Reason.QUOTA_EXHAUSTED,
        {"needs": 4, "quota_left": 1, "quota": 4, "lends": 0, "most": 8},
    )
    reason, numbers = look.why("a3")
    assert (reason, numbers["needs"], numbers["quota_left"]) == (Reason.KEPT_FOR_ANOTHER, 1, 1)


def test_an_answer_that_owes_something_to_the_clock_is_remembered_with_that() -> None:
    assert Look(something_is_kept()).past[0].timing is not None
    assert Look(all_are_served()).past[0].timing is None
