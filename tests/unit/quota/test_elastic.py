"""Quota with jobs that grow and shrink: what no rigid queue can do."""

from typing import Any

import pytest

from batuta.core.cluster import Node
from batuta.core.job import NO_RESTART_S
from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuota,
    Limits,
    Preemption,
    Reclaim,
    ResourceGroup,
    StopPolicy,
    Strategy,
    Within,
)
from tests.support.quota_stories import Cluster
from tests.support.quotas import GPU, gpus, quota_of

TAKES_BACK = Preemption(Within.LOWER_PRIORITY, Reclaim.ANY)
NEVER = Preemption()


def queue(name: str, nominal: int, cohort: str = "", rules: Preemption = TAKES_BACK, **more: Any) -> ClusterQueue:
    limits = {key: more.pop(key) for key in ("borrowing", "lending") if key in more}
    return ClusterQueue(name, cohort, gpus(nominal, **limits), preemption=rules, **more)


def two_teams(rules: Preemption = TAKES_BACK, **more: Any) -> Cluster:
    """Teams `a` and `b` with 8 of 16 GPUs each, in one cohort."""
    return Cluster(quota_of(queue("a", 8, "all", rules), queue("b", 8, "all", rules)), **more)


# ------------------------------------------------------------------------------------ growth on idle quota


def test_given_idle_quota_of_its_own_a_job_grows_into_it() -> None:
    cluster = Cluster(quota_of(queue("a", 6)))
    cluster.submit("j", "a", 2, max=16)
    cluster.rest()
    assert cluster.sizes == {"j": 6}
    assert cluster.why("j") == "QUOTA_REACHED"


def test_given_idle_quota_of_others_a_job_grows_into_that_too() -> None:
    cluster = two_teams()
    cluster.submit("j", "a", 2, max=16)
    cluster.rest()
    assert cluster.sizes == {"j": 16}


def test_given_a_borrowing_limit_growth_stops_there() -> None:
    cluster = Cluster(quota_of(queue("a", 8, "all", borrowing=3), queue("b", 8, "all")))
    cluster.submit("j", "a", 2, max=16)
    cluster.rest()
    assert cluster.sizes == {"j": 11}


def test_given_a_lending_limit_growth_stops_there() -> None:
    cluster = Cluster(quota_of(queue("a", 8, "all"), queue("b", 8, "all", lending=2)))
    cluster.submit("j", "a", 2, max=16)
    cluster.rest()
    assert cluster.sizes == {"j": 10}


def test_when_another_job_ends_growth_takes_what_it_leaves() -> None:
    cluster = Cluster(quota_of(queue("a", 8)))
    cluster.submit("rigid", "a", 4)
    cluster.submit("j", "a", 2, max=16)
    cluster.rest()
    assert cluster.sizes == {"rigid": 4, "j": 4}
    cluster.ends("rigid")
    cluster.rest()
    assert cluster.sizes == {"j": 8}


def test_given_cpu_quota_growth_stops_where_the_cpus_end() -> None:
    """Eight GPUs of quota, but CPUs for five at two each."""
    group = ResourceGroup((GPU, "cpu"), (FlavorQuota("gpu", (Limits(8 * MILLI), Limits(10 * MILLI))),))
    cluster = Cluster(quota_of(ClusterQueue("a", "", (group,))), [Node("n0", 8, cpus_milli=64_000)])
    cluster.submit("j", "a", 1, max=8, cpus_milli_per_gpu=2000)
    cluster.rest()
    assert cluster.sizes == {"j": 5}


def test_given_two_flavors_each_job_grows_in_its_own() -> None:
    group = ResourceGroup((GPU,), (FlavorQuota("x", (Limits(3 * MILLI),)), FlavorQuota("y", (Limits(5 * MILLI),))))
    nodes = [Node("x", 8, labels=(("pool", "x"),)), Node("y", 8, labels=(("pool", "y"),))]
    flavors = (Flavor("x", (("pool", "x"),)), Flavor("y", (("pool", "y"),)))
    cluster = Cluster(quota_of(ClusterQueue("a", "", (group,)), *flavors), nodes)
    cluster.submit("one", "a", 2, max=8)
    cluster.submit("two", "a", 2, max=8)
    cluster.rest()
    assert cluster.sizes == {"one": 3, "two": 5}
    assert {job: {span.node for span in place.spans} for job, place in _places(cluster).items()} == {
        "one": {"x"},
        "two": {"y"},
    }


