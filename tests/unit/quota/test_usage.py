"""The report of use: every number that people read about queues."""

import math
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from batuta.core.job import Job
from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    Cohort,
    FlavorQuota,
    Limits,
    LocalQueue,
    Quota,
    ResourceGroup,
)
from batuta.quota.usage import CohortUse, FlavorUsage, JobUse, QueueUse, QuotaUse, measure
from tests.support.quotas import FLAVOR, GPU, gpus, quota_of
from tests.support.worlds import make_job

IN_GPUS = ((GPU, FLAVOR),)


def runs(job: Job, gpus: int | None = None) -> JobUse:
    return JobUse(job, job.size if gpus is None else gpus, waits=False, flavors=IN_GPUS)


def waits(job: Job) -> JobUse:
    return JobUse(job, 0, waits=True)


def queue_in(use: QuotaUse, name: str) -> QueueUse:
    return next(one for one in use.queues if one.queue.name == name)


def cohort_in(use: QuotaUse, name: str) -> CohortUse:
    return next(one for one in use.cohorts if one.name == name)


def whole(fr: FlavorUsage) -> tuple[float, ...]:
    """Total, used, borrowed, lent in GPUs."""
    return tuple(number / MILLI for number in (fr.total, fr.used, fr.borrowed, fr.lent))


def test_a_borrower_and_a_lender() -> None:
    quota = quota_of(ClusterQueue("a", "all", gpus(4)), ClusterQueue("b", "all", gpus(4)))
    use = measure(quota, [runs(make_job("1", 6, queue="a")), runs(make_job("2", 1, queue="b"))])
    assert whole(queue_in(use, "a").flavors[0]) == (4, 6, 2, 0)
    assert whole(queue_in(use, "b").flavors[0]) == (4, 1, 0, 2)
    assert whole(cohort_in(use, "all").flavors[0]) == (8, 7, 0, 0)


def test_reserved_are_the_minimums_and_growth_is_the_rest() -> None:
    quota = quota_of(ClusterQueue("a", "", gpus(8)))
    use = measure(quota, [runs(make_job("1", 2, min=2, max=8, queue="a"), 5), runs(make_job("2", 1, queue="a"))])
    fr = use.queues[0].flavors[0]
    assert (fr.used, fr.reserved, fr.growth) == (6 * MILLI, 3 * MILLI, 3 * MILLI)


def test_a_job_that_is_smaller_than_its_minimum_for_now_reserves_what_it_has() -> None:
    use = measure(quota_of(ClusterQueue("a", "", gpus(8))), [runs(make_job("1", 4, min=4, queue="a"), gpus=2)])
    assert (use.queues[0].flavors[0].reserved, use.queues[0].flavors[0].growth) == (2 * MILLI, 0)


def test_what_is_kept_back_is_not_lent() -> None:
    """Only one GPU of `b` may be lent, so the cohort's own quota and `c` give the rest."""
    quota = quota_of(
        Cohort("all", groups=gpus(1)),
        ClusterQueue("a", "all", gpus(0)),
        ClusterQueue("b", "all", gpus(4, lending=1)),
        ClusterQueue("c", "all", gpus(3)),
    )
    use = measure(quota, [runs(make_job("1", 5, queue="a"))])
    assert whole(queue_in(use, "a").flavors[0]) == (0, 5, 5, 0)
    assert whole(queue_in(use, "b").flavors[0]) == (4, 0, 0, 1)
    assert whole(queue_in(use, "c").flavors[0]) == (3, 0, 0, 3)
    assert whole(cohort_in(use, "all").flavors[0]) == (8, 5, 0, 0)


