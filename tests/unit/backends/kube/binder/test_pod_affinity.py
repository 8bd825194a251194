"""Pods that want to be near others, away from them, or spread evenly."""

from __future__ import annotations

from typing import Any

import pytest

from batuta.backends.kube.binder import Binder, Cluster
from tests.support.kube.cluster_invariants import check_cluster
from tests.unit.backends.kube.binder.things import bind, cluster, gang, message, node, places, pod, single

HOST = "kubernetes.io/hostname"


def term(app: str | None = "db", key: str = "zone", **more: Any) -> dict[str, Any]:
    selector = {} if app is None else {"labelSelector": {"matchLabels": {"app": app}}}
    return {"topologyKey": key, **selector, **more}


def near(*terms: Any) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def apart(*terms: Any) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def app(name: str, kind: str, on: str = "", **more: Any) -> Any:
    return pod(name, on=on, labels={"app": kind}, **more)


@pytest.fixture
def zones() -> Cluster:
    """Nodes a1 and a2 in zone a, b1 in zone b, x without a zone; a database on a1."""
    return cluster(
        node("a1", labels={"zone": "a"}),
        node("a2", labels={"zone": "a"}),
        node("b1", labels={"zone": "b"}),
        node("x"),
        app("db", "db", on="a1"),
    )


