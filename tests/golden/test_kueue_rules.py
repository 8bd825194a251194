"""Rules of Kueue that the recorded cases do not reach, each as a short story.

They follow from its scheduler (0.19): how flavors are searched, partial admission, pod sets, taints and
labels, shares and their ties. No nodes, no time: quota alone decides.
"""

from typing import Any

from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    Cohort,
    Expression,
    Flavor,
    FlavorQuota,
    Fungibility,
    Limits,
    LocalQueue,
    Preemption,
    Preference,
    Quota,
    Reclaim,
    ResourceGroup,
    Search,
    Selector,
    StopPolicy,
    Strategy,
    Taint,
    Toleration,
    Within,
)
from batuta.quota.simulator import QuotaSimulator, QuotaStatus
from batuta.quota.workload import PodSet
from tests.support.quotas import GPU, gpus, quota_of

CPU = "cpu"
TRY_ALL = Fungibility(Search.TRY_NEXT_FLAVOR, Search.TRY_NEXT_FLAVOR)
BORROW_LAST = Fungibility(Search.TRY_NEXT_FLAVOR, Search.TRY_NEXT_FLAVOR, Preference.PREEMPTION_OVER_BORROWING)
LOWER = Preemption(Within.LOWER_PRIORITY)
TAKES_BACK = Preemption(Within.LOWER_PRIORITY, Reclaim.ANY)


def by_flavor(**nominal: int | Limits) -> tuple[ResourceGroup, ...]:
    """Quota in GPUs of these flavors, in this order."""
    found = {name: one if isinstance(one, Limits) else Limits(one * MILLI) for name, one in nominal.items()}
    return (ResourceGroup((GPU,), tuple(FlavorQuota(name, (one,)) for name, one in found.items())),)


def pods(each: int, count: int = 1, **wishes: Any) -> PodSet:
    return PodSet(((GPU, each * MILLI),), count, **wishes)


def submit(trial: QuotaSimulator, name: str, queue: str, *pod_sets: PodSet, priority: int = 0) -> QuotaStatus:
    return trial.submit(name, queue, pod_sets, priority)


def lost(standing: QuotaStatus) -> list[str]:
    return [one.workload for one in standing.preempted]


# --------------------------------------------------------------------------------- flavors and their labels


def test_a_flavor_is_asked_only_about_labels_that_it_has_itself() -> None:
    """`plain` says nothing of `gpu`, so a workload that wants an h100 may be on its nodes."""
    flavors = Flavor("plain"), Flavor("h100", (("gpu", "h100"),))
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", by_flavor(plain=1, h100=1)), *flavors))
    wants = pods(1, node_labels=(("gpu", "h100"), ("zone", "anywhere")))
    assert submit(trial, "first", "a", wants).admitted == {"first": {GPU: "plain"}}
    assert submit(trial, "second", "a", wants).admitted["second"] == {GPU: "h100"}


def test_a_taint_keeps_away_who_does_not_tolerate_it_unless_the_flavor_does_so_itself() -> None:
    spot = Taint("spot", "yes", "NoSchedule")
    mild = Taint("slow", "", "PreferNoSchedule")
    flavors = (
        Flavor("fenced", (), (spot,)),
        Flavor("mild", (), (mild,)),
        Flavor("helped", (), (spot,), (Toleration("spot", "Exists"),)),
    )
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", by_flavor(fenced=1, mild=1, helped=1)), *flavors))
    tolerant = pods(1, tolerations=(Toleration("spot", "Equal", "yes"),))
    assert submit(trial, "plain", "a", pods(1)).admitted["plain"] == {GPU: "mild"}
    assert submit(trial, "tolerant", "a", tolerant).admitted["tolerant"] == {GPU: "fenced"}
    assert submit(trial, "late", "a", pods(1)).admitted["late"] == {GPU: "helped"}


