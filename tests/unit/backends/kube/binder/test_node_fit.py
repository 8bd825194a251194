"""Resources, taints, cordons, node affinity and host ports: tables of given, when and then."""

from __future__ import annotations

from typing import Any

import pytest

from batuta.backends.kube.binder import Binder, profile_of
from tests.support.kube.cluster_invariants import check_cluster
from tests.unit.backends.kube.binder.things import bind, cluster, message, node, places, pod, single

NO_MATCH = "didn't match the pod's node affinity/selector"


def refused(text: str) -> str:
    return f"0/1 nodes are available: 1 {text}"


class TestResources:
    @pytest.mark.parametrize(
        ("has", "asks", "why"),
        [
            ({"cpu": 2}, {"cpu": 2}, ""),
            ({"cpu": 2}, {"cpu": "2001m"}, "Insufficient cpu"),
            ({"memory": "1Gi"}, {"memory": "1025Mi"}, "Insufficient memory"),
            ({}, {"gpu": 1}, "Insufficient nvidia.com/gpu"),
            ({"pods": 0}, {}, "Too many pods"),
            ({"requests": {"example.com/x": "3"}}, {"requests": {"example.com/x": "3"}}, ""),
            ({}, {"requests": {"example.com/x": "3"}}, "Insufficient example.com/x"),
            ({}, {"requests": {"ephemeral-storage": "1Gi"}}, "Insufficient ephemeral-storage"),
            ({}, {"requests": {"hugepages-2Mi": "2Mi"}}, "Insufficient hugepages-2Mi"),
        ],
    )
    def test_a_node_must_have_what_is_requested(self, has: Any, asks: Any, why: str) -> None:
        assert message(cluster(node("n", **has)), pod("p", **asks)) == (refused(why) if why else "")

    def test_a_node_that_lacks_two_things_counts_for_both(self) -> None:
        assert message(cluster(node("n")), pod("p", cpu=99, gpu=1)) == (
            "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu"
        )

    @pytest.mark.parametrize(
        ("phase", "terminating", "room"),
        [
            ("Running", False, False),
            ("Running", True, False),
            ("Succeeded", False, True),
            ("Failed", False, True),
        ],
    )
    def test_pods_of_other_schedulers_hold_what_they_asked_for_until_they_end(
        self, phase: str, terminating: bool, room: bool
    ) -> None:
        other = pod("other", on="n", gpu=1, phase=phase, terminating=terminating)
        where = cluster(node("n", gpu=1), other)

        assert bool(bind(where, pod("p", gpu=1)).bindings) is room

    def test_an_overbooked_node_still_takes_pods_that_ask_for_nothing(self) -> None:
        where = cluster(node("n", cpu=1), pod("other", on="n", cpu=5))

        assert places(bind(where, pod("p"))) == {"p": "n"}

    def test_a_pod_that_is_known_before_its_node_counts_when_the_node_comes(self) -> None:
        where = cluster(pod("other", on="n", gpu=1), node("n", gpu=1))

        assert message(where, pod("p", gpu=1)) == refused("Insufficient nvidia.com/gpu")

    def test_a_node_that_goes_and_comes_back_has_its_pods_again(self) -> None:
        where = cluster(node("n", gpu=1), pod("other", on="n", gpu=1))
        where.node_gone("n")
        where.node_set(node("n", gpu=1))

        assert message(where, pod("p", gpu=1)) == refused("Insufficient nvidia.com/gpu")
        check_cluster(where)

    def test_gpu_pods_are_packed_and_plain_pods_keep_away_from_gpus(self) -> None:
        where = cluster(node("plain"), node("empty", gpu=8), node("used", gpu=8), pod("other", on="used", gpu=4))

        assert places(bind(where, pod("train", gpu=1), pod("web", cpu=1))) == {
            "train": "used",
            "web": "plain",
        }

    def test_the_order_spread_does_the_opposite(self) -> None:
        where = cluster(node("used", cpu=8), node("empty", cpu=8), pod("other", on="used", cpu=4))
        profile = profile_of({"resources": 1.0}, {"resources": {"order": "spread"}})

        assert places(Binder(where, profile).schedule([single(pod("p", cpu=1))], 0.0)) == {"p": "empty"}


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect}


class TestTaints:
    @pytest.mark.parametrize(
        ("tolerations", "fits"),
        [
            ([], False),
            ([{"key": "team", "operator": "Exists"}], True),
            ([{"key": "team", "value": "a"}], True),
            ([{"key": "team", "value": "b"}], False),
            ([{"key": "other", "operator": "Exists"}], False),
            ([{"operator": "Exists"}], True),
            ([{"key": "team", "operator": "Exists", "effect": "NoExecute"}], False),
            ([{"key": "team", "operator": "Exists", "effect": "NoSchedule"}], True),
            ([{"key": "team", "operator": "Gt", "value": "a"}], False),
        ],
    )
    def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(self, tolerations: Any, fits: bool) -> None:
        where = cluster(node("n", taints=[taint("team", "a")]))

        why = message(where, pod("p", spec={"tolerations": tolerations}))

        assert why == ("" if fits else refused("had untolerated taint {team: a}"))

    def test_no_execute_keeps_pods_away_too(self) -> None:
        where = cluster(node("n", taints=[taint("gone", effect="NoExecute")]))

        assert message(where, pod("p")) == refused("had untolerated taint {gone}")

    def test_prefer_no_schedule_only_makes_others_better(self) -> None:
        soft = node("soft", taints=[taint("busy", effect="PreferNoSchedule")])

        assert places(bind(cluster(soft, node("free")), pod("p"))) == {"p": "free"}
        assert places(bind(cluster(soft), pod("p"))) == {"p": "soft"}

    def test_a_taint_that_comes_later_is_seen(self) -> None:
        where = cluster(node("n"))
        binder = Binder(where)
        assert binder.schedule([single(pod("first"))], 0.0).bindings

        where.node_set(node("n", taints=[taint("new")]))

        assert not binder.schedule([single(pod("second"))], 1.0).bindings