# -------------------------------------------------------------------------------------- reclaim by shrinking


def test_when_a_lender_wants_its_quota_back_growth_is_given_back_and_nobody_stops() -> None:
    cluster = two_teams()
    cluster.submit("grown", "a", 2, max=16)
    cluster.rest()
    cluster.submit("own", "b", 6)
    done = cluster.rest()
    assert cluster.sizes == {"grown": 10, "own": 6}
    assert not [word for word in done if word.startswith("preempt")]


def test_the_lender_gets_its_quota_back_within_one_cycle() -> None:
    cluster = two_teams()
    cluster.submit("grown", "a", 2, max=16)
    cluster.rest()
    cluster.submit("own", "b", 8)
    assert cluster.cycle() == ["resize grown SHRANK", "start own ADMITTED"]


def test_a_lender_that_may_push_nobody_aside_still_gets_growth_back() -> None:
    """Growth was never promised to anybody, so it is no question of preemption."""
    cluster = two_teams(NEVER)
    cluster.submit("grown", "a", 2, max=16)
    cluster.rest()
    cluster.submit("own", "b", 8)
    cluster.rest()
    assert cluster.sizes == {"grown": 8, "own": 8}


def test_growth_gives_way_to_the_start_of_another_job_of_its_queue() -> None:
    cluster = Cluster(quota_of(queue("a", 8)))
    cluster.submit("grown", "a", 2, max=8)
    cluster.rest()
    cluster.submit("next", "a", 3)
    cluster.rest()
    assert cluster.sizes == {"grown": 5, "next": 3}


def test_when_shrinking_suffices_not_even_a_lower_priority_is_pushed_aside() -> None:
    cluster = Cluster(quota_of(queue("a", 8)))
    cluster.submit("low", "a", 2, max=8)
    cluster.rest()
    cluster.submit("high", "a", 6, priority=10)
    done = cluster.rest()
    assert cluster.sizes == {"low": 2, "high": 6}
    assert done == ["resize low SHRANK", "start high ADMITTED"]


def test_what_was_given_back_is_grown_into_again_when_the_lender_is_done() -> None:
    cluster = two_teams()
    cluster.submit("grown", "a", 2, max=16)
    cluster.rest()
    cluster.submit("own", "b", 8)
    cluster.rest()
    cluster.ends("own")
    cluster.rest()
    assert cluster.sizes == {"grown": 16}


def test_a_job_never_shrinks_below_its_min_for_others() -> None:
    cluster = two_teams(NEVER)
    cluster.submit("wide", "a", 12, max=16)
    cluster.rest()
    cluster.submit("own", "b", 8)
    cluster.rest()
    assert cluster.sizes == {"wide": 16}
    assert cluster.why("own") == "QUOTA_EXHAUSTED"


# ------------------------------------------------------------------- preemption targets by lost work


def test_of_two_borrowers_the_one_that_loses_less_work_goes() -> None:
    """The newer one would have to go by age; but it has worked for long since its last checkpoint."""
    cluster = two_teams()
    cluster.submit("base", "a", 8, priority=9)
    cluster.submit("saves", "a", 4, checkpoint_interval_s=60.0)
    cluster.submit("forgets", "a", 4, checkpoint_interval_s=36_000.0)
    cluster.rest()
    cluster.passes(7200.0)
    cluster.submit("own", "b", 4)
    done = cluster.rest()
    assert "preempt saves RECLAIMED" in done
    assert "forgets" in cluster.sizes


def test_a_costly_restart_counts_as_lost_work() -> None:
    cluster = two_teams()
    cluster.submit("base", "a", 8, priority=9)
    cluster.submit("quick", "a", 4, restart_s=5.0)
    cluster.submit("slow", "a", 4, restart_s=900.0)
    cluster.rest()
    cluster.submit("own", "b", 4)
    assert "preempt quick RECLAIMED" in cluster.rest()


def test_priority_comes_before_lost_work() -> None:
    cluster = two_teams()
    cluster.submit("base", "a", 8, priority=9)
    cluster.submit("important", "a", 4, restart_s=5.0, priority=5)
    cluster.submit("slow", "a", 4, restart_s=900.0)
    cluster.rest()
    cluster.submit("own", "b", 4)
    assert "preempt slow RECLAIMED" in cluster.rest()


