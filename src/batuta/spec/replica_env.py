"""The environment variables of one replica's processes, built from arguments only.

`docs/reference/task-file.md` lists them. `MASTER_ADDR`, `WORLD_SIZE` and `RANK` are for scripts without a launcher
and count replicas; torchrun reads `PET_…`. A task's own variables cannot change these; they win over what is inherited.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from batuta.spec.task import Task
from batuta.spec.task_env import is_set_by_batuta

_NOTHING: Mapping[str, str] = {}
CLUSTER = "batuta"  # the name that a task finds as its cluster's


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """One replica of a job at its start: rank, addresses, GPUs, directories."""

    job_id: str
    rank: int
    node_ips: tuple[str, ...]  # of all replicas, by rank. Replicas on one machine have equal ones.
    gpus: tuple[int | str, ...]  # this replica's GPUs: numbers as NVML has them, or UUIDs
    master_port: int
    checkpoint_dir: str
    progress_file: str
    control_dir: str
    """New for each start: an old request would be taken for a new one. Replicas on one machine share it."""
    restart: int = 0  # how often the job was started before
    user: str = ""
    cloud: str = "local"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.node_ips):
            raise ValueError(f"rank {self.rank} is not one of {len(self.node_ips)} replicas")
        if not 0 < self.master_port < 65536:
            raise ValueError(f"{self.master_port} is not a port")


def build_run_env(task: Task, place: ReplicaContext, inherited: Mapping[str, str] = _NOTHING) -> dict[str, str]:
    """What `run` sees. `inherited` is what the server passes on, PATH and HOME for example."""
    rank, count, port = str(place.rank), str(len(place.node_ips)), str(place.master_port)
    gpus, master = len(place.gpus), place.node_ips[0]
    return {
        # A Batuta that was itself started by a Batuta does not hand its own place on to its jobs.
        "PYTHONUNBUFFERED": "1",
        **{name: value for name, value in inherited.items() if not is_set_by_batuta(name)},
        **dict(task.envs),
        **dict(task.secrets),
        "SKYPILOT_NODE_RANK": rank,
        "SKYPILOT_NODE_IPS": "\n".join(place.node_ips),
        "SKYPILOT_NUM_NODES": count,
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus),
        "SKYPILOT_TASK_ID": f"batuta-{place.job_id}",
        "SKYPILOT_INTERNAL_JOB_ID": place.job_id,
        "SKYPILOT_USER": place.user,
        "SKYPILOT_CLUSTER_INFO": cluster_info(place.cloud),
        "PET_NNODES": count,
        "PET_NPROC_PER_NODE": str(max(1, gpus)),
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "WORLD_SIZE": count,
        "RANK": rank,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, place.gpus)),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # Containers that a CPU-only task starts get no GPU from NVIDIA's runtime either.
        **({} if gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}),
        "BATUTA_JOB_ID": place.job_id,
        "BATUTA_REPLICA": rank,
        "BATUTA_RESTART": str(place.restart),
        "BATUTA_CHECKPOINT_DIR": place.checkpoint_dir,
        "BATUTA_PROGRESS": place.progress_file,
        "BATUTA_CONTROL": place.control_dir,
    }


def cluster_info(cloud: str, region: str | None = None) -> str:
    """What a task finds as SKYPILOT_CLUSTER_INFO."""
    return json.dumps({"cluster_name": CLUSTER, "cloud": cloud, "region": region, "zone": None})


def setup_env_changes(run_env: Mapping[str, str]) -> dict[str, str | None]:
    """What is different in `setup`: three names of its own, and no GPUs chosen; None takes a variable away.

    SkyPilot has it so: a setup installs for the node, and scripts tell by it in which of both they are.
    """
    return {
        "SKYPILOT_SETUP_NODE_RANK": run_env["SKYPILOT_NODE_RANK"],
        "SKYPILOT_SETUP_NODE_IPS": run_env["SKYPILOT_NODE_IPS"],
        "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": run_env["SKYPILOT_NUM_GPUS_PER_NODE"],
        "CUDA_VISIBLE_DEVICES": None,
    }
