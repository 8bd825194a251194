"""Many equal nodes at once, and how they are named, racked and wired when nothing is said."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from batuta.core.cluster import Node

DEFAULT_TYPE = "gpu"
MOST_GPUS = 1_000_000
NODES_PER_RACK = 16
NVLINK_GPUS = 8
GPU_MEMORY_MIB = {
    "k80": 12_288,
    "p100": 16_384,
    "v100": 16_384,
    "v100m16": 16_384,
    "v100m32": 32_768,
    "t4": 16_384,
    "a10": 24_576,
    "a10g": 24_576,
    "l4": 24_576,
    "l40s": 49_152,
    "a30": 24_576,
    "a100": 40_960,
    "a100-80gb": 81_920,
    "h100": 81_920,
    "h200": 144_384,
    "b200": 184_320,
}
"""What the vendor gives for each type; others count as 16 GiB unless a cluster file says more."""
_OTHER_MEMORY_MIB = 16_384


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`count` equal nodes. None leaves the choice to `build_nodes`."""

    count: int
    gpus: int
    gpu_type: str = DEFAULT_TYPE
    name: str = ""
    """The name of a single node, the beginning of the names of several; empty: the GPU type."""
    gpu_memory_mib: int | None = None
    cpus_milli: int = 0
    memory_mib: int = 0
    rack: str | None = None
    zone: str = ""
    nvlink: tuple[int, ...] | None = None
    numa: tuple[int, ...] | None = None
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        return self.name or re.sub(r"[^a-z0-9]+", "-", self.gpu_type.lower()).strip("-") or DEFAULT_TYPE


def build_nodes(groups: Sequence[NodeGroup]) -> tuple[Node, ...]:
    """The nodes in order.

    - Names are `t4-000`, `t4-001` …; a type that comes again goes on counting.
    - Nodes without a rack of their own fill `rack-0`, `rack-1` … with 16 each, in order.
    - NVLink joins up to 8 GPUs of a node; NUMA splits 4 and more GPUs into two halves.
    """
    totals: Counter[str] = Counter()
    for group in groups:
        totals[group.prefix] += group.count
    taken = {group.rack for group in groups if group.rack}
    free_racks = (name for name in (f"rack-{number}" for number in range(MOST_GPUS)) if name not in taken)
    used: Counter[str] = Counter()
    nodes: list[Node] = []
    unracked = 0
    rack = ""
    for group in groups:
        nvlink, numa = _wiring(group)
        for _ in range(group.count):
            if group.rack is None:
                if unracked % NODES_PER_RACK == 0:
                    rack = next(free_racks)
                unracked += 1
            nodes.append(
                Node(
                    name=_node_name(group, used[group.prefix], totals[group.prefix]),
                    gpus=group.gpus,
                    gpu_type=group.gpu_type,
                    gpu_memory_mib=group.gpu_memory_mib or memory_of(group.gpu_type),
                    cpus_milli=group.cpus_milli,
                    memory_mib=group.memory_mib,
                    rack=rack if group.rack is None else group.rack,
                    zone=group.zone,
                    nvlink=nvlink,
                    numa=numa,
                    labels=group.labels,
                    taints=group.taints,
                )
            )
            used[group.prefix] += 1
    return tuple(nodes)


def memory_of(gpu_type: str) -> int:
    return GPU_MEMORY_MIB.get(gpu_type.lower(), _OTHER_MEMORY_MIB)


def _node_name(group: NodeGroup, number: int, total: int) -> str:
    if group.name and total == 1:
        return group.name
    return f"{group.prefix}-{number:0{max(3, len(str(total - 1)))}d}"


def _wiring(group: NodeGroup) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """NVLink and NUMA group of each GPU; empty where all are in one."""
    gpus = range(group.gpus)
    nvlink, numa = group.nvlink, group.numa
    if nvlink is None:
        nvlink = () if group.gpus <= NVLINK_GPUS else tuple(gpu // NVLINK_GPUS for gpu in gpus)
    if numa is None:
        half = (group.gpus + 1) // 2
        numa = () if group.gpus < 4 else tuple(gpu // half for gpu in gpus)
    return nvlink, numa
