"""A cycle of the binder: order, gangs, decided places, reservations and refusals."""

from __future__ import annotations

import pytest

from batuta.backends.kube.binder import Binder, Cluster, Group, Member, Within
from tests.support.kube.cluster_invariants import check_cluster
from tests.unit.backends.kube.binder.things import (
    GPU,
    bind,
    cluster,
    gang,
    message,
    node,
    places,
    pod,
    single,
)


def test_a_pod_goes_to_the_only_node_with_room() -> None:
    where = cluster(node("small", cpu=1), node("large", cpu=16))

    assert places(bind(where, pod("p", cpu=4))) == {"p": "large"}


def test_a_refusal_counts_the_nodes_by_reason() -> None:
    taint = {"key": "maintenance", "value": "yes", "effect": "NoSchedule"}
    where = cluster(node("a"), node("b"), node("c", gpu=8, taints=[taint]))

    assert message(where, pod("p", gpu=1)) == (
        "0/3 nodes are available: 2 Insufficient nvidia.com/gpu, 1 had untolerated taint {maintenance: yes}"
    )


def test_without_any_node_the_message_says_so() -> None:
    assert message(cluster(), pod("p")) == "0/0 nodes are available: there are no nodes"


def test_higher_priority_then_longer_waiting_then_name_comes_first() -> None:
    where = cluster(node("n", gpu=1))
    groups = [
        single(pod("late", gpu=1), queued_s=9.0, priority=5),
        single(pod("b", gpu=1), queued_s=1.0, priority=5),
        single(pod("a", gpu=1), queued_s=1.0, priority=5),
        single(pod("poor", gpu=1), queued_s=0.0, priority=1),
    ]

    assert places(bind(where, *groups)) == {"a": "n"}


def test_a_gang_that_does_not_fit_as_a_whole_gets_nothing_and_leaves_room_for_others() -> None:
    where = cluster(node("n1", gpu=2), node("n2", gpu=1))
    four = gang("four", *(pod(f"f{i}", gpu=1) for i in range(4)), priority=9)
    three = gang("three", *(pod(f"t{i}", gpu=1) for i in range(3)))

    outcome = bind(where, four, three)

    assert set(places(outcome)) == {"t0", "t1", "t2"}
    assert [refusal.group for refusal in outcome.refusals] == ["four"]
    assert outcome.refusals[0].message.startswith("3 of 4 members have a place; for the next, 0/2 nodes")
    check_cluster(where)


def test_a_gang_of_which_members_are_missing_waits_and_holds_nothing() -> None:
    where = cluster(node("n", gpu=8))
    waiting = gang("g", *(pod(f"g{i}", gpu=1) for i in range(3)), size=8)

    outcome = bind(where, waiting, pod("other", gpu=8))

    assert places(outcome) == {"other": "n"}
    assert outcome.refusals[0].message == "waits for members: 3 of 8 are there"


def test_a_pod_with_a_scheduling_gate_waits() -> None:
    gated = pod("p", spec={"schedulingGates": [{"name": "quota"}]})

    assert message(cluster(node("n")), gated) == "waits for scheduling gates: default/p (quota)"


def test_a_pod_that_is_being_deleted_gets_no_node_and_neither_does_its_gang() -> None:
    group = gang("g", pod("a"), pod("b", terminating=True))

    assert message(cluster(node("n")), group) == "is being deleted: default/b"


class TestDecidedPlaces:
    def test_a_decided_member_gets_exactly_its_node_and_gpus(self) -> None:
        where = cluster(node("a", gpu=8), node("b", gpu=8))
        group = Group("g", (Member(pod("p", gpu=2), "b", (5, 7)),))

        (binding,) = bind(where, group).bindings

        assert (binding.node, binding.gpus) == ("b", (5, 7))
        assert binding.annotations == {"batuta.dev/gpus": "5,7"}

    def test_a_gpu_that_somebody_holds_refuses_the_group_with_the_node(self) -> None:
        held = pod("x", on="a", gpu=1, annotations={"batuta.dev/gpus": "5"})
        where = cluster(node("a", gpu=8), held)
        group = Group("g", (Member(pod("p", gpu=2), "a", (5, 7)),))

        (refusal,) = bind(where, group).refusals

        assert refusal.message == "node a: GPU is held or missing: 5"

    def test_two_members_of_one_group_cannot_have_the_same_gpu(self) -> None:
        where = cluster(node("a", gpu=8))
        group = Group("g", tuple(Member(pod(f"p{i}", gpu=1), "a", (3,)) for i in range(2)))

        assert not bind(where, group).bindings
        check_cluster(where)

    def test_a_decided_node_that_has_gone_refuses(self) -> None:
        group = Group("g", (Member(pod("p"), "gone"),))

        assert message(cluster(node("a")), group) == "node gone: there is no such node"

    def test_decided_and_open_members_share_one_fate(self) -> None:
        where = cluster(node("a", gpu=1), node("b", gpu=1))
        members = (Member(pod("p0", gpu=1), "a", (0,)), Member(pod("p1", gpu=1)), Member(pod("p2", gpu=1)))

        outcome = bind(where, Group("g", members))

        assert not outcome.bindings
        assert not where.assumed


