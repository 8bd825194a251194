"""The binder's picture of the cluster: nodes as columns, and what the pods on them hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cards import NO_GPUS, Cards
from batuta.backends.kube.binder.change_log import ChangeLog
from batuta.backends.kube.binder.node_table import NodeTable
from batuta.backends.kube.binder.numa_table import NumaTable
from batuta.backends.kube.binder.pod_class import PodClass, PodClasses
from batuta.backends.kube.binder.pod_terms import Identity
from batuta.backends.kube.binder.port_table import PortTable
from batuta.backends.kube.binder.social import Resident, Society
from batuta.backends.kube.binder.tenant import Tenant, holding_of, is_over, pod_key, tenant_of
from batuta.backends.kube.binder.usage import Usage


class Held(NamedTuple):
    """What some pods hold of a node."""

    gpus: tuple[int, ...]
    cpus_milli: int
    memory_bytes: int


class Cluster:
    """Nodes and pods, as the informers tell of them. `assume` adds pods whose binding is on its way."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        self.cards = Cards()
        self.ports = PortTable()
        self.numa = NumaTable()
        self.usage = Usage()
        self.society = Society()
        self.node_log = ChangeLog()
        """Rows of which the node itself changed: labels, taints, size."""
        self.use_log = ChangeLog()
        """Rows of which something was taken or given back."""
        self.epoch = 0
        """Grows when everything that was worked out of the columns has to be worked out again."""
        self._classes = PodClasses()
        self._class_of: dict[str, tuple[str, PodClass]] = {}
        self._objects: dict[str, objects.Node] = {}
        self._topologies: dict[str, objects.NodeResourceTopology] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._tenants: dict[str, Tenant] = {}
        self._by_node: dict[str, dict[str, Tenant]] = {}
        self._deadline_s: dict[str, float] = {}
        self._earliest_s = math.inf
        """No assumption ends before this; thousands of them are not looked at for nothing."""

    # ------------------------------------------------------------------------------------------------ nodes

    def node_set(self, node: objects.Node) -> None:
        """A node came or changed. Pods that were known to be on it before it was count from now on."""
        name = node.metadata.name
        is_new = name not in self.nodes.row
        self._objects[name] = node
        row = self.nodes.put(node)
        if self.nodes.capacity != len(self.cards.unnamed):
            self._grow(self.nodes.capacity)
        self.cards.put(row, node)
        self.usage.put(row, node.metadata.annotations.get(names.UTILISATION, ""))
        self._believe([row])
        if is_new:
            for tenant in self._by_node.get(name, {}).values():
                self._take(row, tenant, 1)
            self._read_topology(name)
        self.society.version += 1
        self.node_log.note(row)

    def node_gone(self, name: str) -> None:
        """A node went; what its pods held is remembered in case that it comes back."""
        row = self.nodes.row.get(name)
        if row is None:
            return
        for tenant in self._by_node.get(name, {}).values():
            self._take(row, tenant, -1)
        self.numa.put(row, None, ())
        self.cards.put(row, None)
        self.usage.put(row, "")
        self.nodes.drop(name)
        del self._objects[name]
        self.society.version += 1
        self.node_log.note(row)

    def topology_set(self, topology: objects.NodeResourceTopology) -> None:
        """A report of what each NUMA node of a node has left."""
        self._topologies[topology.metadata.name] = topology
        self._read_topology(topology.metadata.name)

    def topology_gone(self, name: str) -> None:
        self._topologies.pop(name, None)
        self._read_topology(name)

    def namespace_set(self, name: str, labels: Mapping[str, str]) -> None:
        """A namespace's labels, which affinity terms may ask for."""
        if self._namespaces.get(name) != labels:
            self._namespaces[name] = labels
            self.society.forget_questions()

    def namespace_gone(self, name: str) -> None:
        if self._namespaces.pop(name, None) is not None:
            self.society.forget_questions()

    # ------------------------------------------------------------------------------------------------- pods

    def pod_set(self, pod: objects.Pod) -> None:
        """A pod came or changed, of whatever scheduler. One that is bound and not over counts on its node."""
        key = pod_key(pod)
        before = self._tenants.get(key)
        if before is not None and before.uid != pod.metadata.uid:
            self._remove(key)
            before = None
        if is_over(pod):
            self._remove(key)
        elif pod.spec.node_name:
            found = tenant_of(pod, self.class_of(pod))
            self._deadline_s.pop(key, None)
            if before is not None and self._is_counted_alike(before, found):
                self._tenants[key] = self._by_node[found.node][key] = found
            else:
                self._remove(key)
                self._add(found)
        # A pod without a node that is assumed to have one: the news of its binding is yet to come.

    def pod_gone(self, key: str) -> None:
        """A pod was deleted."""
        self._remove(key)
        self._class_of.pop(key, None)

    def assume(
        self,
        pod: objects.Pod,
        node: str,
        gpus: tuple[int, ...],
        deadline_s: float,
        load: float | None = None,
    ) -> None:
        """Counts a pod on a node before anybody says that it is there, until `deadline_s` at the latest."""
        cls = self.class_of(pod)
        meta = pod.metadata
        key = pod_key(pod)
        self._remove(key)
        self._add(
            Tenant(
                key,
                meta.uid,
                node,
                cls,
                cls.requests,
                holding_of(cls, gpus, load),
                meta.namespace,
                meta.labels,
                bool(meta.deletion_timestamp),
            )
        )
        self._deadline_s[key] = deadline_s
        self._earliest_s = min(self._earliest_s, deadline_s)

    def forget(self, key: str) -> None:
        """Takes an assumption back; a pod that really is on its node stays."""
        if key in self._deadline_s:
            self._remove(key)

    def tick(self, now_s: float) -> list[str]:
        """Moves on to a time. Forgets assumptions that nobody has confirmed in time, and returns them."""
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

    # --------------------------------------------------------------------------------------------- questions

    @property
    def assumed(self) -> Collection[str]:
        """Pods whose binding nobody has confirmed yet."""
        return self._deadline_s.keys()

    def node_of(self, key: str) -> str | None:
        """Where a pod is, or is assumed to be."""
        tenant = self._tenants.get(key)
        return None if tenant is None else tenant.node

    def pods_on(self, node: str) -> Collection[str]:
        """The pods on a node, and those that are assumed to be there."""
        return self._by_node.get(node, {}).keys()

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
        named = set() if row is None else set(self.cards.ill_ones(row))
        unnamed = cpus_milli = memory_bytes = 0
        for key, tenant in self._by_node.get(node, {}).items():
            if key in ours:
                named.difference_update(tenant.holding.gpus)
        for key, tenant in self._by_node.get(node, {}).items():
            if key in ours:
                continue
            named.update(tenant.holding.gpus)
            unnamed += max(0, tenant.holding.number - len(tenant.holding.gpus))
            for name, value in tenant.requests:
                cpus_milli += value if name == "cpu" else 0
                memory_bytes += value if name == "memory" else 0
        guessed = () if row is None or not unnamed else self.cards.guess(row, unnamed)
        return Held(tuple(sorted({*named, *guessed})), cpus_milli, memory_bytes)

    def residents(self) -> Iterator[Resident]:
        """All pods on nodes that are known."""
        for tenant in self._tenants.values():
            row = self.nodes.row.get(tenant.node)
            if row is not None:
                yield self._resident(row, tenant)

    # ------------------------------------------------------------------------------------------------- books

    def check_invariants(self) -> None:
        """Counts everything again from the objects, and raises where a sum differs. For tests."""
        again = Cluster()
        again._namespaces = dict(self._namespaces)
        for node in self._objects.values():
            again.node_set(node)
        for tenant in self._tenants.values():
            again._add(tenant)
        for name, row in self.nodes.row.items():
            other = again.nodes.row[name]
            for resource, line in self.nodes.resources.items():
                free = again.nodes.free[again.nodes.line(resource), other]
                assert self.nodes.free[line, row] == free, f"{name}: {resource}"
            for table in (
                "held",
                "sharers",
                "memory_taken_mib",
                "compute_taken",
                "soft_taken",
                "unnamed",
                "untouched",
            ):
                mine, theirs = getattr(self.cards, table)[row], getattr(again.cards, table)[other]
                assert np.sum(mine) == np.sum(theirs), f"{name}: {table}"
            assert self.ports.by_row.get(row) == again.ports.by_row.get(other), f"{name}: ports"
            for term, column in self.society.apart.items():
                assert column[row] == again.society.apart[term][other], f"{name}: {term}"
        assert self._deadline_s.keys() <= self._tenants.keys(), "an assumption without a pod"
        assert sum(map(len, self._by_node.values())) == len(self._tenants), "a pod on two nodes"

    def _add(self, tenant: Tenant) -> None:
        self._tenants[tenant.key] = tenant
        self._by_node.setdefault(tenant.node, {})[tenant.key] = tenant
        row = self.nodes.row.get(tenant.node)
        if row is not None:
            self._take(row, tenant, 1)

    def _remove(self, key: str) -> None:
        self._deadline_s.pop(key, None)
        tenant = self._tenants.pop(key, None)
        if tenant is None:
            return
        neighbours = self._by_node[tenant.node]
        del neighbours[key]
        if not neighbours:
            del self._by_node[tenant.node]
        row = self.nodes.row.get(tenant.node)
        if row is not None:
            self._take(row, tenant, -1)

    def _is_counted_alike(self, before: Tenant, now: Tenant) -> bool:
        """Whether a pod holds what it held, so that no sum changes. Most news of a pod are of its status."""
        if before.node != now.node or before.cls is not now.cls:
            return False
        if before.requests != now.requests or before.holding != now.holding:
            return False
        # The API server adds the node's topology to a pod's labels: that matters to those who ask for them.
        is_same_to_others = before.labels == now.labels and before.terminating == now.terminating
        return is_same_to_others or (self.society.is_silent and not now.cls.apart)

    def _take(self, row: int, tenant: Tenant, sign: int) -> None:
        self.nodes.take(row, tenant.requests, sign)
        if tenant.holding is not NO_GPUS:
            self.cards.take(row, tenant.holding, sign)
        if tenant.cls.ports:
            self.ports.take(row, tenant.cls.ports, sign)
        if self.numa.has_report(row):
            self.numa.take(row, tenant.uid, tenant.cls.aligned, sign)
        if tenant.cls.apart or not self.society.is_silent:
            self.society.take(self._resident(row, tenant), sign)
        self.use_log.note(row)

    def _resident(self, row: int, tenant: Tenant) -> Resident:
        who = self._identity(tenant.namespace, tenant.labels)
        return Resident(row, who, tenant.terminating, tenant.cls.apart)

    def _identity(self, namespace: str, labels: Mapping[str, str]) -> Identity:
        return Identity(namespace, labels, self._namespaces.get(namespace, {}))

    def _read_topology(self, name: str) -> None:
        row = self.nodes.row.get(name)
        if row is None:
            return
        here = self._by_node.get(name, {}).values()
        residents = [(one.uid, one.running, one.cls.aligned) for one in here]
        self.numa.put(row, self._topologies.get(name), residents)
        self.use_log.note(row)

    def _believe(self, rows: list[int]) -> None:
        believed = self.usage.believed(np.array(rows, np.intp), self.cards.believed.shape[1])
        for row, busy in zip(rows, believed, strict=True):
            self.cards.believe(row, busy)

    def _grow(self, capacity: int) -> None:
        self.cards.resize(capacity)
        self.numa.resize(capacity)
        self.usage.resize(capacity)
        self.society.resize(capacity)
        self.epoch += 1