def test_a_cohort_borrows_from_its_sister() -> None:
    quota = quota_of(
        Cohort("west", "root"),
        Cohort("east", "root"),
        ClusterQueue("a", "west", gpus(2)),
        ClusterQueue("b", "west", gpus(2)),
        ClusterQueue("c", "east", gpus(6)),
    )
    use = measure(quota, [runs(make_job("1", 7, queue="a"))])
    assert whole(queue_in(use, "a").flavors[0]) == (2, 7, 5, 0)
    assert whole(queue_in(use, "b").flavors[0]) == (2, 0, 0, 2)
    assert whole(queue_in(use, "c").flavors[0]) == (6, 0, 0, 3)
    assert whole(cohort_in(use, "west").flavors[0]) == (4, 7, 3, 0)
    assert whole(cohort_in(use, "east").flavors[0]) == (6, 0, 0, 3)
    assert whole(cohort_in(use, "root").flavors[0]) == (10, 7, 0, 0)
    assert (cohort_in(use, "west").parent, cohort_in(use, "root").parent) == ("root", "")


def test_a_share_is_what_is_borrowed_for_the_weight() -> None:
    quota = quota_of(
        ClusterQueue("a", "all", gpus(2), weight=2.0),
        ClusterQueue("b", "all", gpus(6)),
        ClusterQueue("none", "all", gpus(0), weight=0.0),
    )
    use = measure(quota, [runs(make_job("1", 4, queue="a")), runs(make_job("2", 1, queue="none"))])
    assert queue_in(use, "a").share == 1000 * 2 / 8 / 2
    assert queue_in(use, "b").share == 0
    assert math.isinf(queue_in(use, "none").share)


def test_who_is_ahead_of_whom() -> None:
    quota = quota_of(ClusterQueue("a", "", gpus(1)))
    jobs = [
        waits(make_job("late", 1, queue="a", submit_s=9.0)),
        waits(make_job("early", 1, queue="a", submit_s=1.0)),
        waits(make_job("urgent", 1, queue="a", submit_s=10.0, priority=5)),
        JobUse(make_job("parked", 1, queue="a"), 0, waits=True, suspended=True),
        runs(make_job("runs", 1, queue="a")),
    ]
    queue = measure(quota, jobs).queues[0]
    assert [job.id for job in queue.waiting] == ["urgent", "early", "late"]
    assert (queue.running, queue.suspended) == (1, 1)


def test_a_job_that_is_stopping_waits_already_and_still_uses_its_quota() -> None:
    quota = quota_of(ClusterQueue("a", "", gpus(4)))
    (queue,) = measure(quota, [JobUse(make_job("1", 3, queue="a"), 3, waits=True, flavors=IN_GPUS)]).queues
    assert (len(queue.waiting), queue.running) == (1, 0)
    assert (queue.gpus, queue.flavors[0].used) == (3, 3 * MILLI)


def test_those_that_wait_need_their_minimums() -> None:
    groups = (
        ResourceGroup(
            (GPU, "cpu", "memory", "pods"),
            (FlavorQuota(FLAVOR, (Limits(8_000), Limits(64_000), Limits(1 << 50), Limits(9_000))),),
        ),
    )
    job = make_job(
        *("1", 4),
        min=2,
        max=8,
        gpus_per_replica=2,
        queue="a",
        cpus_milli_per_gpu=1500,
        memory_mib_per_gpu=3,
    )
    queue = measure(quota_of(ClusterQueue("a", "", groups)), [waits(job)]).queues[0]
    assert dict(queue.needs) == {GPU: 2_000, "cpu": 3_000, "memory": 6 * 1024 * 1024 * 1_000, "pods": 1_000}


def test_jobs_come_through_the_local_queue_of_their_namespace() -> None:
    quota = quota_of(
        ClusterQueue("big", "", gpus(8)),
        LocalQueue("main", "big", "team-a"),
        LocalQueue("main", "nowhere", "team-b"),
    )
    jobs = [
        runs(make_job("1", 2, queue="main", namespace="team-a")),
        waits(make_job("2", 2, queue="main", namespace="team-a")),
        waits(make_job("3", 2, queue="main", namespace="team-b")),
    ]
    use = measure(quota, jobs)
    (big,) = use.queues
    assert (big.running, [job.id for job in big.waiting]) == (1, ["2"])
    assert [(one.door.namespace, one.running, one.pending) for one in big.doors] == [("team-a", 1, 1)]
    assert [(one.queue.name, len(one.waiting)) for one in use.strangers] == [("main", 1)]


