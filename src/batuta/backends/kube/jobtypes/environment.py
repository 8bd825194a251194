"""The environment of a replica: the names that a task knows from everywhere else (see `batuta.spec.env`).

`CUDA_VISIBLE_DEVICES` is the device plugin's business here. Nodes have names instead of addresses: those
stay the same when a pod is replaced, and are known before the pods are.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.spec.task_env import is_set_by_batuta

EnvVar: TypeAlias = dict[str, Any]
MASTER_PORT: Final = 29500
LONGEST_HOST_LIST: Final = 16_384
"""Every pod of the job has it, and the API server keeps them all."""
SHARED_DIR: Final = "/batuta"
"""An emptyDir of the pod."""
PROGRESS_FILE: Final = "/dev/stderr"
"""Nobody sees the files of a pod, but the operator reads its log."""
CONTROL_DIR: Final = f"{SHARED_DIR}/control"
CHECKPOINT_VOLUME: Final = "checkpoints"
"""The volume of a template that survives restarts is told by this name."""
_CHECKPOINT_DIR: Final = "BATUTA_CHECKPOINT_DIR"


def host_of(job: UnifiedJob, name: str) -> str:
    """The name of a pod of this job in the cluster's DNS."""
    return f"{name}.{job.metadata.name}.{job.metadata.namespace}.svc"


def member_name(job: UnifiedJob, index: int) -> str:
    return f"{job.metadata.name}-{index}"


def host_list(job: UnifiedJob, count: int) -> str:
    """The members in the DNS, by replica, one per line; nothing when they are too many for a variable."""
    found = "\n".join(host_of(job, member_name(job, index)) for index in range(count))
    return found if len(found) <= LONGEST_HOST_LIST else ""


def run_env(job: UnifiedJob, run: Run) -> dict[str, str]:
    """What all replicas of a run have alike."""
    meta, replicas = job.metadata, job.spec.replica_spec
    gpus, count, master = str(replicas.gpus_per_replica), str(run.target), host_of(job, member_name(job, 0))
    return {
        "SKYPILOT_NODE_IPS": host_list(job, run.target),
        "SKYPILOT_NUM_NODES": count,
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
        "SKYPILOT_TASK_ID": f"batuta-{meta.namespace}-{meta.name}",
        "PET_NNODES": count,
        "PET_NPROC_PER_NODE": gpus,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(MASTER_PORT),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(MASTER_PORT),
        "WORLD_SIZE": count,
        "BATUTA_JOB_ID": job.id,
        "BATUTA_RESTART": str(run.start),
        "BATUTA_PROGRESS": PROGRESS_FILE,
        "BATUTA_CONTROL": CONTROL_DIR,
        "BATUTA_ANSWERS": SHARED_DIR,
    }


def rank_env(rank: str) -> dict[str, str]:
    """What each replica has for itself."""
    return {"SKYPILOT_NODE_RANK": rank, "PET_NODE_RANK": rank, "RANK": rank, "BATUTA_REPLICA": rank}


def from_annotation(name: str) -> EnvVar:
    """The value of an annotation of the pod, read when the container starts."""
    return {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}}


def merged(own: dict[str, str | EnvVar], container: dict[str, Any], defaults: dict[str, str]) -> list[EnvVar]:
    """Batuta's variables first, so that the user's may refer to them; the user's win over `defaults` only."""
    written = [one for one in container.get("env") or () if isinstance(one, dict)]
    said = {str(one.get("name")) for one in written}
    ours = own | {name: value for name, value in defaults.items() if name not in said}
    if _CHECKPOINT_DIR not in said:
        ours[_CHECKPOINT_DIR] = _checkpoint_dir(container)
    kept = [
        one
        for one in written
        if one.get("name") not in own and (one.get("name") == _CHECKPOINT_DIR or not _is_ours(one))
    ]
    return [_variable(name, value) for name, value in ours.items()] + kept


def _is_ours(variable: EnvVar) -> bool:
    return is_set_by_batuta(str(variable.get("name", "")))


def _variable(name: str, value: str | EnvVar) -> EnvVar:
    return {"name": name, "value": value} if isinstance(value, str) else {"name": name, **value}


def _checkpoint_dir(container: dict[str, Any]) -> str:
    """Where the template mounts its volume for checkpoints; else a folder that lives as long as the pod."""
    mounts = container.get("volumeMounts") or ()
    paths = (one.get("mountPath") for one in mounts if one.get("name") == CHECKPOINT_VOLUME)
    return str(next(paths, f"{SHARED_DIR}/checkpoints"))


def control_volume() -> dict[str, Any]:
    """A folder in which requests for a checkpoint appear: an annotation of the pod, as a file."""
    item = {
        "path": "checkpoint-request",
        "fieldRef": {"fieldPath": f"metadata.annotations['{names.CHECKPOINT_REQUEST}']"},
    }
    return {"name": "batuta-control", "downwardAPI": {"items": [item]}}
