"""How a task grows and shrinks is said in nodes; what contradicts itself is refused."""

import pytest

from batuta.core.job import JobKind, Spread, Topology
from batuta.spec.problem import InputError
from batuta.spec.task import parse_task
from batuta.spec.task_elastic import Checkpoint, Elastic
from batuta.spec.task_env import Overrides
from batuta.spec.task_job import task_to_job

WITH_GPU = "\nresources: {accelerators: 1}"
"""Behind all else, so that nothing moves to another line."""


def sizes_of(text: str, **given) -> tuple:
    task = parse_task(f"run: x\n{text}{WITH_GPU}", overrides=Overrides(**given))
    elastic = task.elastic
    return task.num_nodes, elastic.min_nodes, elastic.max_nodes, elastic.legal_sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("", (1, 1, 1, None)),
        ("num_nodes: 4", (4, 4, 4, None)),
        ("num_nodes: 4\nelastic: {}", (4, 4, 4, None)),
        ("elastic:", (1, 1, 1, None)),
        ("elastic: {max_nodes: 8}", (1, 1, 8, None)),
        ("num_nodes: 4\nelastic: {max_nodes: 8}", (4, 4, 8, None)),
        ("num_nodes: 4\nelastic: {min_nodes: 1}", (4, 1, 4, None)),
        ("elastic: {min_nodes: 2, max_nodes: 8}", (2, 2, 8, None)),
        ("elastic: {sizes: [8, 1, 4, 2, 2]}", (1, 1, 8, (1, 2, 4, 8))),
        ("num_nodes: 4\nelastic: {min_nodes: 1, max_nodes: 8, sizes: [1, 4, 8]}", (4, 1, 8, (1, 4, 8))),
        ("elastic: {min_nodes: 2, max_nodes: 8, step: 2}", (2, 2, 8, (2, 4, 6, 8))),
        ("elastic: {min_nodes: 2, max_nodes: 8, step: 1}", (2, 2, 8, None)),
    ],
)
def test_sizes_that_are_not_said_follow_from_those_that_are(text, sizes):
    assert sizes_of(text) == sizes


@pytest.mark.parametrize(
    ("text", "given", "sizes"),
    [
        ("", {"num_nodes": 3}, (3, 3, 3, None)),
        ("", {"max_nodes": 3}, (1, 1, 3, None)),
        ("num_nodes: 4", {"min_nodes": 2, "max_nodes": 6}, (4, 2, 6, None)),
        ("num_nodes: 4", {"max_nodes": 2, "min_nodes": 1}, (2, 1, 2, None)),
        ("num_nodes: 1\nelastic: {max_nodes: 8}", {"min_nodes": 2}, (2, 2, 8, None)),
        ("elastic: {sizes: [1, 2, 4, 8]}", {"min_nodes": 2, "max_nodes": 7}, (2, 2, 4, (2, 4))),
    ],
)
def test_the_command_line_changes_sizes(text, given, sizes):
    assert sizes_of(text, **given) == sizes


