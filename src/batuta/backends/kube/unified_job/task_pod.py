"""The pod template of a task file: its image, its script, its environment, what it needs beside GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from batuta.backends.kube.names import GPU_PRODUCT_LABELS
from batuta.spec.task import Task
from batuta.spec.task_env import is_set_by_batuta

Manifest: TypeAlias = dict[str, Any]
DOCKER: Final = "docker:"
CONTAINER: Final = "main"
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
if [ -n "$1" ] && ! attempt "$1"; then
  echo "setup failed with exit code $code" | tee /dev/termination-log >&2
  exit "$code"
fi
unset SKYPILOT_SETUP_NODE_RANK SKYPILOT_SETUP_NODE_IPS
attempt "$2"
"""
"""Runs setup, then run. As the first process of its container it gets SIGTERM alone, and would by default not
even end: it hands the signal to all, and ends when they have, with the exit code that run has then.

A signal ends `wait` with a code above 128, as a child that died of one does. So it asks again: it is told
127 if the child's own code was told already."""


def pod_template_of(
    task: Task, image: str, gpu_types: Sequence[str], secret: str = "", workdir: str = ""
) -> Manifest:
    """What each replica runs. `secret` has the task's secrets, `workdir` is its folder within the image."""
    container: Manifest = {
        "name": CONTAINER,
        "image": image,
        "command": command_of(task),
        "env": [
            {"name": name, "value": literal(value)} for name, value in task.envs if not is_set_by_batuta(name)
        ],
        # Data loaders hand batches over through it, and a container has 64 MiB without this.
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if workdir:
        container["workingDir"] = workdir
    if secret:
        container["envFrom"] = [{"secretRef": {"name": secret}}]
    if requests := _requests(task):
        container["resources"] = {"requests": requests}
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(task.elastic.grace_s),
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    if gpu_types:
        spec["affinity"] = _of_types(gpu_types)
    return {"spec": spec}


def command_of(task: Task) -> list[str]:
    """`setup`, then `run`, each in a shell of its own: bash where the image has it."""
    return ["/bin/sh", "-c", literal(_WRAPPER), "sh", literal(task.setup.strip()), literal(task.run.rstrip())]


def literal(text: str) -> str:
    """So that the kubelet leaves it as it is: it would fill in `$(NAME)`, and make one `$` of two."""
    return text.replace("$", "$$")


def known_products(types: Sequence[str], products: Sequence[str]) -> tuple[str, ...]:
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
    if task.memory_gib is not None:
        found["memory"] = f"{math.ceil(task.memory_gib.value * 1024)}Mi"
    return found


def _of_types(types: Sequence[str]) -> Manifest:
    """Nodes whose GPUs are of these types, by whichever label their cluster has for it."""
    terms = [
        {"matchExpressions": [{"key": label, "operator": "In", "values": list(types)}]}
        for label in GPU_PRODUCT_LABELS
    ]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}
