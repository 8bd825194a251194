"""Conditions that others set on a node, as lines that rules of the table `log` can look for.

Node-problem-detector and its like say what ails a node by conditions. A rule `if: 'node condition
KernelDeadlock=True'` makes one of them a finding. Conditions of the kubelet are none: whether a node is
ready, the scheduler sees by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from batuta.backends.kube import objects

OWN: Final = "BatutaUnhealthy"
_KUBELET: Final = frozenset(
    {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", OWN}
)


def condition_lines(node: objects.Node) -> Iterator[tuple[str, str, str]]:
    """Of each condition of others: its type, since when it holds, and the line."""
    for one in node.status.conditions:
        if one.type and one.type not in _KUBELET:
            line = f"node condition {one.type}={one.status} {one.reason}: {one.message}"
            yield one.type, one.last_transition_time, line