def test_sizes_that_the_command_line_cuts_off_are_noted():
    task = parse_task(f"run: x\nelastic: {{sizes: [1, 2, 4]}}{WITH_GPU}", overrides=Overrides(max_nodes=3))
    assert "elastic.sizes: cut to 1, 2 by the command line" in task.notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("elastic: {min_nodes: 4, max_nodes: 2}", "2:22: min_nodes 4 is above max_nodes 2"),
        ("elastic: {min_nodes: 0}", "2:22: min_nodes must be a whole number within 1..100000, found '0'"),
        ("num_nodes: 9\nelastic: {max_nodes: 8}", "2:12: num_nodes 9 is above max_nodes 8"),
        ("num_nodes: 1\nelastic: {min_nodes: 2, max_nodes: 8}", "2:12: num_nodes 1 is below min_nodes 2"),
        (
            "num_nodes: 3\nelastic: {sizes: [1, 2, 4]}",
            "2:12: num_nodes 3 is not one of the sizes (one of 1, 2, 4)",
        ),
        ("elastic: {sizes: [1, 16], max_nodes: 8}", "2:18: sizes 16 lie outside of min_nodes..max_nodes"),
        (
            "elastic: {sizes: [1, 4], max_nodes: 8}",
            "2:37: max_nodes 8 is not the last of sizes (max_nodes: 4, or",
        ),
        (
            "elastic: {sizes: [2, 4], min_nodes: 1}",
            "2:37: min_nodes 1 is not the first of sizes (min_nodes: 2, or",
        ),
        ("elastic: {sizes: [9], max_nodes: 8}", "2:18: no size lies within 1..8"),
        ("elastic: {sizes: []}", "2:18: sizes must not be empty"),
        ("elastic: {sizes: 4}", "2:18: sizes must be a list, found '4'"),
        ("elastic: {sizes: [1, two]}", "2:22: a size must be a whole number within 1..100000, found 'two'"),
        ("elastic: {sizes: [1, 3], step: 2}", "2:32: elastic has sizes and step (keep one of them)"),
        (
            "elastic: {min_nodes: 1, max_nodes: 8, step: 2}",
            "2:45: max_nodes 8 is not min_nodes 1 and a multiple of",
        ),
        ("elastic: {max_nodes: 99999, step: 2}", "2:35: step 2 makes more than 1024 sizes"),
        ("elastic: {grace: 1y}", "2:18: grace: '1y' is not a duration (write it like 30s, 5m, 1.5h or 2d)"),
        ("elastic: {grace: 2d}", "2:18: grace: '2d' is out of range (within 0s..86400s)"),
        ("elastic: {kind: torch}", "2:17: kind cannot be 'torch'"),
        (
            "elastic: {kind: torch-elastc}",
            "2:17: kind cannot be 'torch-elastc' (did you mean torch-elastic?)",
        ),
        (
            "elastic: {checkpoint: sometimes}",
            "2:23: checkpoint cannot be 'sometimes' (one of none, on-signal, inter",
        ),
        ("elastic: {checkpoint: interval}", "2:23: checkpoint: interval needs checkpoint_interval"),
        (
            "elastic: {checkpoint: none, checkpoint_interval: 5m}",
            "2:50: checkpoint_interval does not go with checkpoint: none",
        ),
        ("elastic: {min_node: 1}", "2:11: unknown key min_node in elastic (did you mean min_nodes?)"),
        ("elastic: 4", "2:10: elastic must be a mapping, found '4'"),
    ],
)
def test_what_contradicts_itself_is_refused(text, said):
    with pytest.raises(InputError) as caught:
        parse_task(f"run: x\n{text}{WITH_GPU}", "t.yaml")
    assert str(caught.value.problems[0]).removeprefix("t.yaml:").startswith(said)


@pytest.mark.parametrize(
    ("text", "checkpoint", "interval_s"),
    [
        ("", Checkpoint.NONE, None),
        ("elastic: {max_nodes: 2}", Checkpoint.ON_SIGNAL, None),
        ("elastic: {checkpoint: none}", Checkpoint.NONE, None),
        ("elastic: {checkpoint_interval: 10m}", Checkpoint.INTERVAL, 600),
        ("elastic: {checkpoint: interval, checkpoint_interval: 30}", Checkpoint.INTERVAL, 30),
    ],
)
def test_who_writes_elastic_is_taken_to_checkpoint_when_asked(text, checkpoint, interval_s):
    elastic = parse_task(f"run: x\n{text}{WITH_GPU}").elastic
    assert (elastic.checkpoint, elastic.checkpoint_interval_s) == (checkpoint, interval_s)


def test_grace_and_kind_are_said_or_have_defaults():
    assert parse_task("run: x\nelastic: {grace: 2m, kind: mpi}").elastic == Elastic(
        checkpoint=Checkpoint.ON_SIGNAL, grace_s=120, kind=JobKind.MPI
    )
    assert parse_task("run: x").elastic == Elastic(grace_s=60, kind=None)


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("", Topology()),
        ("topology: any", Topology()),
        ("topology: prefer-node", Topology(Spread.NODE)),
        ("topology: require-node", Topology(Spread.NODE, True)),
        ("topology: prefer-rack", Topology(Spread.RACK)),
        ("topology: require-rack, numa: single", Topology(Spread.RACK, True, True)),
        ("numa: any", Topology()),
    ],
)
def test_topology_is_a_word(text, topology):
    assert parse_task(f"run: x\ngpu: {{{text}}}").gpu.topology == topology


def test_a_share_of_a_gpu_has_memory_and_compute():
    gpu = parse_task("run: x\ngpu: {memory: 8GiB, compute: 50%}").gpu
    assert (gpu.memory_mib, gpu.compute_percent, gpu.is_share) == (8192, 50, True)


