"""Every reason that quota has can be reached, and its sentence is true."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from batuta.core.cluster import Node
from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    FlavorQuota,
    Limits,
    LocalQueue,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    StopPolicy,
    Strategy,
    Within,
)
from batuta.core.reason import Reason
from tests.support.quota_stories import Cluster
from tests.support.quotas import GPU, gpus, quota_of

TAKES_BACK = Preemption(Within.LOWER_PRIORITY, Reclaim.ANY)
GIB = 1 << 30


def queue(name: str, nominal: int, cohort: str = "") -> ClusterQueue:
    return ClusterQueue(name, cohort, gpus(nominal), preemption=TAKES_BACK)


def beside_gpus(resource: str, amount: int) -> Quota:
    """Queue `a` with eight GPUs and so much of another resource, in thousandths."""
    limits = (Limits(8 * MILLI), Limits(amount))
    return quota_of(ClusterQueue("a", "", (ResourceGroup((GPU, resource), (FlavorQuota("gpu", limits),)),)))


def in_no_queue() -> Cluster:
    quota = quota_of(queue("a", 8))
    cluster = Cluster(replace(quota, local_queues=(*quota.local_queues, LocalQueue("j", "gone"))))
    cluster.submit("j", "j")
    return cluster


def in_a_queue_that_leaves() -> Cluster:
    cluster = Cluster(quota_of(queue("a", 8), queue("b", 8)))
    cluster.submit("runs", "b", 4)
    cluster.rest()
    cluster.quota_is(quota_of(queue("a", 8)))
    cluster.submit("j", "b")
    return cluster


def short_of_cpus() -> Cluster:
    cluster = Cluster(beside_gpus("cpu", 6 * MILLI), [Node("n0", 8, cpus_milli=64_000)])
    cluster.submit("runs", "a", 2, cpus_milli_per_gpu=2000)
    cluster.rest()
    cluster.submit("j", "a", 2, cpus_milli_per_gpu=2000)
    return cluster


def short_of_memory() -> Cluster:
    cluster = Cluster(beside_gpus("memory", 6 * GIB * MILLI), [Node("n0", 8, memory_mib=1 << 20)])
    cluster.submit("runs", "a", 2, memory_mib_per_gpu=2048)
    cluster.rest()
    cluster.submit("j", "a", 2, memory_mib_per_gpu=2048)
    return cluster


def short_of_pods() -> Cluster:
    cluster = Cluster(beside_gpus("pods", 3 * MILLI))
    cluster.submit("runs", "a", 2)
    cluster.rest()
    cluster.submit("j", "a", 2)
    return cluster


def larger_than_its_queue() -> Cluster:
    cluster = Cluster(quota_of(queue("a", 4)))
    cluster.submit("j", "a", 6)
    return cluster


def more_than_quotas_leave() -> Cluster:
    cluster = Cluster(quota_of(queue("a", 6)), (8,))
    cluster.submit("j", "default", 3)
    return cluster


def beside_what_quotas_leave() -> Cluster:
    cluster = Cluster(quota_of(queue("a", 4)), (8,))
    cluster.submit("runs", "default", 3)
    cluster.rest()
    cluster.submit("j", "default", 2)
    return cluster


def quota_in_another_resource() -> Cluster:
    group = ResourceGroup(("cpu",), (FlavorQuota("gpu", (Limits(64 * MILLI),)),))
    cluster = Cluster(quota_of(ClusterQueue("a", "", (group,))))
    cluster.submit("j", "a")
    return cluster


def behind_a_strict_head() -> Cluster:
    strict = ClusterQueue("a", "", gpus(4), strategy=Strategy.STRICT_FIFO)
    cluster = Cluster(quota_of(strict))
    cluster.submit("runs", "a", 3)
    cluster.rest()
    cluster.submit("head", "a", 4)
    cluster.submit("j", "a", 1)
    return cluster


def after_a_long_wait_of_another() -> Cluster:
    cluster = Cluster(quota_of(queue("a", 8)), patience_s=600.0)
    cluster.submit("runs", "a", 6, work_s=36_000.0)
    cluster.rest()
    cluster.submit("gang", "a", 8, work_s=1000.0)
    cluster.passes(601.0)
    cluster.submit("j", "a", 2, work_s=72_000.0)
    return cluster


def below_a_more_important_one() -> Cluster:
    cluster = Cluster(quota_of(queue("a", 4)))
    cluster.submit("j", "a", 4)
    cluster.rest()
    cluster.submit("goes first", "a", 4, priority=10)
    return cluster


def on_borrowed_quota() -> Cluster:
    cluster = Cluster(quota_of(queue("a", 2, "all"), queue("b", 4, "all")))
    cluster.submit("j", "a", 5)
    cluster.rest()
    cluster.submit("owner", "b", 4)
    return cluster


def with_more_than_its_share() -> Cluster:
    quota = quota_of(*(queue("a", 0, "all"), queue("b", 0, "all"), queue("idle", 8, "all")), fair_sharing=True)
    cluster = Cluster(quota)
    cluster.submit("first", "a", 4, priority=1)
    cluster.submit("j", "a", 4)
    cluster.rest()
    cluster.submit("other", "b", 4)
    return cluster


def with_quota_that_was_cut() -> Cluster:
    cluster = Cluster(quota_of(queue("a", 8)))
    cluster.submit("j", "a", 4)
    cluster.rest()
    cluster.quota_is(quota_of(queue("a", 3)))
    return cluster


def in_a_queue_that_is_drained() -> Cluster:
    cluster = Cluster(quota_of(queue("a", 8)))
    cluster.submit("j", "a", 4)
    cluster.rest()
    cluster.quota_is(quota_of(replace(queue("a", 8), stop=StopPolicy.HOLD_AND_DRAIN)))
    return cluster


LEFT = "its queue has 2 of 6 left, its cohort lends 0 more"
CASES: dict[str, tuple[Reason, str, Callable[[], Cluster]]] = {
    "its queue leads to none": (
        Reason.QUEUE_MISSING,
        "its queue is not there, or leads to none",
        in_no_queue,
    ),
    "its queue is being removed": (Reason.QUEUE_LEAVES, "its queue is being removed", in_a_queue_that_leaves),
    "CPUs are short": (Reason.QUOTA_SHORT_OF_CPUS, f"needs 4 CPUs, {LEFT}", short_of_cpus),
    "memory is short": (Reason.QUOTA_SHORT_OF_MEMORY, f"needs 4 GiB of memory, {LEFT}", short_of_memory),
    "pods are short": (
        Reason.QUOTA_SHORT_OF_PODS,
        "needs 2 pods, its queue has 1 of 3 left, its cohort lends 0 more",
        short_of_pods,
    ),
    "it will never fit": (
        Reason.EXCEEDS_QUOTA,
        "needs 6 GPUs, its queue can have 4 at most",
        larger_than_its_queue,
    ),
    "it names no queue, and quotas leave less than it needs": (
        Reason.EXCEEDS_REST,
        "needs 3 GPUs; queue default has no quota of its own, and quotas leave 2 of 8 GPUs to it: "
        "name another queue, or give it quota",
        more_than_quotas_leave,
    ),
    "it names no queue, and others use what quotas leave": (
        Reason.REST_EXHAUSTED,
        "needs 2 GPUs; queue default has no quota of its own, and of the 4 of 8 GPUs that quotas leave "
        "to it 1 are left",
        beside_what_quotas_leave,
    ),
    "its queue has no quota in GPUs": (
        Reason.NO_MATCHING_FLAVOR,
        "its queue has no quota for what it wants",
        quota_in_another_resource,
    ),
    "it may not overtake": (
        Reason.BEHIND_ANOTHER,
        "stands behind another job of its queue that cannot start yet",
        behind_a_strict_head,
    ),
    "another one has waited long": (
        Reason.KEPT_FOR_ANOTHER,
        "needs 2 GPUs; the 2 that are left are kept for a job that waits longer",
        after_a_long_wait_of_another,
    ),
    "a more important one comes": (
        Reason.PUSHED_ASIDE,
        "gives its 4 GPUs to a job of its queue that goes first",
        below_a_more_important_one,
    ),
    "the owner comes": (
        Reason.RECLAIMED,
        "gives 5 GPUs back to the queue that lent them",
        on_borrowed_quota,
    ),
    "another queue has less": (
        Reason.SHARED_OUT,
        "gives its 4 GPUs to a queue that has less than its share",
        with_more_than_its_share,
    ),
    "quota is cut": (
        Reason.QUOTA_CUT,
        "gives its 4 GPUs up: its queue may use less than before",
        with_quota_that_was_cut,
    ),
    "the queue is drained": (
        Reason.QUEUE_DRAINED,
        "gives its 4 GPUs up: its queue is drained",
        in_a_queue_that_is_drained,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_job_is_told_why(case: str) -> None:
    reason, sentence, given = CASES[case]
    cluster = given()
    cluster.cycle()
    assert (cluster.why("j"), cluster.sentence("j")) == (reason.name, sentence)
