"""What `admit` says to the jobs of two queues of a cohort: who gets quota, and why others wait."""

from collections.abc import Callable
from typing import Any

import pytest

from batuta.core import event as ev
from batuta.core.decide import decide
from batuta.core.job import DesiredState
from batuta.core.quota import ClusterQueue, Flavor, Preemption, Quota, StopPolicy, Within
from batuta.core.reason import Reason
from tests.support.quota_stories import Cluster
from tests.support.quotas import gpus, quota_of

PATIENCE_S = 100.0
PREEMPTS = Preemption(Within.LOWER_PRIORITY)
Answer = tuple[Reason, dict[str, float]]
ADMITTED = None


def waits(needs: int, left: int, most: int = 8, reason: Reason = Reason.QUOTA_EXHAUSTED) -> Answer:
    return reason, {"needs": needs, "quota_left": left, "quota": 4, "lends": 0, "most": most}


RESERVED: Answer = (
    Reason.KEPT_FOR_ANOTHER,
    {"needs": 1, "quota_left": 1, "quota": 0, "lends": 0, "most": 0},
)


def team(first: int = 4, second: int = 4, **rules: Any) -> Quota:
    """Two queues that lend to each other; the first has these rules."""
    borrowing = rules.pop("borrowing", None)
    return quota_of(ClusterQueue("a", "team", gpus(first, borrowing), **rules), ClusterQueue("b", "team", gpus(second)))


def full(quota: Quota | None = None, sizes: tuple[int, int] = (3, 4), **wishes: Any) -> Cluster:
    """Both queues run something, and nothing is in motion. What runs in queue `a` takes longer."""
    cluster = Cluster(quota or team(), (16,), patience_s=PATIENCE_S)
    cluster.submit("a1", "a", sizes[0], work_s=3000.0, **wishes)
    cluster.submit("b1", "b", sizes[1], work_s=2000.0)
    cluster.cycle(checked=False)
    return cluster


def wait_long(cluster: Cluster, *jobs: tuple[str, str, int], **wishes: Any) -> None:
    """These come, and wait until they let nobody pass any more."""
    for name, queue, size in jobs:
        cluster.submit(name, queue, size, **wishes)
    cluster.passes(PATIENCE_S)


def no_job_waits() -> Cluster:
    return full(max=8)


def all_fit() -> Cluster:
    cluster = full()
    wait_long(cluster, ("a2", "a", 1))
    return cluster


def quota_is_reserved() -> Cluster:
    cluster = full()
    wait_long(cluster, ("a2", "a", 4), ("a3", "a", 1), work_s=1e6)
    return cluster


def a_queue_may_not_borrow_what_others_give_back() -> Cluster:
    cluster = full(team(borrowing=0))
    wait_long(cluster, ("a2", "a", 4), ("a3", "a", 1), work_s=1e6)
    return cluster


def each_would_have_what_is_reserved_for_the_other() -> Cluster:
    cluster = full(sizes=(3, 3))
    wait_long(cluster, ("a2", "a", 2), ("b2", "b", 2))
    return cluster


def the_first_exceeds_all_quota() -> Cluster:
    cluster = full()
    wait_long(cluster, ("a2", "a", 9), ("a3", "a", 2))
    return cluster


def the_first_has_not_waited_long() -> Cluster:
    cluster = full()
    cluster.submit("a2", "a", 4)
    cluster.submit("a3", "a", 2)
    return cluster


def a_job_is_parked() -> Cluster:
    cluster = full()
    wait_long(cluster, ("a2", "a", 1))
    cluster.happens(ev.JobWished(cluster.now_s, "a2", DesiredState.PARK))
    return cluster


def a_job_is_just_starting() -> Cluster:
    cluster = Cluster(team(), (16,), patience_s=PATIENCE_S)
    cluster.submit("b1", "b", 4)
    cluster.submit("a1", "a", 2, min=2, max=16)
    cluster.now_s += 1.0
    cluster.happens(ev.Planned(cluster.now_s, decide(cluster.world, cluster.now_s, cluster.rules)))
    assert cluster.world.jobs.moving
    assert cluster.sizes == {"a1": 4, "b1": 4}
    wait_long(cluster, ("a2", "a", 1), ("b2", "b", 1))
    return cluster


def preemption_would_not_free_enough() -> Cluster:
    cluster = full(team(preemption=PREEMPTS))
    wait_long(cluster, ("a2", "a", 5), priority=1)
    return cluster


def some_nodes_are_not_for_its_queue() -> Cluster:
    quota = team()
    labelled = quota_of(Flavor("gpu", (("disk", "ssd"),)), *quota.cluster_queues)
    cluster = Cluster(labelled, (16,), patience_s=PATIENCE_S)
    cluster.submit("a1", "a", 1)
    return cluster


def a_job_can_borrow() -> Cluster:
    cluster = full()
    cluster.ends("b1")
    wait_long(cluster, ("a2", "a", 4))
    return cluster