def nodes_for(where: Cluster, spec: Any, **more: Any) -> set[str]:
    """Nodes on which a pod can be placed, found by blocking each that is chosen."""
    found = set()
    for number in range(9):
        outcome = bind(where, pod(f"probe{number}", spec=spec, **more))
        if not outcome.bindings:
            break
        (binding,) = outcome.bindings
        where.forget(binding.key)
        found.add(binding.node)
        where.pod_set(pod(f"full{number}", on=binding.node, cpu=8))
        spec = {**spec, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    return found


@pytest.mark.parametrize(
    ("spec", "namespace", "expected"),
    [
        (near(term()), "default", {"a1", "a2"}),
        (near(term(key=HOST)), "default", {"a1"}),
        (near(term(), term(key=HOST)), "default", {"a1"}),
        (near(term("none")), "default", set()),
        (near(term(None)), "default", set()),
        (apart(term()), "default", {"b1", "x"}),
        (apart(term(key=HOST)), "default", {"a2", "b1", "x"}),
        # A term means its own namespace unless it names others.
        (near(term()), "other", set()),
        (near(term(namespaces=["default"])), "other", {"a1", "a2"}),
        (near(term(namespaceSelector={})), "other", {"a1", "a2"}),
        (near(term(namespaceSelector={"matchLabels": {"team": "x"}})), "other", {"a1", "a2"}),
        (near(term(namespaceSelector={"matchLabels": {"team": "y"}})), "other", set()),
    ],
)
def test_required_terms_choose_nodes(zones: Cluster, spec: Any, namespace: str, expected: set[str]) -> None:
    zones.namespace_set("default", {"team": "x"})

    assert nodes_for(zones, spec, namespace=namespace) == expected


def test_pods_that_are_there_may_want_to_be_left_alone() -> None:
    hermit = pod("hermit", on="a", labels={"app": "hermit"}, spec=apart(term("noisy", HOST)))
    where = cluster(node("a"), hermit)

    assert message(where, app("n", "noisy")) == (
        "0/1 nodes are available: 1 didn't satisfy existing pods' anti-affinity rules"
    )
    assert places(bind(where, app("q", "quiet"))) == {"q": "a"}

    where.pod_gone("default/hermit")

    assert places(bind(where, app("n", "noisy"))) == {"n": "a"}
    check_cluster(where)


def test_the_first_of_a_kind_may_go_anywhere_and_the_next_follow_it() -> None:
    where = cluster(*(node(f"{zone}{i}", cpu=1, labels={"zone": zone}) for zone in "ab" for i in range(2)))
    members = [pod(f"p{i}", cpu=1, labels={"app": "web"}, spec={**near(term("web"))}) for i in range(3)]

    outcome = bind(where, *members)

    assert len({node_name[0] for node_name in places(outcome).values()}) == 1
    assert len(outcome.bindings) == 2, "the zone has room for two"


def test_members_of_one_gang_keep_apart_from_each_other() -> None:
    where = cluster(node("a"), node("b"))
    members = [pod(f"p{i}", labels={"app": "db"}, spec=apart(term("db", HOST))) for i in range(3)]

    assert set(places(bind(where, gang("two", *members[:2]))).values()) == {"a", "b"}
    assert message(where, members[2]) == "0/2 nodes are available: 2 didn't match pod anti-affinity rules"


def spread(skew: int = 1, key: str = "zone", **more: Any) -> dict[str, Any]:
    one = {"topologyKey": key, "maxSkew": skew, "labelSelector": {"matchLabels": {"app": "web"}}, **more}
    return {"topologySpreadConstraints": [one]}


class TestSpread:
    def test_pods_lie_evenly_over_domains(self) -> None:
        where = cluster(*(node(f"{zone}{i}", labels={"zone": zone}) for zone in "ab" for i in range(2)))
        binder = Binder(where)
        pods = [pod(f"p{i}", labels={"app": "web"}, spec=spread()) for i in range(6)]

        outcome = binder.schedule([single(one) for one in pods], 0.0)

        zones = [name[0] for name in places(outcome).values()]
        assert (zones.count("a"), zones.count("b")) == (3, 3)

    @pytest.mark.parametrize(
        ("more", "fits"),
        [
            ({}, False),
            ({"maxSkew": 2}, True),
            ({"whenUnsatisfiable": "ScheduleAnyway"}, True),
            ({"labelSelector": {"matchLabels": {"app": "other"}}}, True),
            # Narrowed by the pod's own value of a label, the constraint does not see the pods that are there.
            ({"matchLabelKeys": ["version"]}, True),
        ],
    )
    def test_a_domain_that_is_ahead_gets_no_more(self, more: Any, fits: bool) -> None:
        where = cluster(node("a", labels={"zone": "a"}), node("b", labels={"zone": "b"}, cpu=0), app("w", "web", "a"))
        one = pod("p", cpu=1, labels={"app": "web", "version": "2"}, spec=_merged(spread(), more))

        assert bool(bind(where, one).bindings) is fits

    def test_too_few_domains_count_as_one_that_is_empty(self) -> None:
        where = cluster(node("a", labels={"zone": "a"}), app("w", "web", "a"))

        assert bind(where, pod("p", labels={"app": "web"}, spec=spread())).bindings
        assert not bind(where, pod("q", labels={"app": "web"}, spec=spread(minDomains=2))).bindings

    def test_pods_that_are_about_to_go_do_not_count(self) -> None:
        nodes = [node("a", labels={"zone": "a"}), node("b", labels={"zone": "b"}, cpu=0)]
        where = cluster(*nodes, app("w", "web", "a", terminating=True))

        assert bind(where, pod("p", cpu=1, labels={"app": "web"}, spec=spread())).bindings

    def test_nodes_that_the_pod_may_not_have_are_no_domains_unless_affinity_is_ignored(self) -> None:
        nodes = [node("a", labels={"zone": "a", "ok": "yes"}), node("b", labels={"zone": "b"})]
        where = cluster(*nodes, app("w", "web", "a"))
        selector = {"nodeSelector": {"ok": "yes"}}

        assert bind(where, pod("p", labels={"app": "web"}, spec={**spread(), **selector})).bindings
        ignoring = spread(skew=1, nodeAffinityPolicy="Ignore")
        assert not bind(where, pod("q", labels={"app": "web"}, spec={**ignoring, **selector})).bindings

    def test_nodes_with_taints_are_domains_unless_taints_are_honored(self) -> None:
        taint = {"key": "k", "value": "", "effect": "NoSchedule"}
        nodes = [node("a", labels={"zone": "a"}), node("b", labels={"zone": "b"}, taints=[taint])]
        where = cluster(*nodes, app("w", "web", "a"))

        assert not bind(where, pod("p", labels={"app": "web"}, spec=spread())).bindings
        assert bind(where, pod("q", labels={"app": "web"}, spec=spread(nodeTaintsPolicy="Honor"))).bindings

    def test_a_node_without_the_label_will_not_do(self) -> None:
        assert message(cluster(node("x")), pod("p", labels={"app": "web"}, spec=spread())) == (
            "0/1 nodes are available: 1 didn't have the label of a topology spread constraint"
        )


def _merged(spec: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {"topologySpreadConstraints": [{**spec["topologySpreadConstraints"][0], **more}]}
