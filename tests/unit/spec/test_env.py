"""Every replica finds in its environment who it is, where the others are, and what it may use."""

from typing import Any

import pytest

from batuta.spec.replica_env import ReplicaContext, build_run_env, setup_env_changes
from batuta.spec.task import Task, parse_task
from batuta.spec.task_env import is_set_by_batuta


def place(**changes: Any) -> ReplicaContext:
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
        "user": "ana",
    }
    return ReplicaContext(**values | changes)


EXPECTED = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "3",
    "SKYPILOT_NUM_GPUS_PER_NODE": "2",
    "SKYPILOT_TASK_ID": "batuta-j-7",
    "SKYPILOT_INTERNAL_JOB_ID": "j-7",
    "SKYPILOT_USER": "ana",
    "SKYPILOT_CLUSTER_INFO": '{"cluster_name": "batuta", "cloud": "local", "region": null, "zone": null}',
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
RUN = EXPECTED | {"PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(("name", "value"), EXPECTED.items())
def test_run_has(name, value):
    assert build_run_env(Task(), place())[name] == value


def test_run_has_nothing_else():
    assert build_run_env(Task(), place()) == RUN


def test_setup_has_three_more_names_for_the_same_and_no_gpus():
    assert setup_env_changes(build_run_env(Task(), place())) == {
        "SKYPILOT_SETUP_NODE_RANK": "1",
        "SKYPILOT_SETUP_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.2",
        "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": "2",
        "CUDA_VISIBLE_DEVICES": None,
    }


def test_a_task_may_have_its_output_buffered():
    task = parse_task("run: x\nenvs: {PYTHONUNBUFFERED: ''}")
    assert build_run_env(task, place())["PYTHONUNBUFFERED"] == ""


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
    assert build_run_env(Task(), place(), inherited) == RUN | {"HOME": "/root"}


@pytest.mark.parametrize(
    ("gpus", "visible", "count"), [((), "", "0"), ((3,), "3", "1"), (("GPU-a", "GPU-b"), "GPU-a,GPU-b", "2")]
)
def test_gpus_are_numbers_or_names_and_without_any_all_are_hidden(gpus, visible, count):
    env = build_run_env(Task(), place(gpus=gpus))
    assert (env["CUDA_VISIBLE_DEVICES"], env["SKYPILOT_NUM_GPUS_PER_NODE"]) == (visible, count)
    assert env["PET_NPROC_PER_NODE"] == ("1" if count == "0" else count)
    assert env.get("NVIDIA_VISIBLE_DEVICES") == ("void" if count == "0" else None)


def test_the_names_that_are_set_are_those_that_a_task_is_warned_about():
    env = build_run_env(Task(), place())
    ours = {**env, **setup_env_changes(env)}.keys() - {"PYTHONUNBUFFERED"}
    assert all(is_set_by_batuta(name) for name in ours)


@pytest.mark.parametrize("wrong", [{"rank": 3}, {"rank": -1}, {"master_port": 0}, {"node_ips": ()}])
def test_a_place_that_cannot_be_is_a_mistake_of_ours(wrong):
    with pytest.raises(ValueError, match="is not"):
        place(**wrong)
