"""What jobs run on: nodes with GPUs, and what lies beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

NodeName: TypeAlias = str


@dataclass(frozen=True, slots=True)
class Node:
    """A machine. GPUs are numbered from 0; `nvlink` and `numa` give each GPU's group (empty: one group)."""

    name: NodeName
    gpus: int
    gpu_type: str = "gpu"
    gpu_memory_mib: int = 16_384
    cpus_milli: int = 0
    """0 means: not counted."""
    memory_mib: int = 0
    """0 means: not counted."""
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
        if self.gpus < 1:
            found.append(f"node {self.name}: GPUs must be at least 1, found {self.gpus}")
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
    """Some GPUs of one node."""

    node: NodeName
    gpus: tuple[int, ...]


class Placement(NamedTuple):
    """Which GPUs a job has. Worker i has the i-th GPUs in this order, so order keeps workers in place."""

    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        spans = self.spans
        # Most jobs lie on one node, and this is asked many times a cycle.
        return len(spans[0][1]) if len(spans) == 1 else sum([len(gpus) for _, gpus in spans])

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
        """One span per replica, in worker order."""
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
