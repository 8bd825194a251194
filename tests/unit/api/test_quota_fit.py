"""A job that can never have quota is told so when it is submitted; one that may have some later is not."""

from typing import Any

from batuta.api.operations import check_quota
from batuta.core.quota import MILLI, ClusterQueue, FlavorQuota, Limits, LocalQueue, Quota, ResourceGroup
from tests.support.quotas import GPU, gpus, quota_of
from tests.support.worlds import make_job

BY_FLAVOR = (ResourceGroup((GPU,), (FlavorQuota("x", (Limits(2000),)), FlavorQuota("y", (Limits(6000),)))),)


def problems(quota: Quota, size: int = 1, queue: str = "a", **wishes: Any) -> list[str]:
    return [problem.message for problem in check_quota(make_job("j", size, queue=queue, **wishes), quota)]


def test_without_quota_everything_is_allowed() -> None:
    assert problems(Quota(), 100) == []


def test_who_names_no_queue_is_not_concerned() -> None:
    assert problems(quota_of(ClusterQueue("a", "", gpus(2))), 100, queue="default") == []


def test_an_unknown_queue_is_refused_with_the_nearest_name() -> None:
    (problem,) = check_quota(make_job("j", queue="teem-a"), quota_of(ClusterQueue("team-a", "", gpus(2))))
    assert problem.message == "there is no queue teem-a"
    assert "team-a" in problem.fix


def test_what_a_queue_can_never_have_is_refused_in_numbers() -> None:
    quota = quota_of(ClusterQueue("a", "", gpus(4)))
    assert problems(quota, 4) == []
    assert problems(quota, 5) == ["needs at least 5 GPUs; queue a can have 4"]
    assert problems(quota, 5, min=4) == [], "its smallest size counts"


def test_what_can_be_borrowed_counts_up_to_the_limits() -> None:
    quota = quota_of(ClusterQueue("a", "all", gpus(2, borrowing=3)), ClusterQueue("b", "all", gpus(8)))
    assert problems(quota, 5) == []
    assert problems(quota, 6) == ["needs at least 6 GPUs; queue a can have 5"]


def test_the_largest_flavor_counts_and_not_their_sum() -> None:
    quota = quota_of(ClusterQueue("a", "", BY_FLAVOR))
    assert problems(quota, 6) == []
    assert problems(quota, 7) == ["needs at least 7 GPUs; queue a can have 6"]


def test_other_resources_are_told_too_and_all_at_once() -> None:
    group = ResourceGroup((GPU, "cpu"), (FlavorQuota("x", (Limits(2 * MILLI), Limits(3 * MILLI))),))
    quota = quota_of(ClusterQueue("a", "", (group,)))
    assert problems(quota, 4, cpus_milli_per_gpu=1000) == [
        "needs at least 4 GPUs; queue a can have 2",
        "needs at least 4 cpu; queue a can have 3",
    ]


def test_a_queue_without_quota_in_gpus_is_no_place_for_jobs() -> None:
    group = ResourceGroup(("cpu",), (FlavorQuota("x", (Limits(3 * MILLI),)),))
    assert problems(quota_of(ClusterQueue("a", "", (group,)))) == ["queue a has no quota for GPUs"]


def test_what_may_be_mended_while_the_job_waits_is_no_reason_to_refuse_it() -> None:
    leads_nowhere = quota_of(ClusterQueue("b", "", gpus(1)), LocalQueue("a", "gone"), LocalQueue("b", "b"))
    without_flavor = Quota(cluster_queues=(ClusterQueue("a", "", gpus(1)),))
    assert problems(leads_nowhere, 9) == []
    assert problems(without_flavor, 9) == []
