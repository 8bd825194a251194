"""The pod that proves that a node or GPU works again, and what its end says. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from batuta.backends.kube import names, objects
from batuta.core.health_record import WHOLE_NODE, Target

_NOT_ITS_FAULT: Final = (
    "OutOf",
    "UnexpectedAdmissionError",
    "Evicted",
    "Preempting",
    "NodeShutdown",
    "Shutdown",
)
"""How a kubelet refuses or ends a pod before it could prove anything."""
_NOBODY: Final = 65_532


@dataclass(frozen=True, slots=True)
class BurnInOptions:
    """How a burn-in is done."""

    image: str = ""
    """Empty: none can be done."""
    command: tuple[str, ...] = ("python", "-m", "batuta.gpu.health.burn_in", "--gpu", "0")
    """What tests the first GPU that it sees, and ends with 0 if that works."""
    runtime_class: str = ""
    timeout_s: int = 1800
    namespace: str = "batuta-system"


class Outcome(Enum):
    """How a burn-in stands."""

    UNDER_WAY = "under way"
    PASSED = "passed"
    FAILED = "failed"
    AGAIN = "it was not its fault: another pod is to try"


class Attempt(NamedTuple):
    """One burn-in. The same target that fell ill anew is another one."""

    target: Target
    since_s: float

    @property
    def mark(self) -> str:
        """What its pod is known by."""
        told = f"{self.target.node} {self.target.gpu} {self.since_s:.3f}"
        return hashlib.sha256(told.encode()).hexdigest()[:16]


def burn_in_pod(options: BurnInOptions, attempt: Attempt, resource: str, gpus: int) -> dict[str, Any]:
    """A pod for one node, with a container for each GPU, all at once.

    For a whole node it asks the kubelet for all GPUs, so that nobody else has one. A GPU alone is withheld by
    the device plugin, and cannot be asked for: it is reached by its number.
    """
    target, mark = attempt.target, attempt.mark
    is_whole = target.gpu == WHOLE_NODE
    numbers = range(gpus) if is_whole else (target.gpu,)
    containers = [_container(options, number, resource if is_whole else "") for number in numbers]
    spec: dict[str, Any] = {
        "nodeName": target.node,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": options.timeout_s,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
    }
    if options.runtime_class:
        spec["runtimeClassName"] = options.runtime_class
    labels = {
        "app.kubernetes.io/name": "batuta",
        "app.kubernetes.io/component": "burn-in",
        names.BURN_IN: mark,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"batuta-burn-in-{mark}", "namespace": options.namespace, "labels": labels},
        "spec": spec,
    }


def _container(options: BurnInOptions, gpu: int, resource: str) -> dict[str, Any]:
    """Sees one GPU, which is the first for it."""
    given: dict[str, Any] = {"resources": {"limits": {resource: "1"}}}
    if not resource:
        given = {
            "env": [
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": str(gpu)},
                {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
            ]
        }
    return {
        "name": f"gpu-{gpu}",
        "image": options.image,
        "command": list(options.command),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **given,
    }


def outcome_of(pod: objects.Pod) -> tuple[Outcome, str]:
    """What a pod says by its end, and the sentence for people."""
    status = pod.status
    if status.phase == "Succeeded":
        return Outcome.PASSED, ""
    if status.phase != "Failed":
        return Outcome.UNDER_WAY, ""
    if status.reason.startswith(_NOT_ITS_FAULT):
        return Outcome.AGAIN, f"{status.reason}: {status.message}"
    said = [status.reason, status.message]
    for one in status.container_statuses:
        ended = one.state.terminated
        if ended is not None and ended.exit_code:
            last = ended.message.strip().rpartition("\n")[2]
            said.append(f"{one.name} ended with {ended.exit_code}{last and f': {last}'}")
    return Outcome.FAILED, ", ".join(filter(None, said))[:400] or "its pod failed"
