"""A cluster is described in YAML, or in Alibaba's node list."""

from pathlib import Path

import pytest

from batuta.spec.cluster import read_cluster
from batuta.spec.problem import InputError

WHOLE = """\
racks:
  - name: rack-a
    zone: eu-1
    nodes:
      - count: 2
        gpus: 4
        type: T4
        gpu_memory: 15GiB
        cpus: 48.5
        memory: 192GiB
        nvlink: [[0, 2], [1, 3]]
        numa: [[0, 1, 2, 3]]
        labels: {pool: train, tier: 1}
        taints: [spot]
      - {gpus: 8, type: A100, name: big, zone: eu-2}
nodes:
  - {count: 17, gpus: 1, type: T4}
"""


@pytest.fixture
def cluster_file(tmp_path: Path):
    def write(text: str, name: str = "cluster.yaml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def problems_of(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_cluster(text)
    return [str(problem).removeprefix(text) for problem in caught.value.problems]


def test_everything_that_is_said_is_in_the_node(cluster_file):
    node = read_cluster(cluster_file(WHOLE))[1]
    assert (node.name, node.rack, node.zone, node.gpus, node.gpu_type) == (
        "t4-001",
        "rack-a",
        "eu-1",
        4,
        "T4",
    )
    assert (node.gpu_memory_mib, node.cpus_milli, node.memory_mib) == (15 * 1024, 48_500, 192 * 1024)
    assert (node.nvlink, node.numa) == ((0, 1, 0, 1), (0, 0, 0, 0))
    assert (node.labels, node.taints) == ((("pool", "train"), ("tier", "1")), ("spot",))


def test_a_single_node_has_just_its_name(cluster_file):
    node = read_cluster(cluster_file(WHOLE, "c.yml"))[2]
    assert (node.name, node.zone, node.gpu_memory_mib) == ("big", "eu-2", 40_960)


def test_nodes_without_a_rack_fill_racks_and_go_on_counting(cluster_file):
    nodes = read_cluster(cluster_file(WHOLE))[3:]
    assert [node.rack for node in nodes] == ["rack-0"] * 16 + ["rack-1"]
    assert (nodes[0].name, nodes[-1].name) == ("t4-002", "t4-018")


def test_a_rack_that_has_a_name_is_not_filled_up(cluster_file):
    text = "racks: [{name: rack-0, nodes: [{gpus: 1}]}]\nnodes: [{gpus: 1}]\n"
    assert [node.rack for node in read_cluster(cluster_file(text))] == ["rack-0", "rack-1"]


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        ("16", 16_384),
        ("16GiB", 16_384),
        ("16 Gi", 16_384),
        ("1024MiB", 1024),
        ("1.5TiB", 1_572_864),
        ("80GB", 76_293),
    ],
)
def test_memory_has_units_and_is_in_gib_without(cluster_file, memory, mib):
    assert read_cluster(cluster_file(f"nodes: [{{gpus: 1, memory: {memory}}}]"))[0].memory_mib == mib


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: [{gpus: 0}]", ":1:16: gpus must be a whole number within 1..1000000, found '0'"),
        ("nodes: [{gpus: four}]", ":1:16: gpus must be a whole number within 1..1000000, found 'four'"),
        (
            "nodes: [{gpus: 4, count: -1}]",
            ":1:26: count must be a whole number within 1..1000000, found '-1'",
        ),
        ("nodes: [{count: 2}]", ":1:9: a node needs gpus (for example gpus: 4)"),
        ("nodes: [{gpus: 4, typ: T4}]", ":1:19: unknown key typ in a node (did you mean type?)"),
        ("nodes: [{gpus: 4, gpus: 2}]", ":1:19: key gpus appears twice in a node"),
        ("nodes: [{gpus: 4, type: }]", ":1:25: type must be a text, found nothing"),
        ("nodes: [{gpus: 4, type: [T4]}]", ":1:25: type must be a text, found a list"),
        ("nodes: {gpus: 4}", ":1:8: nodes must be a list, found a mapping"),
        ("nodes: [4x4]", ":1:9: a node must be a mapping, found '4x4'"),
        (
            "nodes: [{gpus: 2, numa: [[0]]}]",
            ":1:25: numa leaves out GPU 1 (name every GPU once, such as [[0, 1], [2, 3]])",
        ),
        ("nodes: [{gpus: 2, numa: [[0, 1, 1]]}]", ":1:33: GPU 1 is in two groups of numa"),
        (
            "nodes: [{gpus: 2, nvlink: [[0, 2], [1]]}]",
            ":1:32: a GPU of nvlink must be a whole number within 0..1, found '2'",
        ),
        (
            "nodes: [{gpus: 2, memory: lots}]",
            ":1:27: memory must be an amount of memory, found 'lots' (for example 16GiB)",
        ),
        (
            "nodes: [{gpus: 2, gpu_memory: 0}]",
            ":1:31: gpu_memory must be an amount of memory, found '0' (for example 16GiB)",
        ),
        ("nodes: [{gpus: 2, cpus: -1}]", ":1:25: cpus must be a number ≥ 0 and ≤ 1e+06, found '-1'"),
        ("nodes: [{gpus: 2, labels: [a]}]", ":1:27: labels must be a mapping, found a list"),
        ("nodes: [{gpus: 2, taints: a}]", ":1:27: taints must be a list, found 'a'"),
        ("racks: [{nodes: [{gpus: 1}]}]", ":1:9: a rack needs a name"),
        ("racks: [{name: a}]", ":1:9: a rack needs nodes"),
        ("nods: []", ":1:1: unknown key nods in the cluster (did you mean nodes?)"),
        ("nodes: []", ": holds no nodes (list them under nodes or racks)"),
        ("[]", ":1:1: the cluster must be a mapping, found a list"),
        ("# empty", ": holds nothing but comments"),
        ("nodes: [", ":2:1: is not YAML: did not find expected node content"),
        (
            "nodes: [{gpus: 1000, count: 1001}]",
            ": the cluster has 1,001,000 GPUs (at most 1,000,000 are possible)",
        ),
        (
            "nodes: [{gpus: 1, name: a}, {gpus: 1, name: a-000, count: 1}, {gpus: 1, name: a}]",
            ": two nodes have the name a-000",
        ),
    ],
)
def test_a_bad_file_is_refused_with_line_column_and_fix(cluster_file, text, said):
    assert said in problems_of(cluster_file(text + "\n"))


