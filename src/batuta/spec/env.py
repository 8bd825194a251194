"""The environment of one replica's processes. One process tree per node; nothing is read here but arguments.

| variable | in `run` and in `setup` |
|---|---|
| `SKYPILOT_NODE_RANK`, `…_NODE_IPS`, `…_NUM_NODES` | this replica; all of them, one IP per line; how many |
| `SKYPILOT_NUM_GPUS_PER_NODE` | GPUs of a replica; 1 for a share |
| `SKYPILOT_TASK_ID` | the same through all restarts |
| `SKYPILOT_SETUP_NODE_RANK`, `…_SETUP_NODE_IPS` | in `setup` only: the same rank and IPs |
| `PET_NNODES`, `…_NPROC_PER_NODE`, `…_NODE_RANK`, `…_MASTER_ADDR`, `…_MASTER_PORT` | what torchrun reads |
| `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE`, `RANK` | for scripts without a launcher: they count replicas |
| `CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER` | the GPUs of this replica, numbered as NVML numbers them |
| `BATUTA_JOB_ID`, `BATUTA_REPLICA`, `BATUTA_RESTART` | whose, which, and how often it was started again |
| `BATUTA_CHECKPOINT_DIR` | a folder that survives resizes |
| `BATUTA_PROGRESS` | a file; reports are appended as JSON lines |
| `BATUTA_CONTROL` | a folder; how a checkpoint is asked for and answered (see `batuta.sdk`) |

A task's own variables cannot change these; they win over what is inherited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batuta.spec.task import Task
from batuta.spec.task_env import is_set_by_batuta

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """One replica of a job as it starts: who it is, where it is, what it has."""

    job_id: str
    rank: int
    node_ips: tuple[str, ...]
    """Of all replicas, by rank. Replicas on one machine have equal ones."""
    gpus: tuple[int | str, ...]
    """This replica's GPUs: numbers as NVML has them, or UUIDs."""
    master_port: int
    checkpoint_dir: str
    progress_file: str
    control_dir: str
    """New for each start: an old request would be taken for a new one. Replicas on one machine share it."""
    restart: int = 0
    """How often the job was started before."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.node_ips):
            raise ValueError(f"rank {self.rank} is not one of {len(self.node_ips)} replicas")
        if not 0 < self.master_port < 65536:
            raise ValueError(f"{self.master_port} is not a port")


def build_run_env(task: Task, place: ReplicaPlace, inherited: Mapping[str, str] = _NOTHING) -> dict[str, str]:
    """What `run` sees. `inherited` is what the server passes on, PATH and HOME for example."""
    rank, count, port = str(place.rank), str(len(place.node_ips)), str(place.master_port)
    gpus, master = str(max(1, len(place.gpus))), place.node_ips[0]
    return {
        # A Batuta that was itself started by a Batuta does not hand its own place on to its jobs.
        **{name: value for name, value in inherited.items() if not is_set_by_batuta(name)},
        **dict(task.envs),
        **dict(task.secrets),
        "SKYPILOT_NODE_RANK": rank,
        "SKYPILOT_NODE_IPS": "\n".join(place.node_ips),
        "SKYPILOT_NUM_NODES": count,
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
        "SKYPILOT_TASK_ID": f"batuta-{place.job_id}",
        "PET_NNODES": count,
        "PET_NPROC_PER_NODE": gpus,
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "WORLD_SIZE": count,
        "RANK": rank,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, place.gpus)),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "BATUTA_JOB_ID": place.job_id,
        "BATUTA_REPLICA": rank,
        "BATUTA_RESTART": str(place.restart),
        "BATUTA_CHECKPOINT_DIR": place.checkpoint_dir,
        "BATUTA_PROGRESS": place.progress_file,
        "BATUTA_CONTROL": place.control_dir,
    }


def build_setup_env(
    task: Task, place: ReplicaPlace, inherited: Mapping[str, str] = _NOTHING
) -> dict[str, str]:
    """What `setup` sees: all of `run`'s, and the two names that SkyPilot has for it there."""
    env = build_run_env(task, place, inherited)
    return env | {
        "SKYPILOT_SETUP_NODE_RANK": env["SKYPILOT_NODE_RANK"],
        "SKYPILOT_SETUP_NODE_IPS": env["SKYPILOT_NODE_IPS"],
    }
