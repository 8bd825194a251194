"""GPUs by number, whole and shared, and how busy they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.binder import Binder, Cluster, Group, Member, Profile, profile_of
from tests.support.kube.cluster_invariants import check_cluster
from tests.unit.backends.kube.binder.things import bind, cluster, gang, message, node, places, pod, single


def holding(name: str, gpus: str, count: int = 1, on: str = "n") -> Any:
    return pod(name, on=on, gpu=count, annotations={names.GPUS: gpus} if gpus else {})


class TestWholeGpus:
    def test_the_lowest_free_numbers_are_given(self) -> None:
        where = cluster(node("n", gpu=4), holding("x", "1"))

        (binding,) = bind(where, pod("p", gpu=2)).bindings

        assert binding.gpus == (0, 2)

    def test_of_those_the_really_least_used_go_first(self) -> None:
        where = cluster(node("n", gpu=4, annotations=utilisation(1000.0, 0.9, 0.5, 0.0, 0.04)))

        assert bind(where, pod("p", gpu=2), now_s=1000.0).bindings[0].gpus == (2, 3)
        assert bind(where, pod("q", gpu=1), now_s=2000.0).bindings[0].gpus == (0,)

    def test_gpus_that_are_held_without_a_number_count_as_the_last_ones(self) -> None:
        where = cluster(node("n", gpu=4), holding("x", "", 2))

        (binding,) = bind(where, pod("p", gpu=2)).bindings

        assert binding.gpus == (0, 1)
        assert where.others("n", {"default/p"}).gpus == (2, 3)

    def test_others_are_all_but_ours(self) -> None:
        where = cluster(
            node("n", gpu=4),
            holding("ours", "0"),
            holding("theirs", "3"),
            pod("web", on="n", cpu=2, memory="1Gi"),
        )

        held = where.others("n", {"default/ours"})

        assert (held.gpus, held.cpus_milli, held.memory_bytes) == ((3,), 2000, 2**30)
        assert where.others("nowhere", set()).gpus == ()

    def test_a_gpu_out_of_order_keeps_its_number(self) -> None:
        """Allocatable says how many may be given; capacity says which numbers there are."""
        where = cluster(node("n", gpu=1, capacity={"nvidia.com/gpu": "2"}), holding("x", "0"))

        assert message(where, pod("p", gpu=1)) == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"

    @pytest.mark.parametrize(
        ("gpus", "why"),
        [
            ((0, 1), ""),
            ((7, 1), "GPU is held or missing: 7"),
            ((0,), "the number of GPUs decided on is not what the pod asks for: 1 instead of 2"),
        ],
    )
    def test_decided_gpus_must_be_there_and_as_many_as_asked_for(self, gpus: tuple[int, ...], why: str) -> None:
        group = Group("g", (Member(pod("p", gpu=2), "n", gpus),))

        assert message(cluster(node("n", gpu=4)), group) == (f"node n: {why}" if why else "")


def shared_node(name: str = "n", cards: int = 2, units: int = 1000, **more: Any) -> Any:
    has = {names.SHARE_MEMORY: str(cards * units), names.SHARE_COMPUTE: str(cards * 100)}
    memory_mib = units * names.SHARE_UNIT_MIB
    return node(name, gpu=cards, requests=has, labels={names.GPU_MEMORY_LABEL: str(memory_mib)}, **more)


def share(name: str, units: int, compute: int = 0, **more: Any) -> Any:
    wanted = {names.SHARE_MEMORY: str(units), names.SHARE_COMPUTE: str(compute)}
    return pod(name, requests={key: value for key, value in wanted.items() if value != "0"}, **more)


def utilisation(time_s: float, *busy: float) -> dict[str, str]:
    gpus = [{"index": index, "utilisation": value} for index, value in enumerate(busy)]
    return {names.UTILISATION: json.dumps({"time": time_s, "gpus": gpus})}


class TestShares:
    def test_a_share_never_spans_two_cards(self) -> None:
        where = cluster(shared_node())
        first = bind(where, share("a", 600), share("b", 600))
        assert sorted(binding.gpus for binding in first.bindings) == [(0,), (1,)]

        why = message(where, share("c", 600))

        assert why == "0/1 nodes are available: 1 had no single GPU with room for the share"

    def test_compute_is_counted_per_card_as_well(self) -> None:
        where = cluster(shared_node(cards=1))

        outcome = bind(where, share("a", 10, 60), share("b", 10, 60))

        assert len(outcome.bindings) == 1

    def test_bin_pack_fills_a_card_and_spread_takes_an_empty_one(self) -> None:
        for order, cards in (("bin_pack", {(0,)}), ("spread", {(0,), (1,)})):
            where = cluster(shared_node())
            profile = profile_of({"resources": 0.0, "gpu_share": 1.0}, {"gpu_share": {"order": order}})
            groups = [single(share(name, 300)) for name in "ab"]

            outcome = Binder(where, profile).schedule(groups, 0.0)

            assert {binding.gpus for binding in outcome.bindings} == cards, order

    def test_a_binder_goes_on_by_another_profile(self) -> None:
        def ordered(order: str) -> Profile:
            return profile_of({"resources": 0.0, "gpu_share": 1.0}, {"gpu_share": {"order": order}})

        binder = Binder(cluster(shared_node(cards=3)), ordered("bin_pack"))
        first = [binder.schedule([single(share(name, 200))], 0.0).bindings[0].gpus for name in "ab"]
        binder.use(ordered("spread"))
        then = [binder.schedule([single(share(name, 200))], 0.0).bindings[0].gpus for name in "cd"]

        assert (first, then) == ([(0,), (0,)], [(1,), (2,)])

    def test_the_chosen_card_is_written_down_and_counts_after_a_restart(self) -> None:
        (binding,) = bind(cluster(shared_node()), single(share("a", 600), load=0.3)).bindings
        assert binding.annotations == {names.GPUS: "0", names.EXPECTED_UTILISATION: "0.3"}

        again = cluster(shared_node(), share("a", 600, on="n", annotations=dict(binding.annotations)))

        assert bind(again, share("b", 600)).bindings[0].gpus == (1,)
        check_cluster(again)

    def test_a_whole_gpu_is_not_one_that_somebody_shares(self) -> None:
        where = cluster(shared_node(), share("a", 100, on="n", annotations={names.GPUS: "0"}))

        assert bind(where, pod("p", gpu=1)).bindings[0].gpus == (1,)
        assert message(where, pod("q", gpu=1)) == (
            "0/1 nodes are available: 1 had too few GPUs that no pod shares or holds"
        )

    def test_a_share_does_not_go_to_a_card_that_is_held_whole(self) -> None:
        where = cluster(shared_node(), holding("x", "0"))

        assert bind(where, share("a", 10)).bindings[0].gpus == (1,)

    def test_a_share_keeps_off_cards_that_unknown_holders_may_have(self) -> None:
        where = cluster(shared_node(), holding("x", "", 2))

        assert not bind(where, share("a", 10)).bindings

    @pytest.mark.parametrize(("loads", "together"), [((0.3, 0.4), True), ((0.4, 0.4), False), ((None, 0.9), False)])
    def test_sharers_who_would_disturb_each_other_get_different_cards(
        self, loads: tuple[float | None, float], together: bool
    ) -> None:
        where = cluster(shared_node())
        first, second = (single(share(name, 100), load=load) for name, load in zip("ab", loads, strict=True))

        outcome = bind(where, first, second)

        assert (len({binding.gpus for binding in outcome.bindings}) == 1) is together

    def test_a_card_that_is_measured_busy_is_not_shared_further(self) -> None:
        busy = shared_node(cards=1, annotations=utilisation(1000.0, 0.8))
        where = cluster(busy, share("a", 100, on="n", annotations={names.GPUS: "0"}))

        assert bind(where, share("b", 100), now_s=1010.0).refusals[0].message == (
            "0/1 nodes are available: 1 had GPUs with room, but too busy to share"
        )
        # The same report says nothing any more once it is old.
        assert bind(where, share("b", 100), now_s=1200.0).bindings

    def test_of_equally_full_cards_the_one_that_is_really_less_used_is_taken(self) -> None:
        where = cluster(shared_node(annotations=utilisation(1000.0, 0.6, 0.1)))

        assert bind(where, share("a", 100), now_s=1010.0).bindings[0].gpus == (1,)

    def test_whoever_decides_on_a_busy_card_knew_no_better_one(self) -> None:
        busy = shared_node(cards=1, annotations=utilisation(1000.0, 0.8))
        where = cluster(busy, share("a", 100, on="n", annotations={names.GPUS: "0"}))

        decided = Group("g", (Member(share("b", 100), "n", (0,)),))

        assert bind(where, decided, now_s=1010.0).bindings

    def test_a_decided_card_is_checked_alone(self) -> None:
        where = cluster(shared_node(), share("a", 900, on="n", annotations={names.GPUS: "0"}))

        refusal = bind(where, Group("g", (Member(share("p", 500), "n", (0,)),))).refusals[0]

        assert refusal.message == "node n: the GPU decided on has no room for the share: 0"


class TestUtilisation:
    def choice(self, *nodes: Any, now_s: float = 1000.0, one: Any = None, **settings: Any) -> str:
        profile = profile_of({"resources": 0.0, "utilisation": 1.0}, {"utilisation": settings})
        outcome = Binder(cluster(*nodes), profile).schedule([single(one or pod("p", gpu=1))], now_s)
        return outcome.bindings[0].node

    def test_the_idle_node_is_better_than_the_busy_one(self) -> None:
        nodes = [node("busy", gpu=2, annotations=utilisation(1000, 0.9, 0.9)), node("unknown", gpu=2)]
        assert self.choice(*nodes) == "unknown"
        assert self.choice(*nodes, node("idle", gpu=2, annotations=utilisation(1000, 0.0, 0.0))) == "idle"

    def test_an_old_report_counts_as_unknown(self) -> None:
        nodes = [node("unknown", gpu=2), node("idle", gpu=2, annotations=utilisation(1000, 0.0, 0.0))]

        assert self.choice(*nodes, now_s=1060.0) == "idle"
        assert self.choice(*nodes, now_s=1100.0) == "unknown"

    def test_a_report_fades_with_its_age(self) -> None:
        nodes = [
            node("older", gpu=1, annotations=utilisation(950, 0.1)),
            node("newer", gpu=1, annotations=utilisation(1000, 0.1)),
        ]

        assert self.choice(*nodes) == "newer"

    def test_only_gpus_that_can_be_had_matter(self) -> None:
        nodes = [
            node("a", gpu=2, annotations=utilisation(1000, 1.0, 0.0)),
            node("b", gpu=2, annotations=utilisation(1000, 0.0, 0.5)),
        ]
        held = [holding("x", "0", on="a"), holding("y", "0", on="b")]

        assert self.choice(*nodes, *held, basic=0.0, allocated=0.0) == "a"

    def test_models_can_be_ranked(self) -> None:
        nodes = [node(name, gpu=1, labels={"nvidia.com/gpu.product": name}) for name in ("old", "new")]

        assert self.choice(*nodes, models={"old": 0.1, "new": 1.0}) == "new"

    @pytest.mark.parametrize("text", ["", "{", '{"gpus": []}', '{"time": 1, "gpus": [{"index": -1}]}', "[]"])
    def test_a_report_that_cannot_be_read_is_none(self, text: str) -> None:
        assert self.choice(node("n", gpu=1, annotations={names.UTILISATION: text})) == "n"

    def test_a_plain_pod_does_not_care(self) -> None:
        nodes = [node("a", annotations=utilisation(1000, 1.0)), node("b")]

        assert self.choice(*nodes, one=pod("web", cpu=1)) == "a"


def test_members_of_a_gang_get_different_gpus() -> None:
    where: Cluster = cluster(node("n", gpu=8))

    outcome = bind(where, gang("g", *(pod(f"p{i}", gpu=2) for i in range(4))))

    assert sorted(gpu for binding in outcome.bindings for gpu in binding.gpus) == list(range(8))
    assert set(places(outcome).values()) == {"n"}
