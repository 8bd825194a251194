"""A task file as a UnifiedJob: what `batuta launch --context` sends to a cluster.

What cannot come along is a problem, said before anything is sent: local folders are not uploaded. What is not
used on a cluster is a note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.unified_job.model import LONGEST_NAME
from batuta.backends.kube.unified_job.task_pod import DOCKER, known_products, pod_template_of
from batuta.core.job import JobKind, Spread
from batuta.spec.accelerator import ANY
from batuta.spec.problem import InputError, Problem
from batuta.spec.task import Task
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_job import find_kind
from batuta.spec.task_priority import CLASS_LABEL
from batuta.spec.task_resources import EXEC_TIME_LABEL, QUEUE_LABEL

Manifest: TypeAlias = dict[str, Any]
_TYPES: Final = {
    JobKind.SCRIPT: "Pods",
    JobKind.TORCH_ELASTIC: "TorchElastic",
    JobKind.HOROVOD_ELASTIC: "ElasticHorovod",
    JobKind.MPI: "MPIJob",
}
_OTHER_LABELS: Final = (QUEUE_LABEL, CLASS_LABEL, EXEC_TIME_LABEL)
_LABEL: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True, slots=True)
class TaskManifests:
    """What to create, in this order: the Secret, if the task has secrets, then the job."""

    job: Manifest
    secret: Manifest | None
    notes: tuple[str, ...]


def from_task(
    task: Task,
    namespace: str,
    *,
    name: str = "",
    user: str = "",
    workdir_in_image: str = "",
    products: Sequence[str] = (),
) -> TaskManifests:
    """The manifests of a task. Raises InputError with everything that stands against it.

    `products` are the GPUs of the cluster as its nodes are labelled; `workdir_in_image` says where the image
    has what the task calls its workdir.
    """
    own = _job_name(name or task.name)
    problems = _problems(task, own, workdir_in_image)
    if problems:
        raise InputError(problems)
    secret = f"{own}-env" if task.secrets else ""
    types = known_products([one.type for one in _alike(task) if one.type != ANY], products)
    template = pod_template_of(task, _image(task), types, secret, workdir_in_image)
    if task.gpu.soft:
        template["metadata"] = {"annotations": {names.SHARE_LIMITS: "soft"}}
    job: Manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": own,
            "namespace": namespace,
            "labels": _labels(task),
            "annotations": _annotations(task, user),
        },
        "spec": _spec(task, template),
    }
    return TaskManifests(job, _secret(task, namespace, secret), _notes(task))


def _problems(task: Task, name: str, workdir_in_image: str) -> list[Problem]:
    found = []
    if not name:
        found.append(Problem("the job has no name", fix="name: in the task file, or --name"))
    if not task.image_id:
        found.append(
            Problem(
                "a cluster needs an image to run", fix=f"resources.image_id: {DOCKER}IMAGE, with all it needs"
            )
        )
    elif not _image(task):
        found.append(
            Problem(
                f"resources.image_id {task.image_id[:80]!r} is not a container image", fix=f"{DOCKER}IMAGE"
            )
        )
    if task.workdir and not workdir_in_image:
        found.append(
            Problem(
                "workdir is a local folder, which is not uploaded to a cluster",
                fix="build it into the image and say where with --workdir-in-image, or fetch it in setup",
            )
        )
    found += [
        Problem(
            f"file_mounts {mount.target}: local files are not uploaded to a cluster",
            fix="build them into the image, or write a UnifiedJob with a volume",
        )
        for mount in task.file_mounts
    ]
    return found


def _spec(task: Task, template: Manifest) -> Manifest:
    elastic = task.elastic
    replicas: Manifest = {
        "minReplicas": elastic.min_nodes,
        "maxReplicas": elastic.max_nodes,
        "gpusPerReplica": max(1, task.gpus_per_node),
        "template": template,
    }
    if elastic.legal_sizes:
        replicas["sizes"] = list(elastic.legal_sizes)
    spec: Manifest = {
        "jobType": _TYPES[elastic.kind or find_kind(task.run)],
        "backoffLimit": task.max_restarts_on_errors,
        "replicaSpec": replicas,
    }
    if task.queue:
        spec["queueName"] = task.queue
    if task.priority_class:
        spec["priorityClassName"] = task.priority_class
    if task.max_exec_time_s:
        spec["activeDeadlineSeconds"] = math.ceil(task.max_exec_time_s)
    if sharing := _sharing(task):
        spec["sharing"] = sharing
    if topology := _topology(task):
        spec["topology"] = topology
    return spec


def _sharing(task: Task) -> Manifest:
    found: Manifest = {}
    part = next((one.count for one in task.accelerators if one.is_share), 0.0)
    percent = task.gpu.compute_percent or (max(1, round(part * 100)) if part else 0)
    if percent:
        found["gpuCompute"] = percent
    if task.gpu.memory_mib:
        found["gpuMemory"] = f"{task.gpu.memory_mib}Mi"
    return found


def _topology(task: Task) -> Manifest:
    wanted = task.gpu.topology
    found: Manifest = {}
    if wanted.within is not Spread.ANY:
        found = {"level": wanted.within.value, "mode": "Required" if wanted.required else "Preferred"}
    return found | ({"numa": "SingleNUMANode"} if wanted.single_numa else {})


def _annotations(task: Task, user: str) -> dict[str, str]:
    elastic = task.elastic
    interval = elastic.checkpoint is Checkpoint.INTERVAL
    found = {names.CHECKPOINT: f"{elastic.checkpoint_interval_s:g}" if interval else elastic.checkpoint.value}
    if task.auto_nodes:
        found[names.WANTED] = names.ANY_SIZE
    elif task.num_nodes != elastic.min_nodes:
        found[names.WANTED] = str(task.num_nodes)
    return found | _trial(task) | ({names.USER: user} if user else {})


def _trial(task: Task) -> dict[str, str]:
    """Whether it is to be tried out before it is queued, where it says so itself."""
    wishes = task.trial
    if wishes.wanted is None:
        return {}
    found = {names.TRIAL: "true" if wishes.wanted else "false"}
    if wishes.sizes:
        found[names.TRIAL_SIZES] = ",".join(map(str, wishes.sizes))
    for key, seconds in ((names.TRIAL_BUDGET, wishes.budget_s), (names.TRIAL_EACH, wishes.each_s)):
        if seconds is not None:
            found[key] = str(math.ceil(seconds))
    return found


def _labels(task: Task) -> dict[str, str]:
    """Those of the task that Kubernetes accepts; its queue and its limits have fields of their own."""
    return {
        key: value
        for key, value in task.labels
        if key not in _OTHER_LABELS and _LABEL.fullmatch(key) and _VALUE.fullmatch(value)
    }


def _secret(task: Task, namespace: str, name: str) -> Manifest | None:
    if not name:
        return None
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "Opaque",
        "stringData": dict(task.secrets),
    }


def _notes(task: Task) -> tuple[str, ...]:
    notes = list(task.notes)
    if task.priority:
        notes.append(
            "resources.priority is a number, and a cluster has classes: it is not used; name one with the "
            f"label {CLASS_LABEL}"
        )
    if task.recover_on_exit_codes:
        notes.append("recover_on_exit_codes is not used on a cluster: every exit code other than 0 counts")
    if len({one.count for one in task.accelerators}) > 1:
        notes.append(
            f"of the alternative accelerators, those with {task.accelerators[0].count:g} are asked for"
        )
    if task.trial.priority is not None:
        notes.append("trial.priority is a number, and a cluster has classes: its runs have that of the job")
    if task.auto_nodes:
        notes.append("num_nodes: auto: the operator chooses the size; status.sizeChoice has it, and why")
    return tuple(notes)


def _alike(task: Task) -> list[Any]:
    """The alternatives with as many GPUs as the best liked one: others would be another job."""
    listed = task.accelerators
    return [one for one in listed if one.count == listed[0].count]


def _image(task: Task) -> str:
    if not task.image_id.startswith(DOCKER):
        return ""  # an image of a cloud's virtual machines
    image = task.image_id.removeprefix(DOCKER)
    return "" if "://" in image or any(letter.isspace() for letter in image) else image


def _job_name(name: str) -> str:
    """The name as a host name can have it."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if plain and not plain[0].isalpha():
        plain = f"job-{plain}"
    return plain[:LONGEST_NAME].rstrip("-")
