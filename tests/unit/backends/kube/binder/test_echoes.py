"""What the API server says of pods after they were bound: most of it changes nothing that is counted."""

from __future__ import annotations

from typing import Any

from batuta.backends.kube import names, objects
from tests.support.kube.cluster_invariants import check_cluster
from tests.unit.backends.kube.binder.things import bind, cluster, node, places, pod

ZONE = {"topology.kubernetes.io/zone": "a"}
GPUS = {names.GPUS: "0"}


def near(**labels: str) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def shown(name: str, **more: Any) -> objects.Pod:
    """A pod of one GPU as it is shown once it is bound to n1."""
    return pod(name, on="n1", gpu=1, annotations=GPUS, **more)


def test_no_node_is_looked_at_again_when_a_pod_is_shown_bound_and_then_running() -> None:
    there = cluster(node("n1", gpu=8))
    bind(there, pod("p", gpu=1))
    before = there.use_log.end

    there.pod_set(shown("p", labels=ZONE))
    there.pod_set(shown("p", labels=ZONE, phase="Running"))

    assert there.use_log.end == before
    assert not there.assumed
    check_cluster(there)


def test_a_pod_that_turns_out_to_hold_something_else_is_counted_again() -> None:
    there = cluster(node("n1", gpu=2))
    bind(there, pod("p", gpu=1))

    there.pod_set(pod("p", on="n1", gpu=2, annotations={names.GPUS: "0,1"}))

    assert there.others("n1", ours=()).gpus == (0, 1)
    check_cluster(there)


def test_labels_that_come_with_the_binding_count_for_whoever_asks_later() -> None:
    there = cluster(node("n1", gpu=8), node("n2", gpu=8))
    there.assume(pod("p", gpu=1), "n1", (0,), deadline_s=60.0)
    there.pod_set(shown("p", labels={"app": "db"}))

    assert places(bind(there, pod("friend", spec=near(app="db")))) == {"friend": "n1"}


def test_labels_that_come_with_the_binding_count_for_whoever_has_asked_before() -> None:
    there = cluster(node("n1", gpu=8), node("n2", gpu=8), pod("other", on="n2", labels={"app": "db"}))
    friend = pod("friend", spec=near(app="db", tier="1"))
    assert not bind(there, friend).bindings
    there.assume(pod("p", gpu=1), "n1", (0,), deadline_s=60.0)

    there.pod_set(shown("p", labels={"app": "db", "tier": "1"}))

    assert places(bind(there, friend)) == {"friend": "n1"}
    check_cluster(there)


def test_every_assumption_ends_in_its_own_time() -> None:
    there = cluster(node("n1", gpu=8))
    for name, deadline_s in (("late", 20.0), ("soon", 5.0), ("shown", 6.0)):
        there.assume(pod(name, gpu=1), "n1", (0,), deadline_s)
    there.pod_set(shown("shown"))

    assert [there.tick(now_s) for now_s in (4.0, 5.0, 6.0, 19.0, 20.0)] == [
        [],
        ["default/soon"],
        [],
        [],
        ["default/late"],
    ]
    assert there.node_of("default/shown") == "n1"
