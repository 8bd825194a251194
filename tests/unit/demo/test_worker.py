import pytest

from batuta.demo.process_group import BadEnvironment, Worker, worker_from_env
from batuta.spec.replica_env import ReplicaContext, build_run_env
from batuta.spec.task import Task


def test_alone_without_variables():
    assert worker_from_env({}) == Worker(run="///")


def test_a_replica_of_batuta():
    replica = ReplicaContext(
        job_id="j7",
        rank=1,
        node_ips=("10.0.0.1", "10.0.0.2"),
        gpus=(2, 3, 4),
        master_port=29500,
        checkpoint_dir="/c",
        progress_file="/p",
        control_dir="/d",
        restart=2,
    )
    worker = worker_from_env(build_run_env(Task(run="x"), replica))
    assert worker == Worker(1, 2, "10.0.0.1", (29500,), "j7/2//", gpus_each=3)
    assert worker.gpus == 6


def test_a_worker_of_torchrun_has_one_gpu_and_leaves_the_store_its_port():
    env = {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    }
    assert worker_from_env(env).ports == (29500,)
    shared = worker_from_env(env | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert shared.gpus == 8
    assert not {29499, 29500, 29501} & set(shared.ports)
    last = worker_from_env(env | {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "65534"})
    assert all(1024 < port < 32768 for port in last.ports)


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "RANK is 2, but WORLD_SIZE is 2"),
        ({"RANK": "a"}, "RANK is not a number: 'a'"),
        ({"WORLD_SIZE": "2"}, "MASTER_PORT is not a port"),
        ({"WORLD_SIZE": "2", "MASTER_PORT": "70000"}, "MASTER_PORT is not a port"),
    ],
)
def test_contradictions_are_told(env, sentence):
    with pytest.raises(BadEnvironment, match=sentence):
        worker_from_env(env)
