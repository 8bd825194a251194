"""The binder's state of the cluster: nodes as columns, and what the pods assigned to them hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.affinity import AffinityCounts, CountedPod, Identity
from batuta.backends.kube.binder.gpu_table import NO_GPUS, GpuHolding, GpuTable, GpuUsage
from batuta.backends.kube.binder.node_table import NodeTable, PortTable
from batuta.backends.kube.binder.numa_table import NumaTable
from batuta.backends.kube.binder.pod_class import PodClass, PodClasses
from batuta.backends.kube.binder.requests import Needs, is_resized, pod_requests
from batuta.backends.kube.bounded_text import read_decimal, read_gpus

LONGEST: Final = 65_536
_OVER: Final = frozenset({"Succeeded", "Failed"})
_BEGUN: Final = _OVER | {"Running"}


class ChangeLog:
    """Rows in the order of their changes. A reader keeps `end`, and later asks what came after it."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._first = 0

    @property
    def end(self) -> int:
        return self._first + len(self._rows)

    def note(self, row: int) -> None:
        if len(self._rows) >= LONGEST:
            self._first += len(self._rows)
            self._rows.clear()
        self._rows.append(row)

    def since(self, seen: int) -> list[int] | None:
        """Rows that changed after `seen`, each once; None where that is no longer known: read all again."""
        if seen < self._first:
            return None
        count = self._first + len(self._rows) - seen
        if count <= 1:
            return self._rows[-1:] if count else []
        return list(dict.fromkeys(self._rows[seen - self._first :]))


@dataclass(frozen=True, slots=True)
class AssignedPod:
    """What a pod holds. Two that hold the same are equal, so that an update without news costs nothing."""

    key: str
    uid: str
    node: str
    cls: PodClass
    requests: Needs
    holding: GpuHolding
    namespace: str
    labels: Mapping[str, str]
    terminating: bool = False
    running: bool = False  # whether the kubelet has let it in, so that what it holds shows in the kubelet's reports