def test_a_search_that_ended_early_in_vain_goes_on_behind_the_flavor_where_it_ended() -> None:
    """The first pod set takes the only flavor that the second one could have; so it tries the next."""
    flavors = Flavor("x", (("kind", "x"),)), Flavor("y", (("kind", "y"),))
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", by_flavor(x=1, y=1)), *flavors))
    only_x = pods(1, name="second", node_labels=(("kind", "x"),))
    standing = submit(trial, "w", "a", pods(1, name="first"), only_x)
    assert set(standing.admitted) == {"w"}
    assert set(submit(trial, "late", "a", pods(1)).pending) == {"late"}


def test_pod_sets_are_counted_together_and_may_use_different_flavors() -> None:
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", by_flavor(x=2, y=2))))
    standing = submit(trial, "w", "a", pods(2, name="driver"), pods(1, 2, name="workers"))
    assert standing.admitted == {"w": {GPU: "y"}}
    assert set(submit(trial, "late", "a", pods(1)).pending) == {"late"}


def test_the_worst_resource_says_what_a_flavor_is_worth_by_what_the_queue_prefers() -> None:
    """In `x` GPUs would be borrowed and CPUs are free; with TryNextFlavor for borrowing `y` is looked at."""

    def group(*flavors: FlavorQuota) -> tuple[ResourceGroup, ...]:
        return (ResourceGroup((GPU, CPU), flavors),)

    def own(flavor: str, gpu: int, cpu: int) -> FlavorQuota:
        return FlavorQuota(flavor, (Limits(gpu * MILLI), Limits(cpu * MILLI)))

    queues = (
        ClusterQueue("a", "all", group(own("x", 0, 4), own("y", 2, 4)), fungibility=TRY_ALL),
        ClusterQueue("b", "all", group(own("x", 4, 4), own("y", 0, 0))),
    )
    trial = QuotaSimulator(quota_of(*queues))
    both = PodSet(((GPU, MILLI), (CPU, MILLI)))
    assert submit(trial, "w", "a", both).admitted["w"] == {GPU: "y", CPU: "y"}


def test_preemption_over_borrowing_pushes_aside_in_the_first_flavor_rather_than_borrow_in_the_second() -> None:
    def trial(rules: Fungibility) -> QuotaSimulator:
        queues = (
            ClusterQueue("a", "all", by_flavor(x=2, y=0), preemption=LOWER, fungibility=rules),
            ClusterQueue("b", "all", by_flavor(x=Limits(), y=Limits(2 * MILLI))),
        )
        found = QuotaSimulator(quota_of(*queues))
        submit(found, "low", "a", pods(2), priority=-1)
        return found

    standing = submit(trial(BORROW_LAST), "high", "a", pods(2))
    # It is pushed out of the first flavor, and borrows in the second itself.
    assert standing.admitted == {"low": {GPU: "y"}, "high": {GPU: "x"}}
    assert lost(standing) == ["low"]
    standing = submit(trial(TRY_ALL), "high", "a", pods(2))
    assert standing.admitted == {"low": {GPU: "x"}, "high": {GPU: "y"}}
    assert not standing.preempted


def test_a_flavor_in_which_nobody_may_be_pushed_aside_is_never_preferred_to_one_that_is_free() -> None:
    """Given that `x` is full, nobody there gives way and none of it may be borrowed, when `y` is free but
    farther away, then `y` it is, although borrowing comes last: it would wait for `x` for ever.
    """
    quota = quota_of(
        *(Cohort("near", "root"), Cohort("root")),
        ClusterQueue("a", "near", by_flavor(x=Limits(2 * MILLI, borrowing=0), y=0), fungibility=BORROW_LAST),
        ClusterQueue("idle", "near", by_flavor(x=2)),
        ClusterQueue("far", "root", by_flavor(y=2)),
    )
    trial = QuotaSimulator(quota)
    submit(trial, "first", "a", pods(2))
    assert submit(trial, "second", "a", pods(2)).admitted["second"] == {GPU: "y"}


