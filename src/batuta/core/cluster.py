"""Nodes with GPUs, placements on them, and which nodes a job accepts: labels, requirements, taints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

NodeName: TypeAlias = str


@dataclass(frozen=True, slots=True)
class Node:
    """A machine. GPUs are numbered from 0; `nvlink` and `numa` give each GPU's group (empty: one group).

    A node with 0 GPUs has CPU and memory for CPU-only jobs.
    """

    name: NodeName
    gpus: int
    gpu_type: str = "gpu"
    gpu_memory_mib: int = 16_384
    cpus_milli: int = 0  # 0 means: not counted
    memory_mib: int = 0  # 0 means: not counted
    rack: str = ""
    zone: str = ""
    nvlink: tuple[int, ...] = ()
    numa: tuple[int, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[str, ...] = ()
    gpu_compute_percent: int = 100
    """How much of a GPU's compute soft shares may be promised together; more than 100: than there is."""

    def faults(self) -> list[str]:
        found = []
        if not self.name:
            found.append("a node needs a name")
        if self.gpus < 0:
            found.append(f"node {self.name}: GPUs must be at least 0, found {self.gpus}")
        if self.gpu_memory_mib < 1:
            found.append(f"node {self.name}: GPU memory must be positive, found {self.gpu_memory_mib}")
        if self.gpu_compute_percent < 100:
            least = f"GPU compute must be at least 100 percent, found {self.gpu_compute_percent}"
            found.append(f"node {self.name}: {least}")
        for name, groups in (("nvlink", self.nvlink), ("numa", self.numa)):
            if groups and len(groups) != self.gpus:
                found.append(f"node {self.name}: {name} names {len(groups)} GPUs, the node has {self.gpus}")
        return found


class Span(NamedTuple):
    """Some GPUs of one node; none of them for a replica of a CPU-only job."""

    node: NodeName
    gpus: tuple[int, ...]


class Placement(NamedTuple):
    """Which GPUs a job has, in the order of its workers; a CPU-only job has a span without GPUs for each replica."""

    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        spans = self.spans
        # Most jobs lie on one node, and this is asked many times a cycle.
        return len(spans[0][1]) if len(spans) == 1 else sum([len(gpus) for _, gpus in spans])

    @property
    def units(self) -> int:
        """The size of the job that has this: its GPUs, or the replicas of a CPU-only job."""
        return self.size or len(self.spans)

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """The nodes in order of their first worker, each once."""
        return tuple(dict.fromkeys(span.node for span in self.spans))

    def counts(self) -> dict[NodeName, int]:
        """GPUs per node."""
        total: dict[NodeName, int] = {}
        for span in self.spans:
            total[span.node] = total.get(span.node, 0) + len(span.gpus)
        return total

    def workers(self, gpus_per_replica: int = 1) -> tuple[Span, ...]:
        """One span per replica, in worker order; as they are for a CPU-only job (0 GPUs per replica)."""
        if not gpus_per_replica:
            return self.spans
        return tuple(
            Span(span.node, span.gpus[i : i + gpus_per_replica])
            for span in self.spans
            for i in range(0, len(span.gpus), gpus_per_replica)
        )


def placement_of(gpus: Iterable[tuple[NodeName, int]]) -> Placement:
    """Joins neighbouring GPUs of the same node into spans, keeping the order."""
    spans: list[tuple[NodeName, list[int]]] = []
    for node, gpu in gpus:
        if spans and spans[-1][0] == node:
            spans[-1][1].append(gpu)
        else:
            spans.append((node, [gpu]))
    return Placement(tuple(Span(node, tuple(own)) for node, own in spans))


EVERYTHING = "*"  # the toleration of all taints


class Operator(Enum):
    """How a label is compared, as Kubernetes' selectors mean it."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    ABSENT = "DoesNotExist"
    ABOVE = "Gt"
    BELOW = "Lt"


class Requirement(NamedTuple):
    """What one label of a node has to be."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


NodeTerm: TypeAlias = tuple[Requirement, ...]  # requirements that a node has to meet together


class NodeSelector(Protocol):
    """A requirement on the labels of nodes."""

    @property
    def node_labels(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def node_terms(self) -> tuple[NodeTerm, ...]: ...

    @property
    def tolerations(self) -> tuple[str, ...]: ...


class _Taint(NamedTuple):
    """`key`, `key=value`, `key:effect` or `key=value:effect`, taken apart; None where nothing is said."""

    key: str
    value: str | None
    effect: str | None


@lru_cache(maxsize=1 << 12)
def _parsed(text: str) -> _Taint:
    head, colon, effect = text.partition(":")
    key, equals, value = head.partition("=")
    return _Taint(key, value if equals else None, effect if colon else None)


def tolerates(tolerations: Sequence[str], taint: str) -> bool:
    """Whether one of the tolerations covers the taint: one that says less covers more."""
    if taint in tolerations or EVERYTHING in tolerations:
        return True
    its = _parsed(taint)
    return any(_covers(_parsed(toleration), its) for toleration in tolerations)


def _covers(toleration: _Taint, taint: _Taint) -> bool:
    return (
        toleration.key in (taint.key, EVERYTHING)
        and (toleration.value is None or toleration.value == (taint.value or ""))
        and (toleration.effect is None or toleration.effect == taint.effect)
    )


def compares(requirement: Requirement, value: str) -> bool:
    """Whether a label's value is above or below the one that is asked for; what is no number is neither."""
    try:
        there, asked = int(value), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return there > asked if requirement.operator is Operator.ABOVE else there < asked