def test_those_that_need_not_go_stay() -> None:
    cluster = two_teams()
    cluster.submit("base", "a", 8, priority=9)
    cluster.submit("small", "a", 2, restart_s=5.0)
    cluster.submit("large", "a", 6, restart_s=50.0)
    cluster.rest()
    cluster.submit("own", "b", 6)
    done = cluster.rest()
    assert "preempt large RECLAIMED" in done
    assert cluster.sizes["small"] == 2


# -------------------------------------------------------------------------------- a place for those who wait


def test_given_a_gang_that_has_waited_long_small_jobs_do_not_pass_it_any_more() -> None:
    cluster = Cluster(quota_of(queue("a", 8)), patience_s=600.0)
    cluster.submit("runs", "a", 6, work_s=36_000.0)
    cluster.rest()
    cluster.submit("gang", "a", 8, work_s=1000.0)
    cluster.rest()
    cluster.passes(601.0)
    cluster.submit("small", "a", 2, work_s=72_000.0)
    cluster.rest()
    assert cluster.sizes == {"runs": 6}
    assert cluster.why("small") == "KEPT_FOR_ANOTHER"
    cluster.ends("runs")
    cluster.rest()
    assert cluster.sizes == {"gang": 8}


def test_a_small_job_that_ends_in_time_slips_in() -> None:
    cluster = Cluster(quota_of(queue("a", 8)), patience_s=600.0)
    cluster.submit("runs", "a", 6, work_s=36_000.0)
    cluster.rest()
    cluster.submit("gang", "a", 8, work_s=1000.0)
    cluster.passes(601.0)
    cluster.submit("short", "a", 2, work_s=600.0)
    cluster.rest()
    assert cluster.sizes == {"runs": 6, "short": 2}


def test_before_its_patience_ends_a_gang_is_passed() -> None:
    cluster = Cluster(quota_of(queue("a", 8)), patience_s=600.0)
    cluster.submit("runs", "a", 6, work_s=36_000.0)
    cluster.rest()
    cluster.submit("gang", "a", 8)
    cluster.submit("small", "a", 2, work_s=72_000.0)
    cluster.rest()
    assert cluster.sizes == {"runs": 6, "small": 2}


def test_what_is_kept_for_a_gang_is_not_idle_meanwhile_for_others_grow_into_it() -> None:
    cluster = Cluster(quota_of(queue("a", 8)), patience_s=600.0)
    cluster.submit("runs", "a", 4, max=8, work_s=36_000.0)
    cluster.submit("gang", "a", 8, work_s=1000.0)
    cluster.passes(601.0)
    cluster.submit("small", "a", 2, work_s=72_000.0)
    cluster.rest()
    assert cluster.sizes == {"runs": 8}


def test_another_queue_may_still_use_what_is_its_own() -> None:
    """The gang of `a` waits for borrowed quota; that is no reason to keep from `b` what belongs to `b`."""
    cluster = two_teams(NEVER)
    cluster.submit("runs", "a", 6, work_s=36_000.0)
    cluster.submit("other", "b", 6, work_s=72_000.0)
    cluster.rest()
    cluster.submit("gang", "a", 10, work_s=1000.0)
    cluster.passes(601.0)
    cluster.submit("own", "b", 2, work_s=72_000.0)
    cluster.rest()
    assert cluster.sizes == {"runs": 6, "other": 6, "own": 2}


# ------------------------------------------------------------------------------------ a gang that lost a node


def test_a_gang_that_lost_a_node_is_repaired_before_new_jobs_start() -> None:
    cluster = Cluster(quota_of(queue("a", 24)), (8, 8, 8))
    cluster.submit("gang", "a", 16, min=16)
    cluster.rest()
    cluster.submit("new", "a", 8)
    lost = next(node for node in ("n0", "n1", "n2") if node in _nodes(cluster, "gang"))
    cluster.loses(lost)
    cluster.rest()
    assert cluster.sizes == {"gang": 16}


