"""The nodes, numbered in the order in which they were added, and sets of them by what they have in common.

A policy counts GPUs and knows nothing of labels, racks or CPU. So the feasible capacity of a job says how
many GPUs its requirements leave to it. Without it, a job with a label that no node has would be given GPUs
that it can never use, cycle after cycle, and the jobs behind it would wait for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from batuta.core.arrays import IntArray, bits
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
from batuta.core.job import Job, Spread

if TYPE_CHECKING:
    from batuta.core.world import ForeignUsage, World


TYPE_LABEL = "batuta.dev/gpu-type"  # every node with GPUs has this label, whatever else is written on it
NO_TYPE = -1  # the type of a node without GPUs. It is in no set of `by_type`.
OFFERS_SHARES = ("batuta.dev/offers-shares", "true")
"""A label of nodes of which shares can be had: jobs ask for it where not every node holds them to one."""


@dataclass(slots=True, eq=False, repr=False)
class NodeTable:
    """What does not change from cycle to cycle: the nodes, and sets of them by what they have in common."""

    nodes: list[Node] = field(default_factory=list)
    index: dict[NodeName, int] = field(default_factory=dict)
    types: list[str] = field(default_factory=list)
    type_of: list[int] = field(default_factory=list)
    rack_of: list[str] = field(default_factory=list)
    by_type: list[int] = field(default_factory=list)
    by_rack: dict[str, int] = field(default_factory=dict)
    by_label: dict[tuple[str, str], int] = field(default_factory=dict)
    by_key: dict[str, int] = field(default_factory=dict)  # nodes with a label of this name, whatever its value
    by_size: dict[int, int] = field(default_factory=dict)
    models: dict[Node, int] = field(default_factory=dict)
    """Nodes that differ in name and place only, by what they have in common."""
    tainted: int = 0
    all: int = 0
    largest: int = 0
    _matching: dict[tuple[object, ...], int] = field(default_factory=dict)

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


def _leave(by_trait: dict[Any, int], bit: int) -> None:
    """Takes a node out of the sets by a trait; sets that become empty go as well."""
    for trait in [trait for trait, nodes in by_trait.items() if nodes & bit]:
        by_trait[trait] &= ~bit
        if not by_trait[trait]:
            del by_trait[trait]


ROOMY = 1 << 40  # replicas without GPUs that fit on a node which counts neither CPU nor memory


class NodeRequirements(NamedTuple):
    """What a job wants of nodes beside GPUs. Jobs with equal wishes can have equally many."""

    node_labels: tuple[tuple[str, str], ...]
    node_terms: tuple[NodeTerm, ...]
    tolerations: tuple[str, ...]
    gpus_per_replica: int
    cpus_milli_per_gpu: int
    memory_mib_per_gpu: int
    within: Spread
    single_numa: bool
    share_mib: int

    @property
    def mind_what_is_beside(self) -> bool:
        """Whether CPU or memory, beside the GPUs or without, matters."""
        return bool(self.cpus_milli_per_gpu or self.memory_mib_per_gpu)


def wishes_of(job: Job) -> NodeRequirements:
    topology = job.topology
    return NodeRequirements(
        job.node_labels,
        job.node_terms,
        job.tolerations,
        job.gpus_per_replica,
        job.cpus_milli_per_gpu,
        job.memory_mib_per_gpu,
        topology.within if topology.required else Spread.ANY,
        topology.single_numa,
        job.share.memory_mib if job.share is not None else 0,
    )


def most_gpus(world: World, wishes: NodeRequirements) -> list[int]:
    """By GPU type: the most GPUs that a job could have on the open nodes; of a CPU-only job its replicas."""
    table, layout = world.nodes, world.layout
    cpu_only = not wishes.gpus_per_replica
    total = [0] * (1 if cpu_only else len(table.types))
    by_rack: Counter[tuple[int, str]] = Counter()
    for i, nodes in _alike(world, layout.usable & table.matching(wishes), wishes):
        kind = 0 if cpu_only else table.type_of[i]
        if kind == NO_TYPE:
            continue
        one = most_on_node(table.nodes[i], layout.healthy[i], world.others.get(i), wishes)
        if wishes.within is Spread.NODE:
            total[kind] = max(total[kind], one)
        elif wishes.within is Spread.RACK:
            for rack, there in table.by_rack.items():
                by_rack[kind, rack] += one * (nodes & there).bit_count()
        else:
            total[kind] += one * nodes.bit_count()
    for (kind, _), gpus in by_rack.items():
        total[kind] = max(total[kind], gpus)
    return total


class Reach(NamedTuple):
    """Rows that want more than the open nodes could give to them, and how much those could."""

    rows: IntArray
    most: IntArray


def within_reach(
    world: World, cap: IntArray | None, gpu_type: IntArray | None, instead: Mapping[int, NodeRequirements] | None = None
) -> tuple[IntArray | None, Reach | None]:
    """Lowers the caps of jobs that want more than the open nodes could give to them; what they have stays.

    The second part says how much that is, of the types that the rows compete for (None: the only one).
    `instead` has wishes that count in place of a row's own.
    """
    jobs = world.jobs
    if not jobs.narrow and not instead:
        return cap, None
    narrow = jobs.is_narrow != 0
    narrow[list(instead or ())] = True
    if jobs.cpu_only:
        narrow &= jobs.is_cpu_only == 0
    rows = np.flatnonzero(narrow)
    if gpu_type is not None:
        rows = rows[gpu_type[rows] >= 0]
    cap = (jobs.max if cap is None else cap).copy()
    if not rows.size:
        return cap, None
    other = instead or {}
    known = {wishes: most_gpus(world, wishes) for wishes in set(other.values())}
    by_row = [known[other[row]] if row in other else world.most_for(row) for row in rows.tolist()]
    by_type = np.array(by_row, dtype=np.int64)
    most = by_type[:, 0] if gpu_type is None else by_type[np.arange(rows.size), gpu_type[rows]]
    cap[rows] = np.minimum(cap[rows], np.maximum(most, jobs.held[rows]))
    return cap, Reach(rows, most)


def _alike(world: World, nodes: int, wishes: NodeRequirements) -> Iterator[tuple[int, int]]:
    """The nodes in groups that differ in name and place only, each with one of them.

    Those with GPUs that are ill or used by others stand alone, and where it matters those of which others use
    CPU or memory.
    """
    apart = set(world.missing())
    if wishes.mind_what_is_beside:
        apart.update(world.others)
    alone = 0
    for i in apart:
        if nodes >> i & 1:
            alone |= 1 << i
            yield i, 1 << i
    for model in world.nodes.models.values():
        alike = model & nodes & ~alone
        if alike:
            yield (alike & -alike).bit_length() - 1, alike


def most_on_node(node: Node, healthy: int, others: ForeignUsage | None, wishes: NodeRequirements) -> int:
    """Whole replicas only, on one NUMA node if it wants that; of a CPU-only job their number."""
    if node.gpu_memory_mib < wishes.share_mib:
        return 0
    most = healthy.bit_count() if wishes.gpus_per_replica else ROOMY
    if wishes.single_numa and node.numa and wishes.gpus_per_replica:
        most = max(Counter(node.numa[gpu] for gpu in bits(healthy)).values(), default=0)
    if wishes.cpus_milli_per_gpu and node.cpus_milli:
        left_milli = node.cpus_milli - (others.cpus_milli if others else 0)
        most = min(most, max(left_milli, 0) // wishes.cpus_milli_per_gpu)
    if wishes.memory_mib_per_gpu and node.memory_mib:
        left_mib = node.memory_mib - (others.memory_mib if others else 0)
        most = min(most, max(left_mib, 0) // wishes.memory_mib_per_gpu)
    return most - most % (wishes.gpus_per_replica or 1)
