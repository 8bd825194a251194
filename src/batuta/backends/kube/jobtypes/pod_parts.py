"""From the template of a UnifiedJob to the pods that it stands for. What the user wrote stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.child import (
    JOB,
    POD,
    SERVICE,
    Child,
    Manifest,
    Update,
    metadata,
    sealed,
)
from batuta.backends.kube.jobtypes.environment import (
    CONTROL_DIR,
    SHARED_DIR,
    EnvVar,
    control_volume,
    member_name,
    merged,
    rank_env,
    run_env,
)
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.share_units import units_of
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.quantity import parse_quantity

WORKER: Final = "worker"
LAUNCHER: Final = "launcher"
_MIB: Final = 2**20
_LAUNCHER_REQUESTS: Final = {"cpu": "500m", "memory": "512Mi"}
"""A launcher starts processes elsewhere; what the template asks for is for those."""
_GPU_RESOURCES: Final = (*names.GPU_RESOURCES, names.SHARE_MEMORY, names.SHARE_COMPUTE)


def labels_of(job: UnifiedJob, run: Run, role: str) -> dict[str, str]:
    """By which the children of a job are found."""
    return {
        names.JOB_NAME: job.metadata.name,
        names.START: str(run.start),
        names.ROLE: role,
        names.QUEUE_NAME: job.spec.queue_name,
    }


def pod_template(
    job: UnifiedJob,
    run: Run,
    role: str,
    env: dict[str, str | EnvVar],
    defaults: dict[str, str] | None = None,
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
    return {
        "metadata": {
            "labels": {**(meta.get("labels") or {}), **labels_of(job, run, role)},
            "annotations": dict(meta.get("annotations") or {}),
        },
        "spec": spec,
    }


def member_pods(
    job: UnifiedJob,
    run: Run,
    env: dict[str, str] | None = None,
    defaults_of: Callable[[int], dict[str, str]] | None = None,
    command: list[str] | None = None,
) -> list[Child]:
    """The pods of all replicas; the host name of each is its own name, so that the others find it."""
    whole = {**run_env(job, run), **(env or {})}
    return [
        _member(job, run, index, whole, defaults_of(index) if defaults_of else {}, command)
        for index in range(run.target)
    ]


def _member(
    job: UnifiedJob,
    run: Run,
    index: int,
    env: dict[str, str],
    defaults: dict[str, str],
    command: list[str] | None,
) -> Child:
    name = member_name(job, index)
    template = pod_template(job, run, WORKER, {**env, **rank_env(str(index))}, defaults)
    spec: Manifest = template["spec"] | {"hostname": name, "subdomain": job.metadata.name}
    if command is not None:
        spec["containers"][0]["command"] = command
        spec["containers"][0].pop("args", None)
    labels = template["metadata"]["labels"] | {names.REPLICA_INDEX: str(index)}
    meta = metadata(job, name, labels, template["metadata"]["annotations"])
    # Not sealed: a pod is never compared with its manifest, and there are many.
    return Child(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, Update.KEEP)


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
    body = {
        "metadata": metadata(job, name, labels_of(job, run, LAUNCHER), {}),
        "spec": {"backoffLimit": 0, "completions": 1, "parallelism": 1, "template": template},
    }
    return Child(JOB, sealed(JOB, body), Update.KEEP)


def _give_gpus(job: UnifiedJob, spec: Manifest) -> None:
    """Writes the GPUs, or the share of one, into the first container, unless the template has them."""
    sharing = job.spec.sharing
    if sharing is None:
        if any(_asks_for_gpus(one) for one in spec["containers"]):
            return
        wanted = {names.GPU_RESOURCES[0]: job.spec.replica_spec.gpus_per_replica}
    else:
        memory_mib = int((parse_quantity(sharing.gpu_memory) or 0) / _MIB)
        units = units_of(memory_mib)
        listed = ((names.SHARE_MEMORY, units), (names.SHARE_COMPUTE, sharing.gpu_compute or 0))
        wanted = {name: amount for name, amount in listed if amount}
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
    return any(
        name in (resources.get(key) or {}) for key in ("limits", "requests") for name in _GPU_RESOURCES
    )


def _share_folder(spec: Manifest, container: Manifest) -> None:
    """The folders through which Batuta and the processes of the first container speak."""
    volumes: list[Any] = spec.setdefault("volumes", [])
    volumes += [{"name": "batuta", "emptyDir": {}}, control_volume()]
    mounts: list[Any] = container.setdefault("volumeMounts", [])
    mounts += [
        {"name": "batuta", "mountPath": SHARED_DIR},
        {"name": "batuta-control", "mountPath": CONTROL_DIR, "readOnly": True},
    ]