def test_a_gang_that_cannot_be_repaired_holds_no_quota() -> None:
    cluster = Cluster(quota_of(queue("a", 16)), (8, 8))
    cluster.submit("gang", "a", 16, min=16)
    cluster.rest()
    cluster.submit("new", "a", 4)
    cluster.loses("n1")
    cluster.rest()
    assert cluster.sizes == {"new": 4}


def test_an_elastic_gang_that_lost_a_node_goes_on_smaller() -> None:
    cluster = Cluster(quota_of(queue("a", 16)), (8, 8))
    cluster.submit("gang", "a", 16, min=2)
    cluster.rest()
    cluster.loses("n1")
    cluster.rest()
    assert cluster.sizes == {"gang": 8}


# ---------------------------------------------------------------------------- quota cut under jobs that run


def test_when_quota_is_cut_jobs_shrink_first() -> None:
    cluster = Cluster(quota_of(queue("a", 16)))
    cluster.submit("one", "a", 2, max=8)
    cluster.submit("two", "a", 2, max=8)
    cluster.rest()
    cluster.quota_is(quota_of(queue("a", 6)))
    done = cluster.rest()
    assert sum(cluster.sizes.values()) == 6
    assert not [word for word in done if word.startswith("preempt")]


def test_when_quota_is_cut_below_the_mins_those_go_that_lose_the_least() -> None:
    cluster = Cluster(quota_of(queue("a", 16)))
    cluster.submit("slow", "a", 4, restart_s=900.0)
    cluster.submit("quick", "a", 4, restart_s=5.0)
    cluster.rest()
    cluster.quota_is(quota_of(queue("a", 5)))
    assert cluster.rest() == ["preempt quick QUOTA_CUT"]
    assert cluster.sizes == {"slow": 4}
    cluster.quota_is(quota_of(queue("a", 16)))
    cluster.rest()
    assert cluster.sizes == {"slow": 4, "quick": 4}


def test_when_quota_is_cut_a_job_that_cannot_be_restarted_stays() -> None:
    cluster = Cluster(quota_of(queue("a", 16)))
    cluster.submit("lasts", "a", 8, restart_s=NO_RESTART_S)
    cluster.submit("other", "a", 4)
    cluster.rest()
    cluster.quota_is(quota_of(queue("a", 6)))
    assert cluster.cycle(checked=False) == ["preempt other QUOTA_CUT"]
    assert cluster.sizes == {"lasts": 8}


def test_when_a_lender_leaves_the_cohort_the_borrower_shrinks() -> None:
    cluster = two_teams()
    cluster.submit("grown", "a", 2, max=16)
    cluster.rest()
    cluster.quota_is(quota_of(queue("a", 8, "all"), queue("b", 8)))
    cluster.rest()
    assert cluster.sizes == {"grown": 8}


def test_when_a_queue_is_removed_its_jobs_finish_and_none_starts() -> None:
    cluster = two_teams()
    cluster.submit("runs", "b", 4)
    cluster.rest()
    cluster.quota_is(quota_of(queue("a", 8, "all")))
    cluster.submit("late", "b", 2)
    cluster.rest()
    assert cluster.sizes == {"runs": 4}
    assert cluster.why("late") == "QUEUE_LEAVES"


def test_when_a_queue_is_drained_its_jobs_leave_with_their_progress_and_come_back() -> None:
    cluster = Cluster(quota_of(queue("a", 8)))
    cluster.submit("runs", "a", 4)
    cluster.rest()
    cluster.quota_is(quota_of(queue("a", 8, stop=StopPolicy.HOLD_AND_DRAIN)))
    assert cluster.rest() == ["preempt runs QUEUE_DRAINED"]
    cluster.quota_is(quota_of(queue("a", 8)))
    cluster.rest()
    assert cluster.sizes == {"runs": 4}


def test_when_a_queue_is_held_what_runs_keeps_its_size() -> None:
    cluster = Cluster(quota_of(queue("a", 8)))
    cluster.submit("runs", "a", 2, max=8)
    cluster.rest()
    cluster.quota_is(quota_of(queue("a", 8, stop=StopPolicy.HOLD)))
    cluster.submit("late", "a", 1)
    cluster.rest()
    assert cluster.sizes == {"runs": 8}
    assert cluster.why("late") == "QUEUE_HELD"


# -------------------------------------------------------------------------- policy and weights inside quota