def test_a_flavor_of_which_one_resource_cannot_be_had_is_one_to_wait_for() -> None:
    """Given that in `x` GPUs can be borrowed and CPUs are gone, when both are free in `y`, then `y` it is."""

    def group(*flavors: tuple[str, int, Limits]) -> tuple[ResourceGroup, ...]:
        own = (FlavorQuota(name, (Limits(gpu * MILLI), cpu)) for name, gpu, cpu in flavors)
        return (ResourceGroup((GPU, CPU), tuple(own)),)

    none, some, own = Limits(), Limits(4 * MILLI), Limits(2 * MILLI, borrowing=0)
    quota = quota_of(
        *(Cohort("near", "root"), Cohort("root")),
        ClusterQueue("a", "near", group(("x", 0, own), ("y", 0, none)), fungibility=BORROW_LAST),
        ClusterQueue("idle", "near", group(("x", 0, some))),
        ClusterQueue("far", "root", group(("x", 4, none), ("y", 4, some))),
    )
    trial = QuotaSimulator(quota)
    both = PodSet(((GPU, MILLI), (CPU, 2 * MILLI)))
    assert trial.submit("first", "a", (both,)).admitted["first"] == {GPU: "x", CPU: "x"}
    assert trial.submit("second", "a", (both,)).admitted["second"] == {GPU: "y", CPU: "y"}


def test_when_quota_comes_free_a_search_begins_with_the_first_flavor_again() -> None:
    """Given a workload whose first pod set has a place in `x` and whose second waits for `y`, when in that
    very cycle somebody gives `y` back, then the first one still gets its place in `x`.
    """
    only_y = pods(1, name="second", node_labels=(("kind", "y"),))
    trial = QuotaSimulator(
        quota_of(
            ClusterQueue("waits", "all", by_flavor(x=2, y=0)),
            ClusterQueue("owner", "all", by_flavor(y=3), preemption=TAKES_BACK),
            ClusterQueue("borrower", "all", by_flavor(y=0)),
            *(Flavor("x", (("kind", "x"),)), Flavor("y", (("kind", "y"),))),
        )
    )
    submit(trial, "large", "borrower", pods(2))
    submit(trial, "stays", "borrower", pods(1), priority=5)
    assert set(submit(trial, "w", "waits", pods(2, name="first"), only_y, priority=1).pending) == {"w"}
    standing = submit(trial, "small", "owner", pods(1))
    assert (set(standing.admitted), lost(standing)) == ({"small", "stays", "w"}, ["large"])


# ---------------------------------------------------------------------------------------- partial admission


def test_a_workload_with_a_least_count_gets_the_most_that_fits() -> None:
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", gpus(5))))
    submit(trial, "w", "a", pods(1, 8, min_count=2))
    assert set(submit(trial, "late", "a", pods(1)).pending) == {"late"}
    assert set(trial.finish("w").admitted) == {"late"}


def test_below_its_least_count_it_waits() -> None:
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", gpus(5))))
    assert set(submit(trial, "w", "a", pods(1, 8, min_count=6)).pending) == {"w"}


def test_pod_sets_are_reduced_in_proportion_and_those_without_a_least_count_stay() -> None:
    """Two sets have four and two replicas to spare; with nine GPUs three must go: two here, one there."""
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", gpus(9))))
    sets = pods(1, 6, min_count=2, name="a"), pods(1, 4, min_count=2, name="b"), pods(1, 2, name="c")
    assert set(submit(trial, "w", "a", *sets).admitted) == {"w"}
    assert set(submit(trial, "late", "a", pods(1)).pending) == {"late"}


def test_all_replicas_by_preemption_go_before_fewer_without() -> None:
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", gpus(4), preemption=LOWER)))
    submit(trial, "low", "a", pods(2), priority=-1)
    standing = submit(trial, "w", "a", pods(1, 4, min_count=1))
    assert (set(standing.admitted), lost(standing)) == ({"w"}, ["low"])


# ----------------------------------------------------------------------------------------------- preemption


