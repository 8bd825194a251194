"""Which GPUs are free: taken and given back, whole and in shares."""

import pytest

from batuta.core.arrays import bits, mask_of
from batuta.core.cluster import Node
from batuta.core.job import Share
from batuta.core.layout import UNCOUNTED, Card, Layout
from batuta.core.node_table import NodeTable
from tests.support.worlds import at, make_job, make_nodes


def layout_of(*nodes: Node) -> Layout:
    table = NodeTable()
    layout = Layout(table)
    for node in nodes:
        table.add(node)
        layout.add(node)
    return layout


def books(layout: Layout) -> tuple:
    return (
        *(list(layout.free), dict(layout.cards), list(layout.cpus_milli), list(layout.memory_mib)),
        *(list(layout.buckets), layout.usable),
    )


@pytest.mark.parametrize(("value", "found"), [(0, []), (1, [0]), (0b10110, [1, 2, 4]), (1 << 100, [100])])
def test_bits_are_listed_from_the_lowest(value: int, found: list[int]) -> None:
    assert list(bits(value)) == found
    assert mask_of(tuple(found)) == value


def test_what_is_taken_is_not_free_and_what_is_given_back_is() -> None:
    layout = layout_of(*make_nodes(4, 2, cpus_milli=8000, memory_mib=100))
    job, before = make_job("a", 3, cpus_milli_per_gpu=1000, memory_mib_per_gpu=10), books(layout)

    layout.place(at("n0:02 n1:1"), job)

    assert layout.free == [0b1010, 0b01]
    assert layout.buckets == [0, 0b10, 0b01, 0, 0]
    assert layout.cpus_milli == [6000, 7000]
    assert layout.memory_mib == [80, 90]
    assert layout.free_gpus(0b11) == 3
    assert layout.free_gpus(0b10) == 1
    layout.remove(at("n0:02 n1:1"), job)
    assert books(layout) == before


def test_shares_lie_on_one_card_until_the_last_one_leaves() -> None:
    layout = layout_of(*make_nodes(2, gpu_memory_mib=1000))
    small, large = (
        make_job("small", share=Share(memory_mib=300, compute_percent=10)),
        make_job("large", share=Share(memory_mib=700, compute_percent=80)),
    )
    before = books(layout)
    layout.place(at("n0:1"), small)
    layout.place(at("n0:1"), large)
    assert layout.cards == {(0, 1): Card(90, 1000, 2)}
    assert layout.free == [0b01]
    layout.remove(at("n0:1"), small)
    assert layout.cards == {(0, 1): Card(80, 700, 1)}
    layout.remove(at("n0:1"), large)
    assert books(layout) == before


@pytest.mark.parametrize(
    ("share", "fits"),
    [
        (Share(memory_mib=300, compute_percent=20), True),
        (Share(memory_mib=301, compute_percent=20), False),
        (Share(memory_mib=300, compute_percent=21), False),
        (Share(memory_mib=0, compute_percent=20), True),
    ],
)
def test_a_card_holds_100_percent_and_its_memory(share: Share, fits: bool) -> None:
    layout = layout_of(*make_nodes(1, gpu_memory_mib=1000))
    layout.place(at("n0:0"), make_job("there", share=Share(memory_mib=700, compute_percent=80)))
    assert layout.fits_card(0, 0, share) is fits
    assert layout.holds(at("n0:0"), make_job("comes", share=share)) is fits


@pytest.mark.parametrize(
    ("wanted", "job", "holds"),
    [
        ("n0:01", make_job("a", 2), True),
        ("n0:12", make_job("a", 2), False),
        ("n0:1 n1:0", make_job("a", 2), True),
        ("n0:0 n1:0", make_job("a", 2, cpus_milli_per_gpu=2000), True),
        ("n0:01", make_job("a", 2, cpus_milli_per_gpu=2000), False),
        ("n0:0 n1:0 n0:1", make_job("a", 3, cpus_milli_per_gpu=2000), False),
        ("n0:01", make_job("a", 2, memory_mib_per_gpu=33), False),
        ("n0:2", make_job("a", share=Share(compute_percent=10)), False),
        ("n0:1", make_job("a", share=Share(compute_percent=10)), True),
    ],
)
def test_a_place_is_there_if_the_gpus_and_all_beside_them_are(wanted: str, job, holds: bool) -> None:
    layout = layout_of(*make_nodes(3, 1, cpus_milli=3000, memory_mib=65))
    layout.place(at("n0:2"), make_job("other"))
    assert layout.holds(at(wanted), job) is holds