class TestUnschedulable:
    @pytest.mark.parametrize(
        ("tolerations", "fits"),
        [
            ([], False),
            ([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}], True),
            ([{"operator": "Exists"}], True),
            ([{"key": "other", "operator": "Exists"}], False),
        ],
    )
    def test_a_cordoned_node_takes_only_pods_that_tolerate_it(self, tolerations: Any, fits: bool) -> None:
        where = cluster(node("n", unschedulable=True))

        assert message(where, pod("p", spec={"tolerations": tolerations})) == (
            "" if fits else refused("was unschedulable")
        )


def affinity(*terms: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


class TestNodeAffinity:
    @pytest.mark.parametrize(
        ("spec", "fits"),
        [
            ({"nodeSelector": {"disk": "ssd"}}, True),
            ({"nodeSelector": {"disk": "hdd"}}, False),
            ({"nodeSelector": {"none": ""}}, False),
            (affinity({"matchExpressions": [expression("disk", "In", "hdd", "ssd")]}), True),
            (affinity({"matchExpressions": [expression("disk", "NotIn", "ssd")]}), False),
            (affinity({"matchExpressions": [expression("none", "NotIn", "ssd")]}), True),
            (affinity({"matchExpressions": [expression("disk", "Exists")]}), True),
            (affinity({"matchExpressions": [expression("disk", "DoesNotExist")]}), False),
            (affinity({"matchExpressions": [expression("size", "Gt", "9")]}), True),
            (affinity({"matchExpressions": [expression("size", "Lt", "10")]}), False),
            (affinity({"matchExpressions": [expression("disk", "Gt", "1")]}), False),
            (affinity({"matchExpressions": [expression("size", "Gt", "x")]}), False),
            (affinity({"matchExpressions": [expression("size", "Like", "1")]}), False),
            (affinity({"matchFields": [expression("metadata.name", "In", "n")]}), True),
            (affinity({"matchFields": [expression("metadata.name", "NotIn", "n")]}), False),
            (affinity({"matchFields": [expression("metadata.uid", "In", "n")]}), False),
            # Terms are alternatives, conditions of a term hold together, and an empty term matches nothing.
            (affinity({"matchExpressions": [expression("disk", "In", "hdd")]}, {}), False),
            (
                affinity(
                    {"matchExpressions": [expression("disk", "In", "hdd")]},
                    {"matchExpressions": [expression("size", "Exists")]},
                ),
                True,
            ),
            (
                affinity({"matchExpressions": [expression("disk", "Exists"), expression("none", "Exists")]}),
                False,
            ),
            (affinity({}), False),
        ],
    )
    def test_labels_and_names_of_nodes_are_compared_as_the_api_says(self, spec: Any, fits: bool) -> None:
        where = cluster(node("n", labels={"disk": "ssd", "size": "10"}))

        assert message(where, pod("p", spec=spec)) == ("" if fits else refused(NO_MATCH))

    def test_preferred_terms_choose_among_nodes_that_will_do(self) -> None:
        preferred = [
            {"weight": 10, "preference": {"matchExpressions": [expression("disk", "In", "ssd")]}},
            {"weight": 90, "preference": {"matchExpressions": [expression("zone", "In", "z2")]}},
        ]
        spec = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}
        where = cluster(node("a", labels={"disk": "ssd"}), node("b", labels={"zone": "z2"}), node("c"))

        assert places(bind(where, pod("p", spec=spec))) == {"p": "b"}


def with_port(port: int, ip: str = "", protocol: str = "TCP") -> dict[str, Any]:
    ports = [{"containerPort": 1, "hostPort": port, "hostIP": ip, "protocol": protocol}]
    return {"containers": [{"name": "c", "ports": ports}]}


class TestHostPorts:
    @pytest.mark.parametrize(
        ("wanted", "fits"),
        [
            (with_port(80), False),
            (with_port(81), True),
            (with_port(80, protocol="UDP"), True),
            (with_port(80, ip="10.0.0.9"), False),
            (with_port(0), True),
        ],
    )
    def test_a_port_in_use_on_all_addresses_cannot_be_had_again(self, wanted: Any, fits: bool) -> None:
        where = cluster(node("n"), pod("other", on="n", spec=with_port(80)))

        assert message(where, pod("p", spec=wanted)) == (
            "" if fits else refused("didn't have the requested host ports free")
        )

    def test_different_addresses_do_not_clash(self) -> None:
        where = cluster(node("n"), pod("other", on="n", spec=with_port(80, ip="10.0.0.1")))

        assert places(bind(where, pod("p", spec=with_port(80, ip="10.0.0.2")))) == {"p": "n"}

    def test_two_pods_of_one_cycle_do_not_get_the_same_port(self) -> None:
        where = cluster(node("a"), node("b"))

        outcome = bind(where, *(pod(f"p{i}", spec=with_port(80)) for i in range(3)))

        assert sorted(places(outcome).values()) == ["a", "b"]
        check_cluster(where)