def test_while_borrowing_only_those_up_to_the_threshold_are_pushed_aside() -> None:
    rules = Preemption(Within.NEVER, Reclaim.LOWER_PRIORITY, while_borrowing=True, max_priority=1)

    def after(priority: int) -> QuotaStatus:
        trial = QuotaSimulator(
            quota_of(
                *(ClusterQueue("a", "all", gpus(1), preemption=rules), ClusterQueue("b", "all", gpus(1))),
                ClusterQueue("idle", "all", gpus(2)),
            )
        )
        submit(trial, "borrows", "b", pods(3), priority=priority)
        return submit(trial, "w", "a", pods(2), priority=5)

    assert lost(after(1)) == ["borrows"]
    assert lost(after(2)) == []


def test_equal_priority_is_pushed_aside_only_by_who_is_older() -> None:
    newer = Preemption(Within.LOWER_OR_NEWER_EQUAL_PRIORITY)
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", gpus(2), preemption=newer)))
    submit(trial, "large", "a", pods(2), priority=1)
    submit(trial, "older", "a", pods(2))
    standing = trial.finish("large")
    assert set(standing.admitted) == {"older"}
    assert not submit(trial, "newer", "a", pods(2)).preempted
    trial.patch("older", active=False)
    standing = trial.patch("older", active=True)
    assert (set(standing.admitted), lost(standing)) == ({"older"}, ["newer"])


def test_what_no_resource_alone_would_free_is_freed_by_all_of_them_together() -> None:
    """The borrower holds GPUs above its limit, so for CPUs alone nobody would have to go."""
    rules = Preemption(Within.NEVER, Reclaim.ANY)
    group = ResourceGroup((GPU, CPU), (FlavorQuota("x", (Limits(2 * MILLI), Limits(2 * MILLI))),))
    trial = QuotaSimulator(
        quota_of(ClusterQueue("a", "all", (group,), preemption=rules), ClusterQueue("b", "all", (group,)))
    )
    trial.submit("gpus", "b", (PodSet(((GPU, 3 * MILLI), (CPU, 0))),))
    trial.submit("cpus", "b", (PodSet(((GPU, MILLI), (CPU, 3 * MILLI))),))
    standing = trial.submit("w", "a", (PodSet(((GPU, 2 * MILLI), (CPU, 2 * MILLI))),))
    assert "w" in standing.admitted
    assert lost(standing) == ["cpus", "gpus"]


def test_who_asks_for_nothing_of_a_resource_is_not_kept_out_by_its_debts() -> None:
    def quota(cpus: int) -> Quota:
        group = ResourceGroup((GPU, CPU), (FlavorQuota("x", (Limits(4 * MILLI), Limits(cpus * MILLI))),))
        return quota_of(ClusterQueue("a", "", (group,)))

    trial = QuotaSimulator(quota(4))
    trial.submit("runs", "a", (PodSet(((GPU, MILLI), (CPU, 4 * MILLI))),))
    trial.change(quota(2))
    assert "w" in trial.submit("w", "a", (PodSet(((GPU, MILLI), (CPU, 0))),)).admitted


def test_a_running_workload_whose_priority_falls_gives_way_to_who_waits() -> None:
    trial = QuotaSimulator(quota_of(ClusterQueue("a", "", gpus(2), preemption=LOWER)))
    submit(trial, "runs", "a", pods(2), priority=1)
    submit(trial, "waits", "a", pods(2), priority=1)
    standing = trial.patch("runs", priority=0)
    assert (set(standing.admitted), lost(standing)) == ({"waits"}, ["runs"])


# --------------------------------------------------------------------------------------------- fair sharing


def test_within_its_own_quota_a_queue_takes_back_from_a_cohort_that_borrows_less() -> None:
    """Its cohort as a whole has a larger share than the other; what belongs to the queue is its own."""
    rules = Preemption(Within.LOWER_PRIORITY, Reclaim.LOWER_PRIORITY)
    quota = quota_of(
        *(Cohort("left", "root"), Cohort("right", "root"), Cohort("root", "", gpus(4))),
        ClusterQueue("own", "left", gpus(2), preemption=rules),
        ClusterQueue("near", "left", gpus(0)),
        ClusterQueue("far", "right", gpus(0)),
        fair_sharing=True,
    )
    trial = QuotaSimulator(quota)
    submit(trial, "near-1", "near", pods(4), priority=5)
    submit(trial, "far-1", "far", pods(2), priority=-1)
    standing = submit(trial, "w", "own", pods(2))
    assert (set(standing.admitted), set(lost(standing))) == ({"near-1", "w"}, {"far-1"})