def test_gpus_that_fell_ill_do_not_become_free() -> None:
    layout = layout_of(*make_nodes(2))
    job, share = make_job("a", 2), make_job("s", share=Share(compute_percent=10))
    layout.place(at("n0:01"), job)
    layout.healthy[0] = 0b01
    layout.remove(at("n0:01"), job)
    assert layout.free == [0b01]
    layout.place(at("n0:0"), share)
    layout.healthy[0] = 0
    layout.remove(at("n0:0"), share)
    assert layout.free == [0]
    assert not layout.cards


def test_a_node_that_counts_no_cpu_has_enough_for_anyone() -> None:
    layout = layout_of(Node("n0", 1))
    assert layout.cpus_milli == layout.memory_mib == [UNCOUNTED]
    assert layout.has_beside(0, 1, make_job("a", cpus_milli_per_gpu=10**9, memory_mib_per_gpu=10**9))


def test_a_fork_is_independent() -> None:
    layout = layout_of(*make_nodes(2, 2))
    before, twin = books(layout), layout.fork()
    twin.place(at("n0:0 n1:1"), make_job("a", 2))
    twin.usable = 0
    assert books(layout) == before


def test_a_sketch_leaves_the_layout_as_it_is() -> None:
    layout = layout_of(Node("n0", 2, cpus_milli=8000), Node("n1", 2, cpus_milli=8000))
    before, twin = books(layout), layout.sketch()
    hungry = make_job("a", 2, cpus_milli_per_gpu=1000, memory_mib_per_gpu=1)
    twin.place(at("n0:0 n1:1"), hungry)
    assert (twin.cpus_milli, twin.total_free) == ([7000, 7000], 2)
    assert books(layout) == before
    twin.remove(at("n0:0 n1:1"), hungry)
    assert books(twin) == before


# ------------------------------------------------------------------------------------------------- node table


def test_nodes_are_found_by_what_they_have_in_common() -> None:
    layout = layout_of(
        Node("a", 4, gpu_type="old", rack="r1"),
        Node("b", 8, gpu_type="new", rack="r1", labels=(("zone", "x"), ("disk", "fast"))),
        Node("c", 8, gpu_type="new", rack="r2", labels=(("zone", "x"),), taints=("spot", "slow")),
        Node("d", 4, gpu_type="old", rack="r2"),
    )
    table = layout.table
    assert (table.types, table.type_of, table.by_type) == (["old", "new"], [0, 1, 1, 0], [0b1001, 0b0110])
    assert table.by_rack == {"r1": 0b0011, "r2": 0b1100}
    assert table.by_size == {4: 0b1001, 8: 0b0110}
    assert (table.all, table.largest, table.tainted) == (0b1111, 8, 0b0100)
    assert sorted(table.models.values()) == [0b0110, 0b1001], "labels and taints are asked apart"
    assert table.racks(at("a:0 b:0 a:1")) == 1
    assert table.racks(at("a:0 c:0")) == 2


@pytest.mark.parametrize(
    ("wishes", "nodes"),
    [
        ({}, 0b011),
        ({"node_labels": (("zone", "x"),)}, 0b010),
        ({"node_labels": (("zone", "x"), ("disk", "slow"))}, 0),
        ({"tolerations": ("spot",)}, 0b011),
        ({"tolerations": ("spot", "slow")}, 0b111),
        ({"tolerations": ("spot", "slow"), "node_labels": (("zone", "x"),)}, 0b110),
    ],
)
def test_labels_and_taints_decide_which_nodes_match(wishes: dict, nodes: int) -> None:
    layout = layout_of(
        Node("a", 1),
        Node("b", 1, labels=(("zone", "x"),)),
        Node("c", 1, labels=(("zone", "x"),), taints=("spot", "slow")),
    )
    assert layout.table.matching(make_job("j", **wishes)) == nodes
