"""What a node's device plugin writes about its cards: what each has to give, and which are ill."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batuta.backends.kube import names
from tests.support.kube.cluster_invariants import check_cluster
from tests.unit.backends.kube.binder.things import bind, cluster, message, node, pod

UNITS = 10


def told(*cards: dict[str, Any]) -> str:
    return json.dumps([{"memory": UNITS, "compute": 100, "uuid": "GPU", "illness": ""} | card for card in cards])


def shared(*cards: dict[str, Any], text: str | None = None) -> Any:
    """A node that offers nothing but shares, as its kubelet and its plugin tell."""
    offers = {names.SHARE_MEMORY: "40", names.SHARE_COMPUTE: "400"}
    return node("n", requests=offers, annotations={names.CARDS: told(*cards) if text is None else text})


def share(name: str, units: int, compute: int = 0, on: str = "", card: int | None = None, soft: bool = False) -> Any:
    wanted = {names.SHARE_MEMORY: str(units), names.SHARE_COMPUTE: str(compute)}
    given = {} if card is None else {names.GPUS: str(card)}
    if soft:
        given[names.SHARE_LIMITS] = "soft"
    return pod(name, on=on, requests={key: n for key, n in wanted.items() if n != "0"}, annotations=given)


def cards_of(where: Any, *pods: Any) -> list[tuple[int, ...]]:
    return [binding.gpus for binding in bind(where, *pods).bindings]


def test_a_card_that_is_ill_gets_no_shares() -> None:
    where = cluster(shared({"index": 0, "illness": "Xid 79"}, {"index": 1}))
    assert cards_of(where, share("a", 6), share("b", 4)) == [(1,), (1,)]
    assert message(where, share("c", 1)) == ("0/1 nodes are available: 1 had no single GPU with room for the share")
    check_cluster(where)


def test_a_card_that_nobody_tells_of_is_none() -> None:
    """Given a plugin that came when GPU 0 was lost already, shares go to GPU 1."""
    assert cards_of(cluster(shared({"index": 1})), share("a", 1)) == [(1,)]


def test_to_others_a_card_that_is_ill_is_taken_unless_we_are_on_it() -> None:
    ill = {"index": 0, "illness": "Xid 79"}
    where = cluster(shared(ill, {"index": 1}), share("ours", 2, on="n", card=1))
    assert where.others("n", {"default/ours"}).gpus == (0,)
    still = cluster(shared(ill, {"index": 1}), share("ours", 2, on="n", card=0))
    assert still.others("n", {"default/ours"}).gpus == ()


def test_a_whole_gpu_is_not_one_that_is_ill() -> None:
    ill = told({"index": 0, "illness": "Xid 79"}, {"index": 1})
    where = cluster(node("n", gpu=2, annotations={names.CARDS: ill}))
    assert bind(where, pod("p", gpu=1)).bindings[0].gpus == (1,)


def test_cards_differ_in_what_they_have() -> None:
    where = cluster(shared({"index": 0, "memory": 4}, {"index": 1, "memory": 16}))
    assert cards_of(where, share("large", 12)) == [(1,)]


@pytest.mark.parametrize(("compute", "placed"), [(100, 2), (150, 3), (200, 4)])
def test_a_generous_node_gives_out_more_compute_than_it_has(compute: int, placed: int) -> None:
    where = cluster(shared({"index": 0, "compute": compute}))
    assert len(cards_of(where, *(share(name, 1, 50, soft=True) for name in "abcdef"))) == placed
    check_cluster(where)


@pytest.mark.parametrize("compute", [100, 150, 200])
def test_but_no_more_than_it_has_to_hard_shares(compute: int) -> None:
    where = cluster(shared({"index": 0, "compute": compute}))
    assert len(cards_of(where, *(share(name, 1, 50) for name in "abcdef"))) == 2


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [((60, False), (60, True), True), ((60, False), (61, True), False), ((60, True), (61, False), False)],
)
def test_soft_shares_have_so_many_times_what_hard_ones_leave(
    first: tuple[int, bool], second: tuple[int, bool], fits: bool
) -> None:
    """As in the World: of a card that is promised 150 percent, 60 hard ones leave 40, which are 60."""
    where = cluster(shared({"index": 0, "compute": 150}))
    pods = [share(name, 1, percent, soft=soft) for name, (percent, soft) in zip("ab", (first, second), strict=True)]
    assert len(cards_of(where, *pods)) == 1 + fits


@pytest.mark.parametrize("text", ["", "{", "[]", '[{"index": -1}]', '[{"index": 9999}]', '[{"memory": "x"}]'])
def test_what_cannot_be_read_says_nothing(text: str) -> None:
    """Given no word of the plugin, capacity tells: 400 percent are four cards, of ten units each."""
    where = cluster(shared(text=text))
    assert len(cards_of(where, *(share(name, 10) for name in "abcde"))) == 4


def test_what_is_left_is_right_again_after_shares_come_and_go() -> None:
    """Given a full card, as much fits after a share has gone as it had."""
    first, second = share("a", 6, 60, on="n", card=0), share("b", 4, 40, on="n", card=0)
    where = cluster(shared({"index": 0}), first, second)
    assert not cards_of(where, share("c", 1))
    where.pod_gone("default/b")
    assert cards_of(where, share("c", 4, 40)) == [(0,)]
    check_cluster(where)
