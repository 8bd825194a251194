"""Burn-in pods: prove that a repaired node or GPU works again before it returns to service."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.binder.gpu_table import gpus_of_node
from batuta.backends.kube.binder.requests import pod_requests
from batuta.backends.kube.bounded_text import read_gpus
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.health.taints import PREFIX
from batuta.backends.kube.operator.nodes import count
from batuta.backends.kube.operator.workqueue import AskFn, create_unless_there, delete_object
from batuta.core.cluster import NodeName
from batuta.core.health import HealthStateMachine
from batuta.core.health_record import WHOLE_NODE, Order, State, Target

_NOT_ITS_FAULT: Final = ("OutOf", "UnexpectedAdmissionError", "Evicted", "Preempting", "NodeShutdown", "Shutdown")
"""How a kubelet refuses or ends a pod before it could prove anything."""
_UID: Final = 65_532
_log = logging.getLogger(__name__)
_SHARES: Final = (names.SHARE_MEMORY, names.SHARE_COMPUTE)


@dataclass(frozen=True, slots=True)
class BurnInOptions:
    """How a burn-in is done."""

    image: str = ""  # empty: none can be done
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
        told = f"{self.target.node} {self.target.gpu} {self.since_s:.3f}"
        return hashlib.sha256(told.encode()).hexdigest()[:16]


def burn_in_pod(options: BurnInOptions, attempt: Attempt, resource: str, gpus: int) -> dict[str, Any]:
    """A pod for one node, with a container for each GPU, all at once.

    For a whole node it asks the kubelet for all GPUs, so that no other pod has one. A GPU alone is withheld
    by the device plugin, and cannot be asked for: it is reached by its number.
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
            "runAsUser": _UID,
            "runAsGroup": _UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
    }
    if options.runtime_class:
        spec["runtimeClassName"] = options.runtime_class
    labels = {"app.kubernetes.io/name": "batuta", "app.kubernetes.io/component": "burn-in", names.BURN_IN: mark}
    metadata = {"name": f"batuta-burn-in-{mark}", "namespace": options.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(options: BurnInOptions, gpu: int, resource: str) -> dict[str, Any]:
    """Sees one GPU, which is the first for it."""
    seen = {"NVIDIA_VISIBLE_DEVICES": str(gpu), "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    given: dict[str, Any] = {"env": [{"name": name, "value": value} for name, value in seen.items()]}
    if resource:
        given = {"resources": {"limits": {resource: "1"}}}
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


@dataclass(slots=True, eq=False)
class BurnInController:
    """Level-triggered: a target that is to be burnt in has one pod, and nothing else has."""

    _options: BurnInOptions
    _gpu_resources: Sequence[str]
    _nodes: Mapping[str, objects.Node]
    _guests: Callable[[NodeName], Iterable[objects.Pod]]  # the pods that are on a node
    _ask: AskFn
    _pods: dict[str, objects.Pod] = field(default_factory=dict)  # by the mark of their attempt
    _warned: bool = False

    def see(self, pod: objects.Pod, is_gone: bool) -> bool:
        """A pod has come, changed or gone; whether it is a burn-in."""
        mark = pod.metadata.labels.get(names.BURN_IN)
        if mark is None or pod.metadata.namespace != self._options.namespace:
            return False
        if is_gone:
            self._pods.pop(mark, None)
        else:
            self._pods[mark] = pod
        return True

    def conclude(self, book: HealthStateMachine, now_s: float) -> list[Order]:
        orders: list[Order] = []
        for attempt in _attempts(book):
            pod = self._pods.get(attempt.mark)
            outcome, detail = (Outcome.UNDER_WAY, "") if pod is None else outcome_of(pod)
            if outcome in {Outcome.PASSED, Outcome.FAILED}:
                orders += book.burnt_in(attempt.target, outcome is Outcome.PASSED, detail, now_s)
        return orders

    def drive(self, book: HealthStateMachine, now_s: float) -> None:
        """Begins what is to begin, and clears away what has said all it had to say."""
        wanted = {attempt.mark: attempt for attempt in _attempts(book)}
        for mark, pod in list(self._pods.items()):
            again = outcome_of(pod)[0] is Outcome.AGAIN
            if (mark not in wanted or again) and not pod.metadata.deletion_timestamp:
                meta = pod.metadata
                self._ask(f"{PREFIX}delete/{meta.uid}", partial(delete_object, POD, meta), now_s)
        for mark, attempt in wanted.items():
            if mark not in self._pods:
                self._begin(attempt, now_s)

    def _begin(self, attempt: Attempt, now_s: float) -> None:
        node = self._nodes.get(attempt.target.node)
        if node is None or self._in_use(attempt.target):
            return
        if any(one.type == "Ready" and one.status != "True" for one in node.status.conditions):
            return
        if not self._options.image:
            if not self._warned:
                _log.warning("%s cannot be burnt in: health.burnIn.image is not set", attempt.target)
            self._warned = True
            return
        allocatable = node.status.allocatable
        resource = next((name for name in self._gpu_resources if count(allocatable, name)), "")
        gpus = count(allocatable, resource) if resource else len(gpus_of_node(node))
        body = burn_in_pod(self._options, attempt, resource, gpus)
        self._ask(f"{PREFIX}burn-in/{attempt.mark}", partial(create_unless_there, POD, body), now_s)

    def _in_use(self, target: Target) -> bool:
        """Whether other pods use the GPUs that would be tested: they stay where they are."""
        for pod in self._guests(target.node):
            if is_over(pod) or names.BURN_IN in pod.metadata.labels:
                continue
            asked = pod_requests(pod)
            if not any(asked.get(name) for name in (*self._gpu_resources, *_SHARES)):
                continue
            given = read_gpus(pod.metadata.annotations)
            if target.gpu == WHOLE_NODE or not given or target.gpu in given:
                return True
        return False


def _attempts(book: HealthStateMachine) -> Iterator[Attempt]:
    for target, record in sorted(book.records.items()):
        if record.state is State.BURN_IN and not record.held:
            yield Attempt(target, record.since_s)
