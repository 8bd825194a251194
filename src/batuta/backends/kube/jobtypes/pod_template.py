"""The pods of a UnifiedJob: its template with labels, GPUs and the replica's environment added.

What the user wrote stays as it is. The environment has the names that a task has everywhere else (see
`batuta.spec.replica_env`). `CUDA_VISIBLE_DEVICES` is the device plugin's business here, and empty for a
CPU-only job. Nodes have names instead of addresses: those stay the same when a pod is replaced, and are known
before the pods are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.job_type import JOB, POD, SERVICE, Child, Manifest, Run, Update, metadata, sealed
from batuta.backends.kube.names import units_of
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.to_job import parse_quantity
from batuta.spec.replica_env import cluster_info
from batuta.spec.task_env import is_set_by_batuta

EnvVar: TypeAlias = dict[str, Any]
MASTER_PORT: Final = 29500
LONGEST_HOST_LIST: Final = 16_384
"""Beyond, names are shortened: every pod of the job has the list, and the API server keeps them all."""
LONGEST_BYTES: Final = 32_768
"""And not more than this: a job of thousands of replicas would fill the API server's memory."""
SHARED_DIR: Final = "/batuta"
PROGRESS_FILE: Final = "/dev/stderr"  # the operator does not see the files of a pod, but it reads its log
CONTROL_DIR: Final = f"{SHARED_DIR}/control"
CHECKPOINT_VOLUME: Final = "checkpoints"  # the volume of a template that survives restarts is told by this name
_CHECKPOINT_DIR: Final = "BATUTA_CHECKPOINT_DIR"
_NO_GPUS: Final = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
"""Of a CPU-only job. An image may ask for all GPUs of its node, and NVIDIA's runtime would give them."""
WORKER: Final = "worker"
LAUNCHER: Final = "launcher"
_MIB: Final = 2**20
_LAUNCHER_REQUESTS: Final = {"cpu": "500m", "memory": "512Mi"}
"""A launcher starts processes elsewhere; what the template asks for is for those."""
_GPU_RESOURCES: Final = (*names.GPU_RESOURCES, names.SHARE_MEMORY, names.SHARE_COMPUTE)


def host_of(job: UnifiedJob, name: str) -> str:
    return f"{name}.{job.metadata.name}.{job.metadata.namespace}.svc"


def member_name(job: UnifiedJob, index: int) -> str:
    return f"{job.metadata.name}-{index}"


def host_list(job: UnifiedJob, count: int) -> str:
    """The members in the DNS, by replica, one per line; never nothing.

    Where they are many, the names are those that the DNS completes within the namespace; where even these are
    too many, the first ones are listed. The first is where a job meets.
    """
    hosts = [host_of(job, member_name(job, index)) for index in range(max(1, count))]
    found = "\n".join(hosts)
    if len(found) <= LONGEST_HOST_LIST:
        return found
    short = "\n".join(f"{host.partition('.')[0]}.{job.metadata.name}" for host in hosts)
    return short if len(short) <= LONGEST_BYTES else short[: short.rindex("\n", 0, LONGEST_BYTES)]


def run_env(job: UnifiedJob, run: Run) -> dict[str, str]:
    meta, replicas = job.metadata, job.spec.replica_spec
    count, master = str(run.target), host_of(job, member_name(job, 0))
    return {
        "SKYPILOT_NODE_IPS": host_list(job, run.target),
        "SKYPILOT_NUM_NODES": count,
        "SKYPILOT_NUM_GPUS_PER_NODE": str(replicas.gpus_per_replica),
        "SKYPILOT_TASK_ID": f"batuta-{meta.namespace}-{meta.name}",
        "SKYPILOT_INTERNAL_JOB_ID": job.id,
        "SKYPILOT_USER": meta.annotations.get(names.USER, ""),
        "SKYPILOT_CLUSTER_INFO": cluster_info("kubernetes"),
        "PET_NNODES": count,
        "PET_NPROC_PER_NODE": str(replicas.processes_per_replica),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(MASTER_PORT),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(MASTER_PORT),
        "WORLD_SIZE": count,
        **(_NO_GPUS if replicas.cpu_only else {}),
        "BATUTA_JOB_ID": job.id,
        "BATUTA_RESTART": str(run.start),
        "BATUTA_PROGRESS": PROGRESS_FILE,
        "BATUTA_CONTROL": CONTROL_DIR,
        "BATUTA_ANSWERS": SHARED_DIR,
    }


def rank_env(rank: str) -> dict[str, str]:
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
    theirs = {name for name in said - own.keys() if name == _CHECKPOINT_DIR or not is_set_by_batuta(name)}
    values = {name: {"value": value} if isinstance(value, str) else value for name, value in ours.items()}
    listed = [{"name": name, **value} for name, value in values.items()]
    return listed + [one for one in written if str(one.get("name")) in theirs]


def _checkpoint_dir(container: dict[str, Any]) -> str:
    """Where the template mounts its volume for checkpoints; else a folder that lives as long as the pod."""
    mounts = container.get("volumeMounts") or ()
    paths = (one.get("mountPath") for one in mounts if one.get("name") == CHECKPOINT_VOLUME)
    return str(next(paths, f"{SHARED_DIR}/checkpoints"))


def control_volume() -> dict[str, Any]:
    """A folder in which requests for a checkpoint appear: an annotation of the pod, as a file."""
    item = {"path": "checkpoint-request", **from_annotation(names.CHECKPOINT_REQUEST)["valueFrom"]}
    return {"name": "batuta-control", "downwardAPI": {"items": [item]}}


