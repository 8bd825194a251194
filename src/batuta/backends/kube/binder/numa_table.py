"""Free resources of each NUMA node, by the kubelet's reports and by the pods bound since.

Which requests the kubelet aligns with NUMA nodes follows the rules of its topology manager.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import numpy as np

from batuta.backends.kube import objects
from batuta.backends.kube.binder.node_table import Flags, Ints, padded
from batuta.backends.kube.binder.requests import ContainerNeed, Needs, amount, container_needs, is_guaranteed, units
from batuta.backends.kube.bounded_text import read_whole

_FEWEST: Final = 2


class Alignment(IntEnum):
    """What the kubelet's topology manager does with a pod that does not fit well."""

    OPEN = 0  # it lets the pod in: policies `none` and `best-effort`
    RESTRICTED = 1  # it refuses a pod that gets more NUMA nodes than it would need on an empty node
    SINGLE = 2  # it refuses a pod that does not fit one NUMA node


class NumaTable:
    """Tables of nodes × NUMA nodes. Rows are those of the node table."""

    def __init__(self) -> None:
        self.alignment: Ints = np.zeros(0, np.int64)
        self.by_pod: Flags = np.zeros(0, np.bool_)  # whether a whole pod is aligned; else each of its containers is
        self.pins_cpus: Flags = np.zeros(0, np.bool_)
        self.pins_memory: Flags = np.zeros(0, np.bool_)
        self.exists: Flags = np.zeros((0, _FEWEST), np.bool_)
        self.capacity: dict[str, Ints] = {}
        self.available: dict[str, Ints] = {}
        self.sent: dict[str, Ints] = {}
        """What pods will take that no report shows yet; from which NUMA node is not known."""
        self._sent: dict[int, dict[str, Needs]] = {}  # the same by row and pod uid
        self._shown: dict[int, frozenset[str]] = {}  # by row: uids of the pods that ran when the last report came

    @property
    def is_empty(self) -> bool:
        return not self._shown

    def resize(self, capacity: int, zones: int = 0) -> None:
        rows, width = self.exists.shape
        shape = (max(rows, capacity), max(width, zones))
        for name in ("alignment", "by_pod", "pins_cpus", "pins_memory", "exists"):
            column = getattr(self, name)
            setattr(self, name, padded(column, shape[: column.ndim]))
        for table in (self.capacity, self.available, self.sent):
            table |= {name: padded(cells, shape[: cells.ndim]) for name, cells in table.items()}

    def put(
        self, row: int, topology: objects.NodeResourceTopology | None, counted_pods: Iterable[tuple[str, bool, Needs]]
    ) -> None:
        """Reads a report. Pods that do not run yet cannot be in it, and are taken off every NUMA node."""
        self._clear(row)
        if topology is None:
            return
        self._read_settings(row, topology)
        self._read_zones(row, [zone for zone in topology.zones if zone.type == "Node"])
        everyone = list(counted_pods)
        self._shown[row] = frozenset(uid for uid, running, _ in everyone if running)
        for uid, running, needs in everyone:
            if not running:
                self.take(row, uid, needs, 1)

    def take(self, row: int, uid: str, needs: Needs, sign: int) -> None:
        """A pod was sent to a node (`sign` 1), or left it (-1); a report that shows it is not corrected."""
        if row not in self._shown or not needs:
            return
        known = self._sent.setdefault(row, {})
        if sign > 0 and uid not in self._shown[row] and uid not in known:
            known[uid] = needs
            self._count(row, needs, 1)
        elif sign < 0 and uid in known:
            self._count(row, known.pop(uid), -1)

    def has_report(self, row: int) -> bool:
        return row in self._shown

    def left(self, row: int, resource: str) -> Ints | None:
        """What each NUMA node has left at worst; None where the report does not say, so it is not aligned."""
        cells = self.available.get(resource)
        if cells is None or not self.capacity[resource][row].any():
            return None
        left: Ints = cells[row] - (self.sent[resource][row] if resource in self.sent else 0)
        return left

    def _count(self, row: int, needs: Needs, sign: int) -> None:
        for name, value in needs:
            if name not in self.sent:
                self.sent[name] = np.zeros(len(self.alignment), np.int64)
            self.sent[name][row] += sign * value

    def _clear(self, row: int) -> None:
        self.alignment[row] = Alignment.OPEN
        for flags in (self.by_pod, self.pins_cpus, self.pins_memory, self.exists):
            flags[row] = False
        self._shown.pop(row, None)
        self._sent.pop(row, None)
        for table in (self.capacity, self.available, self.sent):
            for cells in table.values():
                cells[row] = 0

    def _read_settings(self, row: int, topology: objects.NodeResourceTopology) -> None:
        stated = {one.name: one.value for one in topology.attributes}
        policy = stated.get("topologyManagerPolicy", "")
        scope = stated.get("topologyManagerScope", "")
        # Before attributes there was one word for both, such as SingleNUMANodePodLevel.
        word = topology.topology_policies[0] if topology.topology_policies else ""
        if policy == "single-numa-node" or (not policy and word.startswith("SingleNUMANode")):
            self.alignment[row] = Alignment.SINGLE
        elif policy == "restricted" or (not policy and word.startswith("Restricted")):
            self.alignment[row] = Alignment.RESTRICTED
        self.by_pod[row] = scope == "pod" or (not scope and word.endswith("PodLevel"))
        # A report that is silent about these is taken at its worst: they are pinned.
        self.pins_cpus[row] = stated.get("cpuManagerPolicy", "static") == "static"
        self.pins_memory[row] = stated.get("memoryManagerPolicy", "Static") == "Static"

    def _read_zones(self, row: int, zones: list[objects.Zone]) -> None:
        if len(zones) > self.exists.shape[1]:
            self.resize(0, len(zones))
        self.exists[row] = np.arange(self.exists.shape[1]) < len(zones)
        for place, zone in enumerate(sorted(zones, key=_zone_order)):
            for one in zone.resources:
                for table, text in ((self.capacity, one.capacity), (self.available, one.available)):
                    if one.name not in table:
                        table[one.name] = np.zeros(self.exists.shape, np.int64)
                    table[one.name][row, place] = units(one.name, amount(text))


