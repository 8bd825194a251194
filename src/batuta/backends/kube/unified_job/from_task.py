"""A task file as a UnifiedJob and its pod template: what `batuta launch --context` sends to a cluster.

What a cluster cannot do is a problem, reported before anything is sent: local folders are not uploaded. What
a cluster ignores is a note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.crd import LONGEST_NAME
from batuta.backends.kube.names import GPU_PRODUCT_LABELS
from batuta.core.job import JobKind, Spread
from batuta.spec.problem import InputError, Problem
from batuta.spec.skypilot_keys import endpoints, image_of
from batuta.spec.task import Task, host_name
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_env import is_set_by_batuta
from batuta.spec.task_job import DEFAULT_CPUS_MILLI
from batuta.spec.task_resources import ANY_GPU, CLASS_LABEL, QUEUE_LABEL, TIME_LIMIT_LABELS

Manifest: TypeAlias = dict[str, Any]
DOCKER: Final = "docker:"
CONTAINER: Final = "main"
_TYPES: Final = {
    JobKind.SCRIPT: "Pods",
    JobKind.TORCH_ELASTIC: "TorchElastic",
    JobKind.HOROVOD_ELASTIC: "ElasticHorovod",
    JobKind.MPI: "MPIJob",
}
_OTHER_LABELS: Final = (QUEUE_LABEL, CLASS_LABEL, *TIME_LIMIT_LABELS)
MOST_PORTS: Final = 256
_LOGIN: Final = frozenset(("SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD", "SKYPILOT_DOCKER_SERVER"))
_LABEL: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_WRAPPER: Final = """\
shell=$(command -v bash || echo /bin/sh)
attempt() {
  "$shell" -c "$1" &
  child=$!
  wait "$child"; code=$?
  if [ "$code" -gt 128 ]; then
    wait "$child" 2>/dev/null; again=$?
    [ "$again" = 127 ] || code=$again
  fi
  return "$code"
}
trap 'trap "" TERM; kill -TERM 0' TERM
export SKYPILOT_SETUP_NODE_RANK="$SKYPILOT_NODE_RANK" SKYPILOT_SETUP_NODE_IPS="$SKYPILOT_NODE_IPS"
export SKYPILOT_SETUP_NUM_GPUS_PER_NODE="$SKYPILOT_NUM_GPUS_PER_NODE"
if [ -n "$1" ] && ! attempt "$1"; then
  echo "setup failed with exit code $code" | tee /dev/termination-log >&2
  exit "$code"
fi
unset SKYPILOT_SETUP_NODE_RANK SKYPILOT_SETUP_NODE_IPS SKYPILOT_SETUP_NUM_GPUS_PER_NODE
attempt "$2"
"""
"""Runs setup, then run. As the first process of its container it gets SIGTERM alone, and would by default not
even end: it hands the signal to all, and ends when they have, with the exit code that run has then.

A signal ends `wait` with a code above 128, as a child that died of one does. So it asks again: it is told
127 if the child's own code was told already."""


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
    own = host_name(name or task.name, LONGEST_NAME)
    problems = _problems(task, own, workdir_in_image)
    if problems:
        raise InputError(problems)
    secret = f"{own}-env" if task.secrets else ""
    types = _known_products([one.type for one in _alike(task) if one.type != ANY_GPU], products)
    template = _pod_template(task, image_of(task.image_id), types, secret, workdir_in_image)
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
    notes = (*_notes(task), *_told_ports(task, job))
    if task.name and not task.name.isascii():
        notes += (f"on the cluster it is called {own}: names of its objects are ASCII",)
    return TaskManifests(job, _secret(task, namespace, secret), notes)


def _pod_template(task: Task, image: str, gpu_types: Sequence[str], secret: str, workdir: str) -> Manifest:
    """What each replica runs. `secret` has the task's secrets, `workdir` is its folder within the image."""
    ports = dict.fromkeys(port for low, high in task.ports for port in range(low, high + 1))
    requests = _requests(task)
    container: Manifest = {
        "name": CONTAINER,
        "image": image,
        # `setup`, then `run`, each in a shell of its own: bash where the image has it.
        "command": ["/bin/sh", "-c", *map(_literal, (_WRAPPER, "sh", task.setup.strip(), task.run.rstrip()))],
        "env": [{"name": name, "value": _literal(value)} for name, value in task.envs if not is_set_by_batuta(name)],
        # Data loaders hand batches over through it, and a container has 64 MiB without this.
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        **_said(
            ports=[{"containerPort": port} for port in ports],
            workingDir=workdir,
            envFrom=[{"secretRef": {"name": secret}}] if secret else None,
            resources={"requests": requests} if requests else None,
        ),
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(task.elastic.grace_s),
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        **_said(affinity=_of_types(gpu_types) if gpu_types else None),
    }
    return {"spec": spec}


def _said(**fields: Any) -> Manifest:
    return {key: value for key, value in fields.items() if value}


def _literal(text: str) -> str:
    """So that the kubelet leaves it as it is: it would fill in `$(NAME)`, and make one `$` of two."""
    return text.replace("$", "$$")


def _known_products(types: Sequence[str], products: Sequence[str]) -> tuple[str, ...]:
    """The types as nodes are labelled with them: `H100` is any product with that word in its name."""
    found = []
    for one in types:
        words = set(one.lower().split("-"))
        matching = [name for name in products if words <= set(name.lower().split("-"))]
        found += matching or [one]
    return tuple(dict.fromkeys(found))