def labels_of(job: UnifiedJob, run: Run, role: str) -> dict[str, str]:
    return {
        names.JOB_NAME: job.metadata.name,
        names.START: str(run.start),
        names.ROLE: role,
        names.QUEUE_NAME: job.spec.queue_name,
    }


def pod_template(
    job: UnifiedJob, run: Run, role: str, env: dict[str, str | EnvVar], defaults: dict[str, str] | None = None
) -> Manifest:
    """The template as a pod of this role has it: `metadata` and `spec`."""
    template: Manifest = copy.deepcopy(job.spec.replica_spec.template)
    meta = template.get("metadata") or {}
    spec: Manifest = template.get("spec") or {}
    spec["schedulerName"] = names.SCHEDULER
    spec.setdefault("restartPolicy", "Never")
    if job.spec.priority_class_name:
        spec.setdefault("priorityClassName", job.spec.priority_class_name)
    container: Manifest = spec["containers"][0]
    if role == WORKER:
        _give_gpus(job, spec)
    else:
        _take_gpus(spec)
    container["env"] = merged(env, container, defaults or {})
    # Why it failed: for people, and for the rules of health.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    _share_folder(spec, container)
    labels = {**(meta.get("labels") or {}), **labels_of(job, run, role)}
    return {"metadata": {"labels": labels, "annotations": dict(meta.get("annotations") or {})}, "spec": spec}


def member_pods(
    job: UnifiedJob,
    run: Run,
    env: dict[str, str] | None = None,
    defaults_of: Callable[[int], dict[str, str]] | None = None,
    command: list[str] | None = None,
) -> list[Child]:
    """The pods of all replicas; the host name of each is its own name, so that the others find it."""
    whole = {**run_env(job, run), **(env or {})}
    pods = []
    for index in range(run.target):
        name, defaults = member_name(job, index), defaults_of(index) if defaults_of else {}
        template = pod_template(job, run, WORKER, {**whole, **rank_env(str(index))}, defaults)
        spec: Manifest = template["spec"] | {"hostname": name, "subdomain": job.metadata.name}
        if command is not None:
            spec["containers"][0]["command"] = command
            spec["containers"][0].pop("args", None)
        labels = template["metadata"]["labels"] | {names.REPLICA_INDEX: str(index)}
        meta = metadata(job, name, labels, template["metadata"]["annotations"])
        # Not sealed: a pod is never compared with its manifest, and there are many.
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        pods.append(Child(POD, body, Update.KEEP))
    return pods


def members_service(job: UnifiedJob, ports: dict[str, int]) -> Child:
    """A headless Service: names in the DNS for all pods of the job, before they are ready."""
    name = job.metadata.name
    selector = {names.JOB_NAME: name}
    spec: Manifest = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    if ports:
        spec["ports"] = [{"name": word, "port": port} for word, port in ports.items()]
    body = {"metadata": metadata(job, name, dict(selector), {}), "spec": spec}
    return Child(SERVICE, sealed(SERVICE, body), Update.APPLY)


def launcher_job(job: UnifiedJob, run: Run, template: Manifest) -> Child:
    """A batch Job with the one pod that starts the processes of all workers."""
    name = f"{job.metadata.name}-{LAUNCHER}"
    template["spec"] |= {"hostname": name, "subdomain": job.metadata.name}
    spec = {"backoffLimit": 0, "completions": 1, "parallelism": 1, "template": template}
    body = {"metadata": metadata(job, name, labels_of(job, run, LAUNCHER), {}), "spec": spec}
    return Child(JOB, sealed(JOB, body), Update.KEEP)


def _give_gpus(job: UnifiedJob, spec: Manifest) -> None:
    """Writes the GPUs, or the share of one, into the first container, unless the template has them.

    A CPU-only job has none to write.
    """
    sharing = job.spec.sharing
    if sharing is None:
        if job.spec.replica_spec.cpu_only or any(_asks_for_gpus(one) for one in spec["containers"]):
            return
        wanted = {names.GPU_RESOURCES[0]: job.spec.replica_spec.gpus_per_replica}
    else:
        units = units_of(int((parse_quantity(sharing.gpu_memory) or 0) / _MIB))
        listed = {names.SHARE_MEMORY: units, names.SHARE_COMPUTE: sharing.gpu_compute or 0}
        wanted = {name: amount for name, amount in listed.items() if amount}
    resources = spec["containers"][0].setdefault("resources", {})
    for key in ("limits", "requests"):
        resources[key] = {**(resources.get(key) or {}), **{name: str(n) for name, n in wanted.items()}}


def _take_gpus(spec: Manifest) -> None:
    for one in spec["containers"]:
        resources = one.get("resources") or {}
        for key in ("limits", "requests"):
            listed = resources.get(key) or {}
            resources[key] = {name: n for name, n in listed.items() if name not in _GPU_RESOURCES}
    spec["containers"][0]["resources"] = {"requests": dict(_LAUNCHER_REQUESTS)}


def _asks_for_gpus(container: Manifest) -> bool:
    resources = container.get("resources") or {}
    return any(name in (resources.get(key) or {}) for key in ("limits", "requests") for name in _GPU_RESOURCES)


def _share_folder(spec: Manifest, container: Manifest) -> None:
    """The folders through which Batuta and the processes of the first container speak."""
    spec.setdefault("volumes", []).extend([{"name": "batuta", "emptyDir": {}}, control_volume()])
    control = {"name": "batuta-control", "mountPath": CONTROL_DIR, "readOnly": True}
    container.setdefault("volumeMounts", []).extend([{"name": "batuta", "mountPath": SHARED_DIR}, control])
