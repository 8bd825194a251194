"""Every replica finds in its environment who it is, where the others are, and what it may use."""

from typing import Any

import pytest

from batuta.spec.env import ReplicaPlace, build_run_env, build_setup_env
from batuta.spec.task import Task, parse_task
from batuta.spec.task_env import is_set_by_batuta


def place(**changes: Any) -> ReplicaPlace:
    values: dict[str, Any] = {
        "job_id": "j-7",
        "rank": 1,
        "node_ips": ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
        "gpus": (2, 5),
        "master_port": 29_500,
        "checkpoint_dir": "/c",
        "progress_file": "/p.jsonl",
        "control_dir": "/k",
        "restart": 4,
    }
    return ReplicaPlace(**values | changes)


EXPECTED = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "3",
    "SKYPILOT_NUM_GPUS_PER_NODE": "2",
    "SKYPILOT_TASK_ID": "batuta-j-7",
    "PET_NNODES": "3",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "10.0.0.1",
    "PET_MASTER_PORT": "29500",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "3",
    "RANK": "1",
    "CUDA_VISIBLE_DEVICES": "2,5",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "BATUTA_JOB_ID": "j-7",
    "BATUTA_REPLICA": "1",
    "BATUTA_RESTART": "4",
    "BATUTA_CHECKPOINT_DIR": "/c",
    "BATUTA_PROGRESS": "/p.jsonl",
    "BATUTA_CONTROL": "/k",
}


@pytest.mark.parametrize(("name", "value"), EXPECTED.items())
def test_run_has(name, value):
    assert build_run_env(Task(), place())[name] == value


def test_run_has_nothing_else():
    assert build_run_env(Task(), place()) == EXPECTED


def test_setup_has_two_more_names_for_the_same():
    assert build_setup_env(Task(), place()) == EXPECTED | {
        "SKYPILOT_SETUP_NODE_RANK": "1",
        "SKYPILOT_SETUP_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.2",
    }


def test_the_tasks_own_variables_win_over_inherited_ones():
    task = parse_task("run: x\nenvs: {A: task, B: task}\nsecrets: {C: secret}")
    env = build_run_env(task, place(), {"A": "server", "PATH": "/bin"})
    assert (env["A"], env["B"], env["C"], env["PATH"]) == ("task", "task", "secret", "/bin")


def test_nobody_wins_over_what_the_scheduler_says():
    task = parse_task("run: x\nenvs: {CUDA_VISIBLE_DEVICES: '0,1,2,3', RANK: 0, BATUTA_JOB_ID: other}")
    env = build_run_env(task, place(), {"WORLD_SIZE": "9"})
    assert {name: env[name] for name in EXPECTED} == EXPECTED


def test_a_server_inside_of_a_job_does_not_hand_its_own_place_on():
    inherited = {"BATUTA_HOME": "/h", "BATUTA_TOKEN": "t", "SKYPILOT_SETUP_NODE_RANK": "3", "HOME": "/root"}
    assert build_run_env(Task(), place(), inherited) == EXPECTED | {"HOME": "/root"}


@pytest.mark.parametrize(
    ("gpus", "visible", "count"), [((), "", "1"), ((3,), "3", "1"), (("GPU-a", "GPU-b"), "GPU-a,GPU-b", "2")]
)
def test_gpus_are_numbers_or_names_and_without_any_all_are_hidden(gpus, visible, count):
    env = build_run_env(Task(), place(gpus=gpus))
    assert (env["CUDA_VISIBLE_DEVICES"], env["SKYPILOT_NUM_GPUS_PER_NODE"]) == (visible, count)


def test_the_names_that_are_set_are_those_that_a_task_is_warned_about():
    assert all(is_set_by_batuta(name) for name in build_setup_env(Task(), place()))


@pytest.mark.parametrize("wrong", [{"rank": 3}, {"rank": -1}, {"master_port": 0}, {"node_ips": ()}])
def test_a_place_that_cannot_be_is_a_mistake_of_ours(wrong):
    with pytest.raises(ValueError, match="is not"):
        place(**wrong)
