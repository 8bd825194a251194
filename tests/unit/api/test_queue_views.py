"""Queues and cohorts as people see them, and as metrics."""

from random import Random
from typing import Any

import pytest
from prometheus_client.core import Metric

from batuta.api.cluster_metrics import MAX_QUEUE_SERIES, OTHERS, queue_metrics
from batuta.api.models import QueueDetail, Queues
from batuta.api.queue_views import ahead_of, find_queue, view_detail, view_queues, view_reserved
from batuta.api.scheduler_counters import ScheduleCounts
from batuta.api.snapshot import WorldSnapshot
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import DesiredState
from batuta.core.quota import ClusterQueue, Cohort, LocalQueue, Quota, StopPolicy
from batuta.core.world import World
from tests.support.quotas import FLAVOR, GPU, gpus, quota_of, short
from tests.support.snapshots import snapshot_of
from tests.support.worlds import make_job, make_nodes, make_world

QUOTA = quota_of(
    Cohort("lab", "campus"),
    ClusterQueue("one", "lab", gpus(1)),
    ClusterQueue("two", "lab", gpus(4)),
    ClusterQueue("stopped", "", gpus(4), stop=StopPolicy.HOLD),
)


def busy_world(quota: Quota = QUOTA) -> World:
    """Queue `one` uses three GPUs and has one, `two` lends; three more wait in `one`, one of them parked."""
    jobs = [
        make_job("a", 3, queue="one", min=1),
        make_job("b", 1, queue="two"),
        make_job("c", 9, queue="one", submit_s=3.0),
        make_job("d", 9, queue="one", submit_s=2.0, user="ana"),
        make_job("e", 1, queue="one", submit_s=1.0, priority=9),
        make_job("f", 9, queue="nowhere", submit_s=4.0),
    ]
    world = make_world(make_nodes(8), {"a": "n0:012", "b": "n0:3"}, jobs)
    apply(world, ev.QuotaSet(5.0, quota))
    apply(world, ev.JobWished(5.0, "e", DesiredState.PARK))
    return world


def shown_queues(snapshot: WorldSnapshot) -> dict[str, dict[str, Any]]:
    shown = view_queues(snapshot)
    Queues.model_validate(shown)
    return {queue["name"]: queue for queue in shown["queues"]}


def test_queues_borrow_and_lend() -> None:
    queues = shown_queues(snapshot_of(busy_world()))
    assert list(queues) == ["default", "one", "two", "stopped", "nowhere"]
    one, two = queues["one"], queues["two"]
    assert (one["quota"], one["used"]) == ({FLAVOR: 1}, {FLAVOR: 3, "*": 3})
    assert (one["borrowed"], one["lent"]) == ({FLAVOR: 2}, {})
    assert (two["borrowed"], two["lent"]) == ({}, {FLAVOR: 2})
    assert (one["pending"], one["running"], one["suspended"], one["needs"]) == (2, 1, 1, {GPU: 18})
    assert one["share"] == 1000 * 2 / 5
    assert one["cells"] == [
        {
            "flavor": FLAVOR,
            "resource": GPU,
            "nominal": 1,
            "borrowing_limit": None,
            "lending_limit": None,
            "total": 1,
            "used": 3,
            "reserved": 1,
            "growth": 2,
            "borrowed": 2,
            "lent": 0,
        }
    ]


def test_a_queue_says_whether_it_starts_anything() -> None:
    queues = shown_queues(snapshot_of(busy_world()))
    assert {name: queue["state"] for name, queue in queues.items()} == {
        "default": "active",
        "one": "active",
        "two": "active",
        "stopped": "held",
        "nowhere": "unknown",
    }
    assert queues["stopped"]["held"]
    assert "nothing starts" in queues["stopped"]["message"]
    assert "its jobs wait" in queues["nowhere"]["message"]
    assert "quotas leave it none of the 8 GPUs" in queues["default"]["message"]


def test_without_quota_the_default_queue_is_open() -> None:
    assert shown_queues(snapshot_of(busy_world(Quota())))["default"]["state"] == "open"


def test_cohorts_are_a_tree() -> None:
    cohorts = {one["name"]: one for one in view_queues(snapshot_of(busy_world()))["cohorts"]}
    assert (cohorts["lab"]["parent"], cohorts["campus"]["parent"]) == ("campus", "")
    assert (cohorts["lab"]["running"], cohorts["lab"]["pending"]) == (2, 2)
    (cell,) = cohorts["campus"]["cells"]
    assert (cell["nominal"], cell["total"], cell["used"]) == (0, 5, 4)


def test_one_queue_with_who_is_ahead_of_whom() -> None:
    snapshot = snapshot_of(busy_world())
    use = find_queue(snapshot, "one")
    assert use is not None
    shown = view_detail(snapshot, use, limit=10)
    QueueDetail.model_validate(shown)
    assert [(one["place"], one["id"], one["user"]) for one in shown["waiting"]] == [
        (1, "d", "ana"),
        (2, "c", ""),
    ]
    assert shown["waiting"][0]["quota_reserved"]["reason"] == "PendingEvaluation", "no plan was made yet"
    assert [(one["id"], one["gpus"], one["reserved"], one["flavors"]) for one in shown["holding"]] == [
        ("a", 3, 1, {GPU: FLAVOR})
    ]
    assert len(view_detail(snapshot, use, limit=1)["waiting"]) == 1