def test_a_queue_that_cannot_start_anything_says_why() -> None:
    quota = Quota(cluster_queues=(ClusterQueue("a", "", gpus(8)), ClusterQueue("b")), leaving=("b",))
    one, other = measure(quota, []).queues
    assert (one.misconfigured, one.leaving) == ("there is no flavor gpu", False)
    assert (other.misconfigured, other.leaving) == ("it has quota in nothing", True)


def test_cohorts_in_a_circle_are_reported_and_not_followed() -> None:
    quota = quota_of(Cohort("x", "y"), Cohort("y", "x"), ClusterQueue("a", "x", gpus(1)))
    use = measure(quota, [runs(make_job("1", 1, queue="a"))])
    assert "its own ancestor" in use.queues[0].misconfigured
    assert use.queues[0].flavors[0].used == MILLI


def test_without_quota_every_queue_is_a_stranger() -> None:
    use = measure(Quota(), [runs(make_job("1", 1, queue="q")), waits(make_job("2", 1, queue="p"))])
    assert use.queues == ()
    assert [(one.queue.name, one.running, len(one.waiting)) for one in use.strangers] == [
        ("p", 0, 1),
        ("q", 1, 0),
    ]


few = st.integers(0, 6)
names = st.sampled_from(["c0", "c1", "c2", "c3", ""])


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    """Cohorts that may be in each other, in themselves or in ones that nobody described; queues anywhere."""
    cohorts = [Cohort(f"c{k}", draw(names), gpus(draw(few)) if draw(st.booleans()) else ()) for k in range(3)]
    queues = [
        ClusterQueue(f"q{k}", draw(names), gpus(draw(few), lending=draw(st.none() | few)), weight=draw(few))
        for k in range(draw(few))
    ]
    return quota_of(*cohorts, *queues)


@given(quotas(), st.lists(st.tuples(few, st.integers(1, 6), st.booleans()), max_size=8))
def test_numbers_add_up_whatever_was_written(quota: Quota, jobs: list[tuple[int, int, bool]]) -> None:
    """A cohort's are those of what is in it, also when quota was cut or makes no sense."""
    asked = [
        JobUse(make_job(str(k), size, queue=f"q{queue}"), 0 if waits_ else size, waits_, flavors=IN_GPUS)
        for k, (queue, size, waits_) in enumerate(jobs)
    ]
    use = measure(quota, asked)
    assert sum(one.gpus for one in (*use.queues, *use.strangers)) == sum(one.gpus for one in asked)
    inside: dict[str, list[QueueUse | CohortUse]] = {one.name: [] for one in use.cohorts}
    for queue in use.queues:
        if queue.queue.cohort:
            inside[queue.queue.cohort].append(queue)
    for cohort in use.cohorts:
        if cohort.parent:
            inside[cohort.parent].append(cohort)
    for cohort in use.cohorts:
        own = sum(fr.limits.nominal for fr in cohort.flavors)
        below = [fr for one in inside[cohort.name] for fr in one.flavors]
        assert sum(fr.total for fr in cohort.flavors) == own + sum(fr.total for fr in below)
        assert sum(fr.used for fr in cohort.flavors) == sum(fr.used for fr in below)
        assert cohort.running == sum(one.running for one in inside[cohort.name])
    for fr in chain(*(one.flavors for one in use.queues), *(one.flavors for one in use.cohorts)):
        assert 0 <= fr.reserved <= fr.used
        assert 0 <= fr.lent <= fr.total
        assert fr.borrowed <= fr.used