def pod_key(pod: objects.Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def is_over(pod: objects.Pod) -> bool:
    return pod.status.phase in _OVER


def has_begun(pod: objects.Pod) -> bool:
    return pod.status.phase in _BEGUN


def assigned_pod(pod: objects.Pod, cls: PodClass, node: str, gpus: tuple[int, ...], load: float | None) -> AssignedPod:
    """What a pod that is bound, or assumed to be, holds of its node."""
    meta = pod.metadata
    return AssignedPod(
        key=pod_key(pod),
        uid=meta.uid,
        node=node,
        cls=cls,
        requests=tuple(pod_requests(pod).items()) if is_resized(pod) else cls.requests,
        holding=holding_of(cls, gpus, load),
        namespace=meta.namespace,
        labels=meta.labels,
        terminating=bool(meta.deletion_timestamp),
        running=pod.status.phase == "Running",
    )


def holding_of(cls: PodClass, gpus: tuple[int, ...], load: float | None) -> GpuHolding:
    if cls.gpus:
        return GpuHolding(cls.gpus, gpus[: cls.gpus])
    if cls.share is not None:
        return GpuHolding(1, gpus[:1], cls.share, load or 0.0)
    return NO_GPUS


def expected_load(annotations: Mapping[str, str]) -> float | None:
    """How busy a pod is expected to keep its GPU, from 0 to 1; None where no annotation says."""
    said = read_decimal(annotations.get(names.EXPECTED_UTILISATION))
    return None if said is None else min(max(said, 0.0), 1.0)


class Held(NamedTuple):
    """What some pods hold of a node."""

    gpus: tuple[int, ...]
    cpus_milli: int
    memory_bytes: int


class Cluster:
    """Nodes and pods, as the informers tell of them. `assume` adds pods whose binding is on its way."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        self.gpu_table = GpuTable()
        self.ports = PortTable()
        self.numa = NumaTable()
        self.usage = GpuUsage()
        self.affinity_counts = AffinityCounts()
        self.node_log = ChangeLog()  # rows of which the node itself changed: labels, taints, size
        self.use_log = ChangeLog()  # rows of which something was taken or given back
        self.epoch = 0  # grows when everything that was worked out of the columns has to be worked out again
        self._classes = PodClasses()
        self._class_of: dict[str, tuple[str, PodClass]] = {}
        self._objects: dict[str, objects.Node] = {}
        self._topologies: dict[str, objects.NodeResourceTopology] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._assigned: dict[str, AssignedPod] = {}
        self._by_node: dict[str, dict[str, AssignedPod]] = {}
        self._deadline_s: dict[str, float] = {}
        self._earliest_s = math.inf  # no assumption ends before this; thousands of them are not looked at for nothing

    def node_set(self, node: objects.Node) -> None:
        """A node came or changed. Pods that were known to be on it before it was count from now on."""
        name = node.metadata.name
        is_new = name not in self.nodes.row
        self._objects[name] = node
        row = self.nodes.put(node)
        if self.nodes.capacity != len(self.gpu_table.unnamed):
            self._grow(self.nodes.capacity)
        self.gpu_table.put(row, node)
        self.usage.put(row, node.metadata.annotations.get(names.UTILISATION, ""))
        self._believe([row])
        if is_new:
            for assigned in self._by_node.get(name, {}).values():
                self._take(row, assigned, 1)
            self._read_topology(name)
        self.affinity_counts.version += 1
        self.node_log.note(row)

    def node_gone(self, name: str) -> None:
        """A node went; what its pods held is remembered in case that it comes back."""
        row = self.nodes.row.get(name)
        if row is None:
            return
        for assigned in self._by_node.get(name, {}).values():
            self._take(row, assigned, -1)
        self.numa.put(row, None, ())
        self.gpu_table.put(row, None)
        self.usage.put(row, "")
        self.nodes.drop(name)
        del self._objects[name]
        self.affinity_counts.version += 1
        self.node_log.note(row)

    def topology_set(self, topology: objects.NodeResourceTopology) -> None:
        self._topologies[topology.metadata.name] = topology
        self._read_topology(topology.metadata.name)

    def topology_gone(self, name: str) -> None:
        self._topologies.pop(name, None)
        self._read_topology(name)

    def namespace_set(self, name: str, labels: Mapping[str, str]) -> None:
        if self._namespaces.get(name) != labels:
            self._namespaces[name] = labels
            self.affinity_counts.forget_filters()

    def namespace_gone(self, name: str) -> None:
        if self._namespaces.pop(name, None) is not None:
            self.affinity_counts.forget_filters()

    def pod_set(self, pod: objects.Pod) -> None:
        """A pod came or changed, of whatever scheduler. One that is bound and not over counts on its node."""
        key = pod_key(pod)
        before = self._assigned.get(key)
        if before is not None and before.uid != pod.metadata.uid:
            self._remove(key)
            before = None
        if is_over(pod):
            self._remove(key)
        elif pod.spec.node_name:
            stated = pod.metadata.annotations
            gpus, load = read_gpus(stated), expected_load(stated)
            found = assigned_pod(pod, self.class_of(pod), pod.spec.node_name, gpus, load)
            self._deadline_s.pop(key, None)
            if before is not None and self._is_counted_alike(before, found):
                self._assigned[key] = self._by_node[found.node][key] = found
            else:
                self._remove(key)
                self._add(found)
        # A pod without a node that is assumed to have one: the news of its binding is yet to come.

    def pod_gone(self, key: str) -> None:
        self._remove(key)
        self._class_of.pop(key, None)

    def assume(
        self, pod: objects.Pod, node: str, gpus: tuple[int, ...], deadline_s: float, load: float | None = None
    ) -> None:
        """Counts a pod on a node before an informer shows it there, until `deadline_s` at the latest."""
        key = pod_key(pod)
        self._remove(key)
        self._add(assigned_pod(pod, self.class_of(pod), node, gpus, load))
        self._deadline_s[key] = deadline_s
        self._earliest_s = min(self._earliest_s, deadline_s)

    def forget(self, key: str) -> None:
        """Takes an assumption back; a pod that really is on its node stays."""
        if key in self._deadline_s:
            self._remove(key)

    def tick(self, now_s: float) -> list[str]:
        """Moves on to a time. Forgets assumptions not confirmed in time, and returns them."""
        if self.usage.tick(now_s):
            self._believe(list(self.nodes.row.values()))
            self.epoch += 1
        if now_s < self._earliest_s:
            return []
        late = sorted(key for key, deadline_s in self._deadline_s.items() if deadline_s <= now_s)
        for key in late:
            self.forget(key)
        self._earliest_s = min(self._deadline_s.values(), default=math.inf)
        return late

    @property
    def assumed(self) -> Collection[str]:
        """Pods whose binding the API server has not confirmed yet."""
        return self._deadline_s.keys()

    def node_of(self, key: str) -> str | None:
        assigned = self._assigned.get(key)
        return None if assigned is None else assigned.node

    def pods_on(self, node: str) -> Collection[str]:
        """The pods on a node, and those that are assumed to be there."""
        return self._by_node.get(node, {}).keys()

    def gpus_held(self, key: str, uid: str, node: str) -> tuple[int, ...] | None:
        """The GPUs that a pod counts with on a node, or is assumed to; None for a pod that is not known there."""
        assigned = self._assigned.get(key)
        is_same = assigned is not None and (assigned.uid, assigned.node) == (uid, node)
        return assigned.holding.gpus if assigned is not None and is_same else None

    def holdings(self, node: str, without: str) -> Iterator[GpuHolding]:
        """What the pods on a node hold of its GPUs, apart from one."""
        return (one.holding for key, one in self._by_node.get(node, {}).items() if key != without)

    def has_gpus(self, node: str, gpus: Iterable[int]) -> bool:
        """Whether a node has GPUs with these numbers; one that is not known yet may have them."""
        row = self.nodes.row.get(node)
        return row is None or all(gpu < self.gpu_table.count[row] for gpu in gpus)

    def class_of(self, pod: objects.Pod) -> PodClass:
        """The pod's class; worked out once for each version of a pod."""
        key, version = pod_key(pod), pod.metadata.resource_version
        known = self._class_of.get(key)
        if known is not None and version and known[0] == version:
            return known[1]
        cls = self._classes.of(pod)
        self._class_of[key] = (version, cls)
        return cls

    def identity_of(self, pod: objects.Pod) -> Identity:
        return self._identity(pod.metadata.namespace, pod.metadata.labels)

    def others(self, node: str, ours: Collection[str]) -> Held:
        """What pods hold of a node that are not among `ours`; GPUs without a number count as the last.

        A GPU that is ill counts as held, unless one of ours is on it.
        """
        row = self.nodes.row.get(node)
        named = set() if row is None else set(self.gpu_table.ill_ones(row))
        unnamed = cpus_milli = memory_bytes = 0
        here = self._by_node.get(node, {})
        named.difference_update(*(assigned.holding.gpus for key, assigned in here.items() if key in ours))
        for assigned in (assigned for key, assigned in here.items() if key not in ours):
            named.update(assigned.holding.gpus)
            unnamed += max(0, assigned.holding.number - len(assigned.holding.gpus))
            for name, value in assigned.requests:
                cpus_milli += value if name == "cpu" else 0
                memory_bytes += value if name == "memory" else 0
        guessed = () if row is None or not unnamed else self.gpu_table.guess(row, unnamed)
        return Held(tuple(sorted({*named, *guessed})), cpus_milli, memory_bytes)

    def counted_pods(self) -> Iterator[CountedPod]:
        for assigned in self._assigned.values():
            row = self.nodes.row.get(assigned.node)
            if row is not None:
                yield self._counted_pod(row, assigned)

    def _add(self, assigned: AssignedPod) -> None:
        self._assigned[assigned.key] = assigned
        self._by_node.setdefault(assigned.node, {})[assigned.key] = assigned
        row = self.nodes.row.get(assigned.node)
        if row is not None:
            self._take(row, assigned, 1)

    def _remove(self, key: str) -> None:
        self._deadline_s.pop(key, None)
        assigned = self._assigned.pop(key, None)
        if assigned is None:
            return
        neighbours = self._by_node[assigned.node]
        del neighbours[key]
        if not neighbours:
            del self._by_node[assigned.node]
        row = self.nodes.row.get(assigned.node)
        if row is not None:
            self._take(row, assigned, -1)

    def _is_counted_alike(self, before: AssignedPod, now: AssignedPod) -> bool:
        """Whether a pod holds what it held, so that no sum changes. Most news of a pod are of its status."""
        if before.node != now.node or before.cls is not now.cls:
            return False
        if before.requests != now.requests or before.holding != now.holding:
            return False
        # The API server adds the node's topology to a pod's labels: that matters to terms that match them.
        is_same_to_others = before.labels == now.labels and before.terminating == now.terminating
        return is_same_to_others or (self.affinity_counts.is_silent and not now.cls.apart)

    def _take(self, row: int, assigned: AssignedPod, sign: int) -> None:
        self.nodes.take(row, assigned.requests, sign)
        if assigned.holding is not NO_GPUS:
            self.gpu_table.take(row, assigned.holding, sign)
        if assigned.cls.ports:
            self.ports.take(row, assigned.cls.ports, sign)
        if self.numa.has_report(row):
            self.numa.take(row, assigned.uid, assigned.cls.aligned, sign)
        if assigned.cls.apart or not self.affinity_counts.is_silent:
            self.affinity_counts.take(self._counted_pod(row, assigned), sign)
        self.use_log.note(row)

    def _counted_pod(self, row: int, assigned: AssignedPod) -> CountedPod:
        who = self._identity(assigned.namespace, assigned.labels)
        return CountedPod(row, who, assigned.terminating, assigned.cls.apart)

    def _identity(self, namespace: str, labels: Mapping[str, str]) -> Identity:
        return Identity(namespace, labels, self._namespaces.get(namespace, {}))

    def _read_topology(self, name: str) -> None:
        row = self.nodes.row.get(name)
        if row is None:
            return
        here = self._by_node.get(name, {}).values()
        counted_pods = [(one.uid, one.running, one.cls.aligned) for one in here]
        self.numa.put(row, self._topologies.get(name), counted_pods)
        self.use_log.note(row)

    def _believe(self, rows: list[int]) -> None:
        believed = self.usage.believed(np.array(rows, np.intp), self.gpu_table.believed.shape[1])
        for row, busy in zip(rows, believed, strict=True):
            self.gpu_table.believe(row, busy)

    def _grow(self, capacity: int) -> None:
        self.gpu_table.resize(capacity)
        self.numa.resize(capacity)
        self.usage.resize(capacity)
        self.affinity_counts.resize(capacity)
        self.epoch += 1
