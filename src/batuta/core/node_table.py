"""The nodes, numbered in the order in which they were added, and sets of them by what they have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batuta.core.arrays import bits
from batuta.core.cluster import (
    Node,
    NodeName,
    NodeSelector,
    NodeTerm,
    Operator,
    Placement,
    Requirement,
    compares,
    tolerates,
)

TYPE_LABEL = "batuta.dev/gpu-type"
"""Every node with GPUs has this label, whatever else is written on it."""
NO_TYPE = -1
"""The type of a node without GPUs. It is in no set of `by_type`."""
OFFERS_SHARES = ("batuta.dev/offers-shares", "true")
"""A label of nodes of which shares can be had: jobs ask for it where not every node holds them to one."""


class NodeTable:
    """What does not change from cycle to cycle: the nodes, and sets of them by what they have in common."""

    __slots__ = (
        "_matching",
        "all",
        "by_key",
        "by_label",
        "by_rack",
        "by_size",
        "by_type",
        "index",
        "largest",
        "models",
        "nodes",
        "rack_of",
        "tainted",
        "type_of",
        "types",
    )

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.index: dict[NodeName, int] = {}
        self.types: list[str] = []
        self.type_of: list[int] = []
        self.rack_of: list[str] = []
        self.by_type: list[int] = []
        self.by_rack: dict[str, int] = {}
        self.by_label: dict[tuple[str, str], int] = {}
        self.by_key: dict[str, int] = {}
        """Nodes with a label of this name, whatever its value."""
        self.by_size: dict[int, int] = {}
        self.models: dict[Node, int] = {}
        """Nodes that differ in name and place only, by what they have in common."""
        self.tainted = 0
        self.all = 0
        self.largest = 0
        self._matching: dict[tuple[object, ...], int] = {}

    def add(self, node: Node) -> int:
        i = self.index[node.name] = len(self.nodes)
        self.nodes.append(node)
        self.type_of.append(0)
        self.rack_of.append("")
        self._enter(i, node)
        return i

    def change(self, i: int, node: Node) -> None:
        """Notes what a node is from now on. It keeps its name and its number."""
        bit = 1 << i
        self.by_type = [nodes & ~bit for nodes in self.by_type]
        for by_trait in (self.by_rack, self.by_size, self.models, self.by_label, self.by_key):
            _leave(by_trait, bit)
        self.tainted &= ~bit
        self.nodes[i] = node
        self._enter(i, node)
        self.largest = max(self.by_size)

    def know_type(self, gpu_type: str) -> int:
        """The number of a GPU type."""
        if gpu_type not in self.types:
            self.types.append(gpu_type)
            self.by_type.append(0)
        return self.types.index(gpu_type)

    def _enter(self, i: int, node: Node) -> None:
        bit = 1 << i
        labels = node.labels
        if node.gpus:
            kind = self.type_of[i] = self.know_type(node.gpu_type)
            self.by_type[kind] |= bit
            labels = ((TYPE_LABEL, node.gpu_type), *labels)
        else:
            self.type_of[i] = NO_TYPE
        self.rack_of[i] = node.rack
        self.by_rack[node.rack] = self.by_rack.get(node.rack, 0) | bit
        self.by_size[node.gpus] = self.by_size.get(node.gpus, 0) | bit
        model = replace(node, name="", rack="", zone="", labels=(), taints=())
        self.models[model] = self.models.get(model, 0) | bit
        for label in labels:
            self.by_label[label] = self.by_label.get(label, 0) | bit
            self.by_key[label[0]] = self.by_key.get(label[0], 0) | bit
        if node.taints:
            self.tainted |= bit
        self.all |= bit
        self.largest = max(self.largest, node.gpus)
        self._matching.clear()

    def matching(self, job: NodeSelector) -> int:
        """Nodes whose labels and taints suit the job."""
        key = job.node_labels, job.node_terms, job.tolerations
        found = self._matching.get(key)
        if found is None:
            found = self._matching[key] = self._match(job)
        return found

    def _match(self, job: NodeSelector) -> int:
        found = self.all & ~self.tainted
        for i in bits(self.tainted):
            if all(tolerates(job.tolerations, taint) for taint in self.nodes[i].taints):
                found |= 1 << i
        for label in job.node_labels:
            found &= self.by_label.get(label, 0)
        if job.node_terms:
            found &= self._meeting_one(job.node_terms)
        return found

    def _meeting_one(self, terms: tuple[NodeTerm, ...]) -> int:
        found = 0
        for term in terms:
            nodes = self.all
            for requirement in term:
                nodes &= self._meeting(requirement)
            found |= nodes
        return found

    def _meeting(self, requirement: Requirement) -> int:
        key, operator, values = requirement
        there = self.by_key.get(key, 0)
        if operator is Operator.EXISTS:
            return there
        if operator is Operator.ABSENT:
            return self.all & ~there
        if operator is Operator.ABOVE or operator is Operator.BELOW:
            own = ((value, nodes) for (name, value), nodes in self.by_label.items() if name == key)
            return sum(nodes for value, nodes in own if compares(requirement, value))
        found = 0
        for value in values:
            found |= self.by_label.get((key, value), 0)
        return found if operator is Operator.IN else self.all & ~found

    def racks(self, placement: Placement) -> int:
        return len({self.rack_of[self.index[node]] for node in placement.nodes})

    def fork(self) -> NodeTable:
        twin = NodeTable()
        for name in ("nodes", "types", "type_of", "rack_of", "by_type"):
            setattr(twin, name, list(getattr(self, name)))
        for name in ("index", "by_rack", "by_label", "by_key", "by_size", "models", "_matching"):
            setattr(twin, name, dict(getattr(self, name)))
        twin.tainted, twin.all, twin.largest = self.tainted, self.all, self.largest
        return twin


def _leave(by_trait: dict[Any, int], bit: int) -> None:
    """Takes a node out of the sets by a trait; sets that become empty go as well."""
    for trait in [trait for trait, nodes in by_trait.items() if nodes & bit]:
        by_trait[trait] &= ~bit
        if not by_trait[trait]:
            del by_trait[trait]