class TestReservations:
    def test_what_was_bound_counts_in_the_next_cycle(self) -> None:
        where = cluster(node("n", gpu=1))
        binder = Binder(where)
        binder.schedule([single(pod("first", gpu=1))], 0.0)

        outcome = binder.schedule([single(pod("second", gpu=1))], 1.0)

        assert outcome.refusals[0].message == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"

    def test_a_pod_on_its_way_is_not_placed_again(self) -> None:
        binder = Binder(cluster(node("n")))
        binder.schedule([single(pod("p"))], 0.0)

        assert binder.schedule([single(pod("p"))], 1.0).refusals[0].message == "has a node already: default/p (n)"

    def test_an_echo_confirms_and_no_deadline_applies_any_more(self) -> None:
        where = cluster(node("n", gpu=1))
        binder = Binder(where)
        binder.schedule([single(pod("p", gpu=1))], 0.0)
        where.pod_set(pod("p", on="n", gpu=1, annotations={"batuta.dev/gpus": "0"}))

        assert where.tick(1e9) == []
        assert where.node_of("default/p") == "n"
        check_cluster(where)

    def test_an_old_echo_without_a_node_does_not_take_the_reservation_away(self) -> None:
        where = cluster(node("n", gpu=1))
        Binder(where).schedule([single(pod("p", gpu=1))], 0.0)

        where.pod_set(pod("p", gpu=1))

        assert where.node_of("default/p") == "n"

    def test_a_lost_echo_frees_the_place_after_the_deadline(self) -> None:
        where = cluster(node("n", gpu=1))
        binder = Binder(where)
        binder.schedule([single(pod("lost", gpu=1))], 0.0)

        outcome = binder.schedule([single(pod("next", gpu=1))], 61.0)

        assert places(outcome) == {"next": "n"}
        check_cluster(where)

    def test_a_failed_bind_gives_its_place_back(self) -> None:
        where = cluster(node("n", gpu=1))
        binder = Binder(where)
        binder.schedule([single(pod("p", gpu=1))], 0.0)

        where.forget("default/p")

        assert places(binder.schedule([single(pod("q", gpu=1))], 1.0)) == {"q": "n"}

    def test_forget_does_not_touch_a_pod_that_is_really_there(self) -> None:
        where = cluster(node("n"), pod("p", on="n", cpu=1))

        where.forget("default/p")

        assert where.node_of("default/p") == "n"

    def test_a_pod_that_was_made_again_under_its_name_starts_anew(self) -> None:
        where = cluster(node("n", gpu=1))
        binder = Binder(where)
        binder.schedule([single(pod("p", gpu=1, uid="old"))], 0.0)
        where.pod_set(pod("p", gpu=1, uid="new"))

        assert places(binder.schedule([single(pod("p", gpu=1, uid="new"))], 1.0)) == {"p": "n"}


class TestWithin:
    @pytest.fixture
    def racks(self) -> Cluster:
        """Rack r1 has 2 + 1 GPUs, rack r2 has 2 + 2."""
        sizes = {"a": ("r1", 2), "b": ("r1", 1), "c": ("r2", 2), "d": ("r2", 2)}
        return cluster(
            *(node(name, gpu=gpus, labels={"batuta.dev/rack": rack}) for name, (rack, gpus) in sizes.items())
        )

    def test_a_required_rack_holds_all_members(self, racks: Cluster) -> None:
        group = gang("g", *(pod(f"p{i}", gpu=1) for i in range(4)), within=Within("rack", "Required"))

        assert set(places(bind(racks, group)).values()) == {"c", "d"}

    def test_the_tightest_rack_is_taken_first(self, racks: Cluster) -> None:
        group = gang("g", *(pod(f"p{i}", gpu=1) for i in range(3)), within=Within("rack"))

        assert set(places(bind(racks, group)).values()) == {"a", "b"}

    def test_a_required_level_without_room_refuses_with_numbers(self, racks: Cluster) -> None:
        group = gang("g", *(pod(f"p{i}", gpu=1) for i in range(5)), within=Within("rack", "Required"))

        (refusal,) = bind(racks, group).refusals

        assert refusal.message.startswith("no single rack has room for all 5 members; the most is 4")
        check_cluster(racks)

    def test_a_preferred_level_without_room_spills_over(self, racks: Cluster) -> None:
        group = gang("g", *(pod(f"p{i}", gpu=1) for i in range(7)), within=Within("rack", "Preferred"))

        assert len(places(bind(racks, group))) == 7

    def test_the_same_rack_name_in_two_zones_is_two_racks(self) -> None:
        zone, rack = "topology.kubernetes.io/zone", "batuta.dev/rack"
        where = cluster(
            node("a", gpu=1, labels={zone: "z1", rack: "r"}), node("b", gpu=1, labels={zone: "z2", rack: "r"})
        )
        group = gang("g", pod("p0", gpu=1), pod("p1", gpu=1), within=Within("rack", "Required"))

        assert not bind(where, group).bindings

    def test_an_unknown_level_is_named(self, racks: Cluster) -> None:
        group = gang("g", pod("p"), within=Within("galaxy", "Required"))

        assert message(racks, group) == "the topology has no level galaxy; it has zone, rack, node"


def test_a_full_cluster_refuses_many_groups_alike() -> None:
    where = cluster(node("n", gpu=1))

    outcome = bind(where, *(pod(f"p{i}", gpu=1) for i in range(20)))

    assert len(outcome.bindings) == 1
    assert {refusal.group for refusal in outcome.refusals} | set(places(outcome)) == {f"p{i}" for i in range(20)}
    assert {refusal.message for refusal in outcome.refusals} == {
        f"0/1 nodes are available: 1 Insufficient {GPU}",
    }