def test_all_problems_come_at_once(cluster_file):
    text = "racks:\n- name: a\n  nodes:\n  - {gpus: 0, cpus: x}\n- {name: a, nodes: 3}\nnodes:\n- {}\n"
    assert len(problems_of(cluster_file(text))) == 5


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "&a {nodes: [*a]}",
        "[" * 10**6,
        "{" * 10**6,
        "- " * 10**6,
        "!!python/object:os {}",
        "<<: 3",
    ],
)
def test_hostile_yaml_is_only_bad_input(cluster_file, text):
    assert problems_of(cluster_file(text))


NODE_LIST = "sn,cpu_milli,memory_mib,gpu,model\nn-0,64000,262144,2,P100\nn-1,96000,393216,0,\nn-2,96000,393216,8,G2\n"


def test_a_node_list_of_alibaba_is_a_cluster_too(cluster_file):
    first, second = read_cluster(cluster_file(NODE_LIST, "nodes.csv"))
    assert (first.name, first.gpus, first.gpu_type, first.cpus_milli) == ("n-0", 2, "P100", 64_000)
    assert (second.name, second.gpus, second.memory_mib) == ("n-2", 8, 393_216)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", ":1: is not a node list"),
        (NODE_LIST + "n-0,1,1,1,T4\n", ":5: node n-0 is on line 2 too"),
        (NODE_LIST + "n-3,x,1,1,T4\n", ":5: cpu_milli must be a whole number ≥ 0, found 'x'"),
        (NODE_LIST + "n-3,1,1,1\n", ":5: 4 columns, the header has 5"),
        (NODE_LIST + "n-3,1,1,1,\n", ":5: a node needs a name"),
        ("sn,cpu_milli,memory_mib,gpu,model\n", ": holds no node with GPUs"),
    ],
)
def test_a_bad_node_list_is_refused(cluster_file, text, said):
    assert any(problem.startswith(said) for problem in problems_of(cluster_file(text, "nodes.csv")))


def test_the_published_node_list_is_read(shared_data):
    nodes = read_cluster(str(shared_data / "alibaba-v2023" / "openb_node_list_gpu_node.csv"))
    assert (len(nodes), sum(node.gpus for node in nodes)) == (1213, 6212)