def _zone_order(zone: objects.Zone) -> tuple[int, str]:
    digits = re.findall(r"[0-9]+", zone.name)
    return (read_whole(digits[-1]) or 0 if digits else 0, zone.name)


def aligned_containers(spec: objects.PodSpec) -> tuple[ContainerNeed, ...]:
    """What each container takes from NUMA nodes.

    Devices always count. CPUs do for pods with the QoS class Guaranteed that ask for whole ones, memory for
    Guaranteed pods; neither does where resources are stated for the whole pod.
    """
    stated = spec.resources
    pinned = is_guaranteed(spec) and not (stated is not None and (stated.requests or stated.limits))
    needs = []
    for one in container_needs(spec):
        taken = ((name, value) for name, value in one.requests if value and _is_aligned(name, value, pinned))
        needs.append(ContainerNeed(tuple(taken), one.kept))
    return tuple(needs)


def aligned_pod(containers: Iterable[ContainerNeed]) -> Needs:
    """What a pod as a whole takes from NUMA nodes: the most at any one time."""
    total: dict[str, int] = {}
    peak: dict[str, int] = {}
    # Init containers come first, and a sidecar among them goes on while later ones run.
    for container in containers:
        for name, value in container.requests:
            if container.kept:
                total[name] = total.get(name, 0) + value
            else:
                peak[name] = max(peak.get(name, 0), total.get(name, 0) + value)
    return tuple(sorted((name, max(total.get(name, 0), peak.get(name, 0))) for name in {*total, *peak}))


def _is_aligned(name: str, value: int, pinned: bool) -> bool:
    if "/" in name:
        return True
    if name == "cpu":
        return pinned and value % 1000 == 0
    return pinned and (name == "memory" or name.startswith("hugepages-"))