def test_in_one_cycle_a_queue_that_does_not_borrow_goes_before_a_smaller_share() -> None:
    """`own` borrows much in another flavor, `heavy` next to nothing for its weight; but here `own` owns."""
    flavors = Flavor("x", (("kind", "x"),)), Flavor("y", (("kind", "y"),))
    quota = quota_of(
        ClusterQueue("heavy", "all", by_flavor(x=0), weight=1000.0),
        ClusterQueue("own", "all", by_flavor(x=2, y=0)),
        ClusterQueue("full", "all", by_flavor(x=0)),
        ClusterQueue("idle", "all", by_flavor(y=4)),
        *flavors,
        fair_sharing=True,
    )
    trial = QuotaSimulator(quota)
    submit(trial, "elsewhere", "own", pods(4, node_labels=(("kind", "y"),)))
    submit(trial, "first", "full", pods(2))
    submit(trial, "borrows", "heavy", pods(2))
    submit(trial, "owns", "own", pods(2, node_labels=(("kind", "x"),)))
    assert set(trial.finish("first").admitted) == {"elsewhere", "owns"}


def test_a_queue_without_weight_comes_last_and_goes_first() -> None:
    quota = quota_of(
        ClusterQueue("none", "all", gpus(0), weight=0.0),
        ClusterQueue("some", "all", gpus(0), preemption=TAKES_BACK),
        ClusterQueue("idle", "all", gpus(2)),
        fair_sharing=True,
    )
    trial = QuotaSimulator(quota)
    submit(trial, "weightless", "none", pods(2))
    standing = submit(trial, "w", "some", pods(2))
    assert (set(standing.admitted), lost(standing)) == ({"w"}, ["weightless"])
    assert not submit(trial, "again", "none", pods(1)).preempted


# ---------------------------------------------------------------------------------- queues that come and go


def test_a_door_that_is_drained_lets_its_own_out_and_no_others() -> None:
    def quota(stop: StopPolicy) -> Quota:
        doors = LocalQueue("one", "a", stop=stop), LocalQueue("two", "a")
        return quota_of(ClusterQueue("a", "", gpus(4)), *doors)

    trial = QuotaSimulator(quota(StopPolicy.NONE))
    submit(trial, "w1", "one", pods(1))
    submit(trial, "w2", "two", pods(1))
    held = trial.change(quota(StopPolicy.HOLD))
    assert (set(held.admitted), lost(held)) == ({"w1", "w2"}, [])
    assert set(submit(trial, "w3", "one", pods(1)).pending) == {"w3"}
    drained = trial.change(quota(StopPolicy.HOLD_AND_DRAIN))
    assert (set(drained.admitted), lost(drained)) == ({"w2"}, ["w1"])
    assert [one.reason for one in drained.preempted] == ["LocalQueueStopped"]
    assert set(trial.change(quota(StopPolicy.NONE)).admitted) == {"w1", "w2", "w3"}


def test_who_is_pushed_out_of_a_held_queue_waits_until_it_is_open_again() -> None:
    """Given a held queue that borrows in `x`, when the owner takes that back, then nobody starts in `y`."""

    def quota(queue: StopPolicy, door: StopPolicy) -> Quota:
        return quota_of(
            ClusterQueue("owner", "all", by_flavor(x=2), preemption=TAKES_BACK),
            ClusterQueue("borrower", "all", by_flavor(x=0, y=2), stop=queue),
            *(LocalQueue("owner", "owner"), LocalQueue("borrower", "borrower", stop=door)),
        )

    opened = quota(StopPolicy.NONE, StopPolicy.NONE)
    for held in (quota(StopPolicy.HOLD, StopPolicy.NONE), quota(StopPolicy.NONE, StopPolicy.HOLD)):
        trial = QuotaSimulator(opened)
        assert submit(trial, "borrows", "borrower", pods(2)).admitted == {"borrows": {GPU: "x"}}
        trial.change(held)
        standing = submit(trial, "owns", "owner", pods(2))
        assert (set(standing.admitted), lost(standing)) == ({"owns"}, ["borrows"])
        assert standing.pending["borrows"].reason == "Suspended"
        assert trial.change(opened).admitted["borrows"] == {GPU: "y"}


