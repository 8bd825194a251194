"""Shares of GPUs by a real kubelet: the GPUs are virtual, everything else is what runs on a node."""

from batuta.backends.kube import names
from batuta.gpu.device_plugin.inventory import Resource
from batuta.gpu.vgpu.inject import FaultSpec, inject
from tests.kube.device_plugin.shares import ShareNode, SharePods

OUT_OF_MEMORY = 2


def uuid_of(node: ShareNode, card: int) -> str:
    return node.gpus.read()[card].uuid


def test_a_node_offers_its_cards_in_units(share_node: ShareNode) -> None:
    """Given two cards of 15 GiB, the kubelet counts 60 units of memory and 100 of compute for each."""
    share_node.wait_for_offer(120, 200)
    assert [(card["memory"], card["compute"], card["illness"]) for card in share_node.cards()] == [
        (60, 100, ""),
        (60, 100, ""),
    ]


def test_a_share_is_of_the_card_that_was_decided_on_and_holds(share_node: ShareNode, pods: SharePods) -> None:
    """Given a pod that asks for 2 GiB and 30 %, its program sees one GPU of 2 GiB, and gets no more."""
    pods.submit("a", units=8, compute=30)
    seen = pods.runs("a")
    card = uuid_of(share_node, pods.card("a"))
    assert (seen["visible"], seen["gpus"], seen["total_mib"]) == (card, 1, 2048)
    assert (seen["half"], seen["more"]) == (0, OUT_OF_MEMORY)
    assert seen["limits"] == f"device {card} memory_mib=2048 compute_percent=30 weight=30"
    # and it may write what it wants of the card, but not what it was granted
    assert not seen["cards"].pop(card)
    assert list(seen["cards"].values()).count(True) == 1
    given = pods.units("a")
    assert {resource: len(units) for resource, units in given.items()} == {
        Resource.MEMORY: 8,
        Resource.COMPUTE: 30,
    }
    assert {unit.split("/")[0] for units in given.values() for unit in units} == {card}


def test_a_job_has_a_soft_share(share_node: ShareNode, pods: SharePods) -> None:
    """Given a UnifiedJob that shares, with soft limits, its pod may have more while its card is idle."""
    name = pods.submit_job("shared", units=8, compute=30, annotations={names.SHARE_LIMITS: "soft"})
    seen = pods.runs(name)
    card = uuid_of(share_node, pods.card(name))
    assert seen["limits"] == f"device {card} memory_mib=2048 soft_compute_percent=30 weight=30"
    assert seen["more"] == OUT_OF_MEMORY


def test_a_pod_for_which_no_card_was_decided_on_is_refused(share_node: ShareNode, pods: SharePods) -> None:
    pods.submit("stray", units=4, on=share_node.node.name)
    assert "no scheduler has decided on a GPU for" in pods.fails("stray")


def test_after_a_restart_of_the_kubelet_pods_go_on_and_new_ones_start(share_node: ShareNode, pods: SharePods) -> None:
    pods.submit("before", units=8, compute=20)
    pods.runs("before")
    held = pods.units("before")
    share_node.plugin.is_watched_after(share_node.node.restart_kubelet)
    share_node.wait_for_offer(120, 200)
    pods.submit("after", units=8, compute=20)
    pods.runs("after")
    assert pods.units("before") == held
    assert pods.get("before")["status"]["containerStatuses"][0]["restartCount"] == 0
    for resource in Resource:
        assert not set(held[resource]) & set(pods.units("after")[resource])


def test_after_a_restart_of_the_plugin_nothing_is_given_twice(share_node: ShareNode, pods: SharePods) -> None:
    """Given a card that is three quarters full, only pods that fit beside run after the plugin was killed."""
    for name in ("a", "b"):
        pods.submit(name, units=45, compute=10)
    assert {pods.runs(name)["visible"] for name in ("a", "b")} == {uuid_of(share_node, card) for card in (0, 1)}
    share_node.plugin.is_watched_after(share_node.plugin.restart)
    share_node.wait_for_offer(120, 200)
    for name in ("c", "d"):
        pods.submit(name, units=15, compute=10)
    for name in ("c", "d"):
        pods.runs(name)
    given = [unit for name in "abcd" for unit in pods.units(name)[Resource.MEMORY]]
    assert len(given) == len(set(given)) == 120


def test_nothing_is_given_of_a_card_that_is_ill(share_node: ShareNode, pods: SharePods) -> None:
    """Given a card that fell off the bus, the node offers the other one, and shares go there."""
    inject(share_node.gpus.path, 0, FaultSpec(xid=79))
    share_node.wait_for_offer(60, 100)
    pods.submit("a", units=8, compute=10)
    assert pods.runs("a")["visible"] == uuid_of(share_node, 1)
    assert [bool(card["illness"]) for card in share_node.cards()] == [True, False]
    inject(share_node.gpus.path, 0, FaultSpec(heal=True))
