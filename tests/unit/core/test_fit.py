"""Which nodes suit a job: given labels and taints, then these do."""

from typing import Any

import pytest

from batuta.core.arrays import with_own_containers
from batuta.core.cluster import Node, NodeTerm, Operator, Requirement, tolerates
from batuta.core.node_table import NodeTable
from tests.support.worlds import make_job

NODES = (
    Node("old", 4, labels=(("zone", "x"), ("gb", "16"))),
    Node("new", 4, labels=(("zone", "y"), ("gb", "80"))),
    Node("bare", 4),
    Node("odd", 4, labels=(("gb", "many"), ("zone", ""))),
)


def suited(*nodes: Node, **wishes: Any) -> list[str]:
    table = NodeTable()
    for node in nodes:
        table.add(node)
    found = table.matching(make_job("j", **wishes))
    return [node.name for i, node in enumerate(nodes) if found >> i & 1]


def needs(key: str, operator: Operator, *values: str) -> NodeTerm:
    return (Requirement(key, operator, values),)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ((), "old new bare odd"),
        ((needs("zone", Operator.IN, "x"),), "old"),
        ((needs("zone", Operator.IN, "x", "y"),), "old new"),
        ((needs("zone", Operator.IN),), ""),
        ((needs("zone", Operator.NOT_IN, "x"),), "new bare odd"),
        ((needs("zone", Operator.EXISTS),), "old new odd"),
        ((needs("zone", Operator.ABSENT),), "bare"),
        ((needs("gb", Operator.ABOVE, "16"),), "new"),
        ((needs("gb", Operator.BELOW, "80"),), "old"),
        ((needs("gb", Operator.ABOVE, "a lot"),), ""),
        ((needs("gb", Operator.ABOVE),), ""),
        ((needs("zone", Operator.EXISTS) + needs("gb", Operator.ABOVE, "1"),), "old new"),
        ((needs("zone", Operator.IN, "y"), needs("zone", Operator.ABSENT)), "new bare"),
        (((),), "old new bare odd"),
    ],
)
def test_terms(terms: tuple[NodeTerm, ...], expected: str) -> None:
    assert suited(*NODES, node_terms=terms) == expected.split()


def test_labels_terms_and_tolerations_have_to_suit_together() -> None:
    tainted = Node("tainted", 4, labels=(("zone", "x"),), taints=("spot",))
    wishes = {"node_labels": (("zone", "x"),), "node_terms": (needs("gb", Operator.ABSENT),)}
    assert suited(*NODES, tainted, **wishes) == []
    assert suited(*NODES, tainted, **wishes, tolerations=("spot",)) == ["tainted"]


@pytest.mark.parametrize(
    ("toleration", "taint", "expected"),
    [
        ("spot", "spot", True),
        ("spot", "spot=yes", True),
        ("spot", "spot=yes:NoSchedule", True),
        ("spot", "spotless", False),
        ("spot=yes", "spot=yes:NoSchedule", True),
        ("spot=yes", "spot=no:NoSchedule", False),
        ("spot=yes", "spot", False),
        ("spot=", "spot", True),
        ("spot=", "spot=yes", False),
        ("spot:NoExecute", "spot=yes:NoSchedule", False),
        ("spot:NoSchedule", "spot=yes:NoSchedule", True),
        ("*", "spot=yes:NoSchedule", True),
        ("*:NoSchedule", "spot=yes:NoSchedule", True),
        ("*:NoSchedule", "spot=yes:NoExecute", False),
    ],
)
def test_tolerations(toleration: str, taint: str, expected: bool) -> None:
    assert tolerates((toleration,), taint) is expected
    assert tolerates(("another", toleration), taint) is expected
    assert not tolerates((), taint)


def test_a_node_that_changes_is_found_by_what_it_is_now() -> None:
    table = NodeTable()
    for node in NODES:
        table.add(node)
    on_x = make_job("j", node_labels=(("zone", "x"),))
    assert table.matching(on_x) == 0b0001
    twin = with_own_containers(table)
    table.change(0, Node("old", 2, gpu_type="b", rack="r", labels=(("zone", "z"),), taints=("spot",)))
    table.change(2, Node("bare", 8, labels=(("zone", "x"),)))
    assert table.matching(on_x) == 0b0100
    assert (table.by_type, table.by_rack) == ([0b1110, 0b0001], {"": 0b1110, "r": 0b0001})
    assert (table.by_size, table.largest) == ({4: 0b1010, 2: 0b0001, 8: 0b0100}, 8)
    assert (table.tainted, table.all, table.index["old"]) == (0b0001, 0b1111, 0)
    assert twin.matching(on_x) == 0b0001, "the copy was not independent"
    table.change(2, Node("bare", 4))
    assert (table.matching(on_x), table.largest) == (0, 4)