def test_quota_in_few_words_has_no_limit_on_what_it_does_not_name() -> None:
    jobs = [make_job("a", 2, queue="free"), make_job("b", 1, queue="some")]
    world = make_world(make_nodes(8), {"a": "n0:01", "b": "n0:2"}, jobs)
    apply(world, ev.QuotaSet(5.0, short(("free", {}), ("some", {"H100": 2}))))
    queues = shown_queues(snapshot_of(world))
    assert (queues["free"]["quota"], queues["free"]["used"]) == ({}, {"*": 2})
    assert (queues["some"]["quota"], queues["some"]["used"]) == ({"h100": 2}, {"h100": 0, "*": 1})
    assert [one["flavor"] for one in queues["some"]["cells"]] == ["h100", "other-types"]


def test_a_queue_is_also_found_by_its_local_name() -> None:
    quota = quota_of(ClusterQueue("big", "", gpus(4)), LocalQueue("train", "big", "team-a"))
    snapshot = snapshot_of(busy_world(quota))
    found = find_queue(snapshot, "train")
    assert found is not None
    assert found.queue.name == "big"
    assert find_queue(snapshot, "rain") is None


def test_how_many_are_ahead() -> None:
    snapshot = snapshot_of(busy_world())
    assert [ahead_of(snapshot, job) for job in "dcaez"] == [0, 1, None, None, None]


def test_whether_a_job_has_quota() -> None:
    snapshot = snapshot_of(busy_world())
    had = view_reserved(snapshot, "a")
    assert had is not None
    assert (had["status"], had["reason"]) == (True, "QuotaReserved")
    assert view_reserved(snapshot, "gone") is None


# -------------------------------------------------------------------------------------------------- metrics


def values(metrics: list[Metric]) -> dict[tuple[str, ...], float]:
    """By the name of a sample and its labels' values."""
    return {(one.name, *one.labels.values()): one.value for family in metrics for one in family.samples}


def test_metrics_have_the_same_numbers() -> None:
    counts = ScheduleCounts()
    counts.admitted.update(["one", "made-up"])
    counts.preempted["one", "RECLAIMED"] += 1
    found = values(list(queue_metrics(snapshot_of(busy_world()), counts)))
    cell = (FLAVOR, GPU)
    assert found["batuta_queue_nominal", "one", *cell] == 1
    assert found["batuta_queue_used", "one", *cell] == 3
    assert found["batuta_queue_reserved", "one", *cell] == 1
    assert found["batuta_queue_borrowed", "one", *cell] == 2
    assert found["batuta_queue_lent", "two", *cell] == 2
    assert found["batuta_queue_needed", "one", GPU] == 18
    assert found["batuta_queue_weighted_share", "one"] == 400
    assert found["batuta_cohort_nominal", "campus", *cell] == 5
    assert found["batuta_queue_pending", OTHERS] == 1, "queues that nobody set up are one"
    assert found["batuta_queue_admitted_total", "one"] == 1
    assert found["batuta_queue_admitted_total", OTHERS] == 1
    assert found["batuta_queue_preempted_total", "one", "RECLAIMED"] == 1


def test_the_number_of_series_is_bounded() -> None:
    many = quota_of(*(ClusterQueue(f"q{k}", "", gpus(1)) for k in range(3 * MAX_QUEUE_SERIES)))
    snapshot = snapshot_of(busy_world(many))
    found = values(list(queue_metrics(snapshot, ScheduleCounts())))
    named = {labels[0] for name, *labels in found if name == "batuta_queue_pending"}
    assert len(named) == MAX_QUEUE_SERIES + 1
    assert OTHERS in named


@pytest.mark.parametrize("seed", range(3))
def test_a_place_in_a_line_is_that_of_the_line_as_it_is_listed(seed: int) -> None:
    world, chance, seen = busy_world(), Random(seed), set[int]()
    for number in range(60):
        queue, submit_s = chance.choice(["one", "two", "nowhere", ""]), float(chance.randrange(9))
        job = make_job(f"x{number}", 2, queue=queue, submit_s=submit_s, priority=chance.randrange(3))
        apply(world, ev.JobSubmitted(5.0, job))
        if chance.random() < 0.2:
            apply(world, ev.JobWished(5.0, job.id, DesiredState.PARK))
    snapshot = snapshot_of(world)
    lines = [one.waiting for one in (*snapshot.use.queues, *snapshot.use.strangers)]
    for job in snapshot.jobs:
        place = next((line.index(job) for line in lines if job in line), None)
        assert ahead_of(snapshot, job.id) == place
        seen.add(-1 if place is None else place)
    assert len(seen) > 8