def test_growth_on_lent_quota_is_divided_by_weight() -> None:
    """Twelve idle GPUs of `idle`; `b` has twice the weight of `a`."""
    quota = quota_of(queue("a", 2, "all", weight=1.0), queue("b", 2, "all", weight=2.0), queue("idle", 12, "all"))
    cluster = Cluster(quota)
    cluster.submit("one", "a", 1, max=16)
    cluster.submit("two", "b", 1, max=16)
    cluster.rest()
    assert cluster.sizes == {"one": 6, "two": 10}


def test_growth_in_nested_cohorts_is_divided_at_each_level() -> None:
    """Left has two queues, right has one: each side gets half of what the root has."""
    quota = quota_of(
        Cohort("root", "", gpus(12)),
        Cohort("left", "root"),
        Cohort("right", "root"),
        *(queue("a", 1, "left"), queue("b", 1, "left"), queue("c", 2, "right")),
    )
    cluster = Cluster(quota)
    for name in ("a", "b", "c"):
        cluster.submit(name.upper(), name, 1, max=16)
    cluster.rest()
    assert cluster.sizes == {"A": 4, "B": 4, "C": 8}


@pytest.mark.parametrize("policy", ["elastic-fifo", "elastic-srjf", "elastic-tiresias", "ffdl", "afs-l"])
def test_within_a_queue_the_policy_says_who_grows(policy: str) -> None:
    """As it would if the queue's quota were the whole cluster."""
    small = Cluster(quota_of(queue("a", 8)), (8,), policy)
    large = Cluster(quota_of(queue("a", 8)), (8, 8, 8), policy)
    for cluster in (small, large):
        cluster.submit("long", "a", 2, min=1, max=8, work_s=9000.0)
        cluster.submit("short", "a", 2, min=1, max=8, work_s=90.0)
        cluster.rest()
    assert small.sizes == large.sizes


# ------------------------------------------------------------------------ what cannot be placed holds nothing


def test_a_job_for_which_there_is_no_place_holds_no_quota() -> None:
    """One node is full of others, so a job that wants a node of its own cannot start; the next one can."""
    cluster = Cluster(quota_of(queue("a", 8), queue("b", 10)), (8, 8))
    cluster.submit("left", "b", 5)
    cluster.submit("right", "b", 5)
    cluster.rest()
    cluster.submit("wide", "a", 8, gpus_per_replica=8)
    cluster.submit("narrow", "a", 3)
    cluster.cycle()
    assert cluster.sizes == {"left": 5, "right": 5, "narrow": 3}
    assert cluster.why("wide") == "WAITING_FOR_GPUS"


def test_nobody_is_pushed_aside_for_a_job_that_finds_no_place_all_the_same() -> None:
    cluster = Cluster(
        quota_of(queue("a", 8, "all"), queue("b", 8, "all")), [Node("n0", 8), Node("n1", 4), Node("n2", 4)]
    )
    cluster.submit("base", "a", 8, gpus_per_replica=8)
    cluster.submit("borrows", "a", 4)
    cluster.rest()
    cluster.submit("own", "b", 8, gpus_per_replica=8, topology=_on_one_node())
    done = cluster.rest()
    assert "borrows" in cluster.sizes, done


def test_a_strict_queue_is_not_overtaken_even_when_its_head_finds_no_place() -> None:
    cluster = Cluster(quota_of(queue("a", 8, strategy=Strategy.STRICT_FIFO), queue("b", 10)), (8, 8))
    cluster.submit("left", "b", 5)
    cluster.submit("right", "b", 5)
    cluster.rest()
    cluster.submit("wide", "a", 8, gpus_per_replica=8)
    cluster.submit("narrow", "a", 3)
    cluster.rest()
    assert cluster.sizes == {"left": 5, "right": 5}


def _on_one_node() -> Any:
    from batuta.core.job import Spread, Topology

    return Topology(Spread.NODE, required=True)


def _places(cluster: Cluster) -> dict[str, Any]:
    jobs = cluster.world.jobs
    return {job: place for job, place in zip(jobs.ids, jobs.placements, strict=True) if place is not None}


def _nodes(cluster: Cluster, job: str) -> tuple[str, ...]:
    nodes: tuple[str, ...] = _places(cluster)[job].nodes
    return nodes