def _requests(task: Task) -> dict[str, str]:
    found = {}
    if task.cpus is not None:
        found["cpu"] = f"{math.ceil(task.cpus.value * 1000)}m"
    elif not task.gpus_per_node:
        found["cpu"] = f"{DEFAULT_CPUS_MILLI}m"
    if task.memory_gib is not None:
        found["memory"] = f"{math.ceil(task.memory_gib.value * 1024)}Mi"
    return found


def _of_types(types: Sequence[str]) -> Manifest:
    """Nodes whose GPUs are of these types, by whichever label their cluster has for it."""
    terms = [
        {"matchExpressions": [{"key": label, "operator": "In", "values": list(types)}]} for label in GPU_PRODUCT_LABELS
    ]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}


def _problems(task: Task, name: str, workdir_in_image: str) -> list[Problem]:
    found = []
    if not name:
        found.append(Problem("the job has no name", fix="name: in the task file, or --name"))
    if not task.image_id:
        fix = f"resources.image_id: {DOCKER}IMAGE, with all it needs"
        found.append(Problem("a cluster needs an image to run", fix=fix))
    elif not image_of(task.image_id):
        what = f"resources.image_id {task.image_id[:80]!r} is not a container image"
        found.append(Problem(what, fix=f"{DOCKER}IMAGE"))
    if task.workdir and not workdir_in_image:
        fix = "build it into the image and say where with --workdir-in-image, or fetch it in setup"
        found.append(Problem("workdir is a local folder, which is not uploaded to a cluster", fix=fix))
    for mount in task.file_mounts:
        fix = "build them into the image, or write a UnifiedJob with a volume"
        found.append(Problem(f"file_mounts {mount.target}: local files are not uploaded to a cluster", fix=fix))
    if sum(high + 1 - low for low, high in task.ports) > MOST_PORTS:
        found.append(Problem(f"ports: a pod names at most {MOST_PORTS}", fix="list those that are used"))
    if _LOGIN & {name for name, _ in (*task.envs, *task.secrets)}:
        what = "SKYPILOT_DOCKER_PASSWORD: a cluster logs in at a registry by a Secret of its own"
        fix = "remove it, and add the Secret to imagePullSecrets of the namespace's service account"
        found.append(Problem(what, fix=fix))
    return found


def _told_ports(task: Task, job: Manifest) -> list[str]:
    """Where its ports are reached: within the cluster by name, from here through the API server."""
    if not task.ports:
        return []
    pod, own, namespace = lead_pod(job), job["metadata"]["name"], job["metadata"]["namespace"]
    places = ", ".join(endpoints(f"{pod}.{own}.{namespace}.svc", task.ports))
    forward = f"kubectl port-forward -n {namespace} pod/{pod} {task.ports[0][0]}"
    return [f"ports: reached at {places} within the cluster while the job runs; from here: {forward}"]


def lead_pod(job: Manifest) -> str:
    name = job["metadata"]["name"]
    led = job["spec"]["jobType"] in ("MPIJob", "ElasticHorovod")
    return f"{name}-launcher" if led else f"{name}-0"


def _spec(task: Task, template: Manifest) -> Manifest:
    elastic = task.elastic
    return {
        "jobType": _TYPES[elastic.kind_of(task.run)],
        "backoffLimit": task.max_restarts_on_errors,
        "replicaSpec": {
            "minReplicas": elastic.min_nodes,
            "maxReplicas": elastic.max_nodes,
            "gpusPerReplica": task.gpus_per_node,
            "template": template,
            **_said(sizes=list(elastic.legal_sizes or ()), restartable=elastic.restartable),
        },
        **_said(
            queueName=task.queue,
            priorityClassName=task.priority_class,
            activeDeadlineSeconds=math.ceil(task.max_exec_time_s or 0.0),
            sharing=_sharing(task),
            topology=_topology(task),
        ),
    }


def _sharing(task: Task) -> Manifest:
    part = next((one.count for one in task.accelerators if one.is_share), 0.0)
    percent = task.gpu.compute_percent or (max(1, round(part * 100)) if part else 0)
    return _said(gpuCompute=percent, gpuMemory=f"{task.gpu.memory_mib}Mi" if task.gpu.memory_mib else "")


def _topology(task: Task) -> Manifest:
    wanted = task.gpu.topology
    found: Manifest = {}
    if wanted.within is not Spread.ANY:
        found = {"level": wanted.within.value, "mode": "Required" if wanted.required else "Preferred"}
    return found | ({"numa": "SingleNUMANode"} if wanted.single_numa and task.gpus_per_node else {})


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
    requirements = task.trial
    if requirements.wanted is None:
        return {}
    found = {names.TRIAL: "true" if requirements.wanted else "false"}
    if requirements.sizes:
        found[names.TRIAL_SIZES] = ",".join(map(str, requirements.sizes))
    for key, seconds in ((names.TRIAL_BUDGET, requirements.budget_s), (names.TRIAL_EACH, requirements.each_s)):
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
        notes.append(f"of the alternative accelerators, those with {task.accelerators[0].count:g} are asked for")
    if task.gpu.topology.single_numa and not task.gpus_per_node:
        notes.append("gpu.numa is not used on a cluster by a task without accelerators: it is about GPUs")
    if task.trial.priority is not None:
        notes.append("trial.priority is a number, and a cluster has classes: its runs have that of the job")
    if task.auto_nodes:
        notes.append("num_nodes: auto: the operator chooses the size; status.sizeChoice has it, and why")
    return tuple(notes)


def _alike(task: Task) -> list[Any]:
    """The alternatives with as many GPUs as the best liked one: others would be another job."""
    listed = task.accelerators
    return [one for one in listed if one.count == listed[0].count]
