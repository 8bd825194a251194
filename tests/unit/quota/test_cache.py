"""When what was said to a tree of cohorts still holds, and when it has to be looked at again."""

from collections.abc import Callable

import numpy as np
import pytest

from batuta.core import event as ev
from batuta.core.job import DesiredState
from batuta.core.quota import ClusterQueue
from batuta.quota.cache import AdmissionResult, CacheEntry, EndOrder, Fingerprints
from batuta.quota.workload import resolve_queues
from tests.support.quota_stories import Cluster
from tests.support.quotas import gpus, quota_of

PATIENCE_S = 100.0
HERE, ELSEWHERE = 0, 1
NUMBER_OF = {"a": HERE, "b": HERE, "c": ELSEWHERE}


@pytest.fixture
def cluster() -> Cluster:
    """Two jobs of each queue; the first of each runs."""
    made = Cluster(
        quota_of(
            ClusterQueue("a", "team", gpus(2)),
            ClusterQueue("b", "team", gpus(2)),
            ClusterQueue("c", "others", gpus(2)),
        ),
        (16,),
        patience_s=PATIENCE_S,
    )
    for queue in ("c", "a", "b"):
        work_s = 2000.0 if queue == "b" else 1000.0
        made.submit(f"{queue}1", queue, 2, min=2, max=4, work_s=work_s)
    made.cycle()
    for queue in ("c", "a", "b"):
        made.submit(f"{queue}2", queue, 2, work_s=1000.0)
    return made


def look(cluster: Cluster) -> Fingerprints:
    doors = resolve_queues(cluster.world, {})
    return Fingerprints(cluster.world, cluster.now_s, doors, NUMBER_OF, frozenset(), PATIENCE_S)


def remembered(fingerprints: Fingerprints, end_order: EndOrder | None = None) -> CacheEntry:
    rows = fingerprints.rows[HERE]
    answers = AdmissionResult(np.zeros(len(rows), dtype=np.int64), [], [], {}, [], {}, contested=False)
    return CacheEntry(fingerprints.fingerprint[HERE], fingerprints.things(HERE), end_order, answers)


Happening = Callable[[Cluster], None]


@pytest.mark.parametrize(
    "happens",
    [
        lambda cluster: None,
        lambda cluster: cluster.ends("c1"),
        lambda cluster: cluster.submit("c3", "c", 1),
        lambda cluster: cluster.passes(PATIENCE_S / 2),
    ],
    ids=["nothing", "somebody ends elsewhere", "somebody comes elsewhere", "time passes"],
)
def test_answers_hold_while_nothing_changes_in_the_tree(cluster: Cluster, happens: Happening) -> None:
    entries = remembered(look(cluster))
    happens(cluster)
    assert entries.holds(look(cluster), HERE)


@pytest.mark.parametrize(
    "happens",
    [
        lambda cluster: cluster.ends("a2"),
        lambda cluster: cluster.submit("b3", "b", 1),
        lambda cluster: cluster.happens(ev.JobWished(cluster.now_s, "b2", DesiredState.PARK)),
        lambda cluster: cluster.loses("n0"),
        lambda cluster: cluster.passes(PATIENCE_S),
    ],
    ids=["somebody ends", "somebody comes", "somebody is parked", "nodes are lost", "patience is over"],
)
def test_answers_hold_no_more_when_something_changes_in_the_tree(cluster: Cluster, happens: Happening) -> None:
    entries = remembered(look(cluster))
    happens(cluster)
    assert not entries.holds(look(cluster), HERE)


def end_order(first: list[int], later: bool) -> EndOrder:
    """a1 and b1 run, at the places 0 and 1; a2, at place 2, wanted to have ended before the first of them."""
    until = np.zeros(1, dtype=np.int64)
    return EndOrder(np.array([0, 1]), np.array(first), np.array([2]), until, np.array([later]))


def test_answers_that_owe_something_to_the_clock_hold_while_the_same_end_first(cluster: Cluster) -> None:
    # a1 has less to do than b1, and has begun; a2 has as much to do as a1, and has not.
    entries = remembered(look(cluster), end_order([0], later=True))
    cluster.passes(10.0)
    assert entries.holds(look(cluster), HERE)


@pytest.mark.parametrize(
    "before",
    [end_order([1], later=True), end_order([0], later=False)],
    ids=["another one ended first", "it would have ended in time"],
)
def test_answers_that_owe_something_to_the_clock_hold_no_more_when_that_differs(
    cluster: Cluster, before: EndOrder
) -> None:
    entries = remembered(look(cluster), before)
    cluster.passes(10.0)
    assert not entries.holds(look(cluster), HERE)