def a_job_can_preempt() -> Cluster:
    cluster = full(team(preemption=PREEMPTS))
    wait_long(cluster, ("a2", "a", 4), priority=1)
    return cluster


def a_later_job_of_higher_priority_stands_behind_a_reservation() -> Cluster:
    cluster = full(team(preemption=PREEMPTS))
    wait_long(cluster, ("a2", "a", 4))
    cluster.submit("a3", "a", 4, priority=1)
    return cluster


def others_have_borrowed_what_a_job_wants() -> Cluster:
    cluster = full(sizes=(1, 6))
    cluster.ends("a1")
    wait_long(cluster, ("a2", "a", 9), ("a3", "a", 3))
    return cluster


def a_smaller_job_passes_one_that_has_not_waited_long() -> Cluster:
    cluster = full()
    cluster.submit("a2", "a", 4)
    cluster.submit("a3", "a", 1)
    return cluster


def a_job_ends_before_the_reservation_is_needed() -> Cluster:
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


def jobs_run_in_a_flavor_without_quota() -> Cluster:
    cluster = full()
    queues = (
        ClusterQueue("a", "team", gpus(4, flavor="new")),
        ClusterQueue("b", "team", gpus(4, flavor="new")),
    )
    cluster.quota_is(quota_of(*queues))
    return cluster


def answers(cluster: Cluster) -> dict[str, Answer | None]:
    """By job that gets quota in this cycle, or none, what is said to it."""
    admitted, ids = cluster.rules.admission.admit(cluster.world, cluster.now_s), cluster.world.jobs.ids
    found: dict[str, Answer | None] = {ids[row]: ADMITTED for row in admitted.flavors}
    for row, (reason, numbers) in (admitted.refused or {}).items():
        found[ids[row]] = reason, dict(numbers)
    return found


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        (no_job_waits, {}),
        (all_fit, {"a2": ADMITTED}),
        (quota_is_reserved, {"a2": waits(4, left=1), "a3": RESERVED}),
        (each_would_have_what_is_reserved_for_the_other, {"a2": waits(2, left=1), "b2": waits(2, left=1)}),
        (a_queue_may_not_borrow_what_others_give_back, {"a2": waits(4, left=1, most=4), "a3": RESERVED}),
        (
            the_first_exceeds_all_quota,
            {"a2": waits(9, left=1, reason=Reason.EXCEEDS_QUOTA), "a3": waits(2, left=1)},
        ),
        (the_first_has_not_waited_long, {"a2": waits(4, left=1), "a3": waits(2, left=1)}),
        (a_job_is_parked, {}),
        (a_job_is_just_starting, {"a2": waits(1, left=0), "b2": waits(1, left=0)}),
        (preemption_would_not_free_enough, {"a2": waits(5, left=1)}),
        (some_nodes_are_not_for_its_queue, {"a1": (Reason.NO_MATCHING_FLAVOR, {})}),
        (a_job_can_borrow, {"a2": ADMITTED}),
        (a_job_can_preempt, {"a1": (Reason.PUSHED_ASIDE, {"before": 3}), "a2": ADMITTED}),
        (
            a_later_job_of_higher_priority_stands_behind_a_reservation,
            {"a2": waits(4, left=1), "a3": waits(4, left=0)},
        ),
        (
            others_have_borrowed_what_a_job_wants,
            {"a2": waits(9, left=4, reason=Reason.EXCEEDS_QUOTA), "a3": waits(3, left=4)},
        ),
        (a_smaller_job_passes_one_that_has_not_waited_long, {"a2": waits(4, left=0), "a3": ADMITTED}),
        (a_job_ends_before_the_reservation_is_needed, {"a2": waits(4, left=1), "a3": ADMITTED}),
        (quota_was_cut, {"a1": (Reason.QUOTA_CUT, {"before": 3})}),
        (a_queue_is_held, {"a1": (Reason.QUEUE_HELD, {})}),
        (
            jobs_run_in_a_flavor_without_quota,
            {"a1": (Reason.QUOTA_CUT, {"before": 3}), "b1": (Reason.QUOTA_CUT, {"before": 4})},
        ),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_each_job_gets_quota_or_the_reason_with_its_numbers(
    story: Callable[[], Cluster], expected: dict[str, Answer | None]
) -> None:
    assert answers(story()) == expected


def test_a_tree_in_which_nothing_fits_keeps_no_other_from_being_served() -> None:
    cluster = Cluster(quota_of(ClusterQueue("a", "", gpus(4)), *team().cluster_queues[1:]), (16,))
    for name, queue, size in (("b1", "b", 3), ("b2", "b", 2), ("b3", "b", 1), ("a1", "a", 4)):
        cluster.submit(name, queue, size)
    assert sorted(name for name, answer in answers(cluster).items() if answer is ADMITTED) == [
        "a1",
        "b1",
        "b3",
    ]