@pytest.mark.parametrize(
    ("text", "given", "sizes"),
    [
        ("num_nodes: auto", {}, (1, 1, 8, None)),
        ("num_nodes: auto\nelastic: {max_nodes: 4}", {}, (1, 1, 4, None)),
        ("num_nodes: auto\nelastic: {min_nodes: 2}", {}, (2, 2, 8, None)),
        ("num_nodes: auto\nelastic: {min_nodes: 16}", {}, (16, 16, 16, None)),
        ("num_nodes: auto\nelastic: {step: 2}", {}, (1, 1, 7, (1, 3, 5, 7))),
        ("num_nodes: auto\nelastic: {sizes: [2, 4]}", {}, (2, 2, 4, (2, 4))),
        ("", {"num_nodes": "auto"}, (1, 1, 8, None)),
        ("num_nodes: 4", {"num_nodes": "auto", "max_nodes": 2}, (1, 1, 2, None)),
    ],
)
def test_a_size_that_is_left_open_begins_with_the_smallest(text, given, sizes):
    assert parse_task(f"run: x\n{text}{WITH_GPU}", overrides=Overrides(**given)).auto_nodes
    assert sizes_of(text, **given) == sizes


def test_a_number_on_the_command_line_stands_in_for_auto():
    task = parse_task(f"run: x\nnum_nodes: auto{WITH_GPU}", overrides=Overrides(num_nodes="3"))
    assert (task.num_nodes, task.auto_nodes) == (3, False)
    assert task.elastic == Elastic(3, 3)


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("num_nodes: automatic", {}, "num_nodes"),
        (
            "num_nodes: 4",
            {"num_nodes": "some"},
            "--num-nodes must be a whole number within 1..100000 or auto, found 'some'",
        ),
        ("num_nodes: 4", {"num_nodes": "0"}, "--num-nodes must be a whole number"),
        ("num_nodes: no", {"num_nodes": "auto"}, "num_nodes"),
        ("num_nodes: auto\ngpu: {memory: 8GiB}", {}, "a share of a GPU has one node"),
    ],
)
def test_a_size_that_is_neither_a_number_nor_open_is_refused(text, given, message):
    with pytest.raises(InputError) as refused:
        parse_task(f"run: x\n{text}{WITH_GPU}", overrides=Overrides(**given))
    assert message in str(refused.value)


NOTE = "elastic: the job keeps its size until a checkpoint of it is seen"


@pytest.mark.parametrize(
    ("text", "overrides", "restartable", "is_told"),
    [
        ("elastic: {max_nodes: 8}", {}, False, True),
        ("elastic: {max_nodes: 8, restartable: true}", {}, True, False),
        ("elastic: {max_nodes: 8, restartable: false}", {}, False, True),
        ("elastic: {max_nodes: 8, restartable: false}", {"restartable": True}, True, False),
        ("", {"max_nodes": 8}, False, True),
        ("num_nodes: 4\nelastic: {}", {}, False, False),  # it has one size anyway
        (
            "elastic: {max_nodes: 8, kind: horovod-elastic}",
            {},
            True,
            False,
        ),  # it is resized without a restart
    ],
)
def test_who_may_have_several_sizes_says_whether_a_restart_is_safe(text, overrides, restartable, is_told):
    task = parse_task(f"run: x\n{text}", overrides=Overrides(**overrides))
    assert any(note.startswith(NOTE) for note in task.notes) is is_told
    assert task_to_job(task, "1", 0.0).restartable is restartable


def test_restartable_is_true_or_false():
    with pytest.raises(InputError) as caught:
        parse_task("run: x\nelastic: {max_nodes: 2, restartable: maybe}")
    assert "2:38: restartable cannot be 'maybe' (one of true, false)" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["elastic: {max_nodes: 4}", "num_nodes: auto", "num_nodes: 2\nelastic: {min_nodes: 1}"],
)
def test_an_elastic_task_without_accelerators_has_one_gpu_on_each_node_and_is_told_so(text):
    task = parse_task(f"run: x\n{text}", "t.yaml")
    assert task.gpus_per_node == 1
    assert task.notes[0] == "no accelerators, but several sizes: each node has one GPU of any type"
    with pytest.raises(InputError) as told:
        parse_task(f"run: x\n{text}", "t.yaml", Overrides(gpus="0"))
    assert "a task without GPUs has one size" in told.value.problems[0].message
