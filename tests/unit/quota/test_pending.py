"""Who waits for quota, in which order, and what those are told who get nothing."""

from batuta.core import event as ev
from batuta.core.quota import ClusterQueue, LocalQueue, Preemption, Reclaim, Strategy, Within
from tests.support.quota_stories import Cluster
from tests.support.quotas import gpus, quota_of
from tests.support.worlds import make_job

LONG_S = 700.0


def test_jobs_that_come_by_two_doors_stand_in_one_line_by_age() -> None:
    """The second door has the older job, and the queue is strict."""
    queue = ClusterQueue("a", "", gpus(4), Strategy.STRICT_FIFO)
    cluster = Cluster(quota_of(queue, LocalQueue("left", "a"), LocalQueue("right", "a")))
    for name, door in (("first", "left"), ("second", "right"), ("third", "left")):
        cluster.submit(name, door, 4)
    cluster.rest()
    cluster.ends("first")
    cluster.rest()
    assert cluster.sizes == {"second": 4}


def test_whoever_can_get_nothing_is_told_its_own_numbers_and_the_line_goes_on() -> None:
    cluster = Cluster(quota_of(ClusterQueue("a", "", gpus(6))))
    cluster.submit("runs", "a", 4)
    cluster.rest()
    cluster.submit("large", "a", 5)
    cluster.passes(LONG_S)
    cluster.cycle()
    assert cluster.sentence("large").startswith("needs 5 GPUs, its queue has 2 of 6 left")


def test_those_who_stand_behind_one_that_waited_long_are_told_that_quota_is_kept() -> None:
    cluster = Cluster(quota_of(ClusterQueue("a", "", gpus(6))))
    cluster.submit("runs", "a", 4)
    cluster.rest()
    cluster.submit("large", "a", 5)
    cluster.submit("small", "a", 1)
    cluster.submit("another", "a", 1)
    cluster.passes(LONG_S)
    cluster.cycle()
    assert cluster.why("small") == cluster.why("another") == "KEPT_FOR_ANOTHER"


def test_of_two_that_waited_long_the_more_important_borrows_first() -> None:
    queues = [ClusterQueue(name, "team", gpus(2)) for name in "ab"]
    cluster = Cluster(quota_of(*queues, ClusterQueue("idle", "team", gpus(2))))
    cluster.submit("plain", "a", 4)
    cluster.submit("urgent", "b", 4, priority=1)
    cluster.passes(LONG_S)
    cluster.rest()
    assert cluster.sizes == {"urgent": 4}


def test_when_a_job_changes_what_it_asks_for_it_is_not_answered_as_before() -> None:
    """What was worked out in the last cycle is kept, but only as long as the request is the same."""
    cluster = Cluster(quota_of(ClusterQueue("a", "", gpus(4))))
    cluster.submit("big", "a", 6)
    cluster.cycle()
    assert cluster.why("big") == "EXCEEDS_QUOTA"
    cluster.happens(ev.JobChanged(cluster.now_s, make_job("big", 3, queue="a", submit_s=1.0)))
    cluster.rest()
    assert cluster.sizes == {"big": 3}


def test_a_job_of_higher_priority_is_not_passed_over_with_those_it_may_push_aside() -> None:
    rules = Preemption(Within.LOWER_PRIORITY, Reclaim.NEVER)
    cluster = Cluster(quota_of(ClusterQueue("a", "team", gpus(4), preemption=rules)))
    cluster.submit("runs", "a", 4)
    cluster.rest()
    cluster.submit("equal", "a", 4)
    cluster.submit("urgent", "a", 4, priority=1)
    cluster.rest()
    assert cluster.sizes == {"urgent": 4}
    assert cluster.why("equal") == "QUOTA_EXHAUSTED"