def test_a_queue_that_is_made_again_goes_on_with_what_runs_in_it() -> None:
    queue = ClusterQueue("a", "", gpus(2))
    trial = QuotaSimulator(quota_of(queue))
    submit(trial, "runs", "a", pods(1))
    doors_only = Quota(flavors=(Flavor("gpu"),), local_queues=(LocalQueue("a", "a"),))
    assert set(trial.change(doors_only).admitted) == {"runs"}
    assert set(submit(trial, "late", "a", pods(1)).pending) == {"late"}
    assert set(trial.change(quota_of(queue)).admitted) == {"runs", "late"}


def test_a_queue_takes_only_workloads_of_the_namespaces_that_it_selects() -> None:
    name = "kubernetes.io/metadata.name"
    selectors = {
        "all": (Selector(), True),
        "by-name": (Selector(((name, "default"),)), True),
        "another": (Selector(((name, "elsewhere"),)), False),
        "not-this": (Selector((), (Expression(name, "NotIn", ("default",)),)), False),
        "none": (None, False),
    }
    queues = [ClusterQueue(key, "", gpus(1), namespaces=one) for key, (one, _) in selectors.items()]
    trial = QuotaSimulator(quota_of(*queues))
    for key, (_, takes) in selectors.items():
        standing = submit(trial, f"w-{key}", key, pods(1))
        assert (f"w-{key}" in standing.admitted) is takes, key
        if not takes:
            assert standing.pending[f"w-{key}"].reason == "Misconfigured"


def test_a_blocked_strict_head_keeps_its_own_quota_from_borrowers_of_the_cycle() -> None:
    strict = ClusterQueue("strict", "all", gpus(3), Strategy.STRICT_FIFO)
    trial = QuotaSimulator(quota_of(strict, ClusterQueue("b", "all", gpus(1))))
    submit(trial, "runs", "strict", pods(2))
    submit(trial, "head", "strict", pods(3))
    submit(trial, "borrows", "b", pods(2))
    assert set(trial.standing().admitted) == {"runs"}


def test_what_a_strict_head_does_not_keep_for_good_goes_to_who_was_overtaken() -> None:
    """Given a blocked strict head that keeps one of `x` in one search and three in the next, when somebody
    comes who needs one and is overtaken by both and by another that has to wait, then it gets one in the end.
    """
    x, y = Flavor("x", (("kind", "x"),)), Flavor("y", (("kind", "y"),))
    trial = QuotaSimulator(
        quota_of(
            ClusterQueue("strict", "all", by_flavor(x=3, y=3), Strategy.STRICT_FIFO),
            ClusterQueue("other", "all", by_flavor(y=1, x=2)),
            ClusterQueue("borrower", "all", by_flavor(x=0)),
            *(x, y),
        )
    )
    submit(trial, "fills-y", "strict", pods(4, node_labels=y.node_labels))
    submit(trial, "in-x", "other", pods(1))
    submit(trial, "borrows-x", "borrower", pods(2))
    submit(trial, "head", "strict", pods(1, name="first"), pods(3, name="second"))
    second = pods(1, name="second", node_labels=y.node_labels)
    submit(trial, "waits", "other", pods(1, name="first", node_labels=x.node_labels), second)
    standing = submit(trial, "w", "borrower", pods(1))
    assert "w" in standing.admitted
    assert set(standing.pending) == {"head", "waits"}
