"""A cluster is written as a short string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.spec.cluster import read_cluster
from batuta.spec.problem import InputError


def test_groups_of_nodes_become_named_nodes():
    nodes = read_cluster("16x4:T4,2x8:A100")
    assert (len(nodes), sum(node.gpus for node in nodes)) == (18, 80)
    assert (nodes[0].name, nodes[0].gpus, nodes[0].gpu_type, nodes[0].gpu_memory_mib) == (
        "t4-000",
        4,
        "T4",
        16_384,
    )
    assert (nodes[17].name, nodes[17].gpus, nodes[17].gpu_type) == ("a100-001", 8, "A100")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("2x4", ["gpu-000", "gpu-001"]),
        (" 1 x 4 : T4 , 1X2 ", ["t4-000", "gpu-000"]),
        ("1×4:RTX-3090", ["rtx-3090-000"]),
        ("1x4:T4,1x8:A100,2x2:T4", ["t4-000", "a100-000", "t4-001", "t4-002"]),
        ("1x4:T4,1x4:t4", ["t4-000", "t4-001"]),
    ],
)
def test_a_type_that_comes_again_goes_on_counting(text, names):
    assert [node.name for node in read_cluster(text)] == names


def test_numbers_are_padded_so_that_names_sort():
    names = [node.name for node in read_cluster("1200x1:T4")]
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("t4-0000", "t4-1199")


def test_every_sixteen_nodes_share_a_rack():
    racks = [node.rack for node in read_cluster("20x4:T4,20x8:A100")]
    assert [racks.count(f"rack-{number}") for number in range(3)] == [16, 16, 8]


@pytest.mark.parametrize(
    ("gpus", "nvlink", "numa"),
    [
        (1, (), ()),
        (2, (), ()),
        (4, (), (0, 0, 1, 1)),
        (5, (), (0, 0, 0, 1, 1)),
        (8, (), (0, 0, 0, 0, 1, 1, 1, 1)),
        (10, (0,) * 8 + (1,) * 2, (0,) * 5 + (1,) * 5),
    ],
)
def test_wiring_is_chosen_by_the_number_of_gpus(gpus, nvlink, numa):
    (node,) = read_cluster(f"1x{gpus}")
    assert (node.nvlink, node.numa) == (nvlink, numa)
    assert node.faults() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the cluster is empty"),
        ("   ", "the cluster is empty"),
        (",", "empty part"),
        ("4x4,", "empty part"),
        ("0x4", "'0x4' needs between one node"),
        ("4x0", "'4x0' needs between one GPU per node"),
        ("-1x4", "'-1x4' needs between one node"),
        ("4x-4", "needs between one GPU per node"),
        ("4", "'4' is not a group of nodes"),
        ("x4", "is not a group of nodes"),
        ("4x4x4", "is not a group of nodes"),
        ("four x 4", "is not a group of nodes"),
        ("4.5x4", "is not a group of nodes"),
        ("4x4:", "no proper GPU type"),
        ("4x4:A 100", "no proper GPU type"),
        ("4x4:A100:8", "no proper GPU type"),
        ("4x4;2x8", "is not a group of nodes"),
        ("1000001x1", "the cluster has 1,000,001 GPUs"),
        ("1000x1000,1x1", "the cluster has 1,000,001 GPUs"),
        ("9" * 5000 + "x4", "needs between one node"),
        ("\0x4", "is not a group of nodes"),
    ],
)
def test_an_impossible_cluster_is_refused_with_a_fix(text, said):
    with pytest.raises(InputError) as caught:
        read_cluster(text)
    assert any(said in problem.message and problem.fix for problem in caught.value.problems)


def test_all_bad_groups_are_named_at_once():
    with pytest.raises(InputError) as caught:
        read_cluster("0x0:,4x4,nodes")
    assert len(caught.value.problems) == 4


@given(st.text(alphabet="0123456789x:,T4 -.", max_size=12))
def test_any_text_is_a_sound_cluster_or_bad_input(text):
    try:
        nodes = read_cluster(text)
    except InputError:
        return
    assert nodes
    assert not [fault for node in nodes for fault in node.faults()]
    assert len({node.name for node in nodes}) == len(nodes)
