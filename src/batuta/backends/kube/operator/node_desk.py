"""What the World is told of nodes: that they are there, and how much of them others use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from batuta.backends.kube import objects
from batuta.backends.kube.client.known import Change, Did
from batuta.backends.kube.operator.nodes import NodeTeller, ill_cards, is_open, is_unhealthy, read_node
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.run import Site
from batuta.core import event as ev
from batuta.core.cluster import NodeName

_MIB = 1 << 20


class Used(NamedTuple):
    """What pods hold of a node that are no jobs of the World."""

    gpus: tuple[int, ...] = ()
    cpus_milli: int = 0
    memory_mib: int = 0


class NodeDesk:
    """Takes in nodes and reports of their NUMA nodes, for the binder and for the World."""

    def __init__(
        self,
        site: Site,
        observed: Observed,
        teller: NodeTeller,
        gpu_resources: Sequence[str],
        told: Mapping[NodeName, Used],
    ) -> None:
        """`told`: what the World knows from before of the use by others."""
        self._site = site
        self._observed = observed
        self._teller = teller
        self._gpu_resources = tuple(gpu_resources)
        self._told = dict(told)
        self._doubtful = set(told)
        """Nodes of which others may use something else than the World was told."""

    def doubt(self, node: NodeName) -> None:
        """Something came to a node or went from it that is no job of the World."""
        self._doubtful.add(node)

    def node(self, change: Change[objects.Node], now_s: float) -> None:
        name = self._observed.note(self._observed.nodes, change)
        if change.did is Did.DELETED:
            self._site.cluster.node_gone(name)
        else:
            self._site.cluster.node_set(change.object)
        self._tell(name, now_s)
        self.doubt(name)

    def topology(self, change: Change[objects.NodeResourceTopology], now_s: float) -> None:
        name = self._observed.note(self._observed.topologies, change)
        if change.did is Did.DELETED:
            self._site.cluster.topology_gone(name)
        else:
            self._site.cluster.topology_set(change.object)
        self._tell(name, now_s)

    def finish_first_look(self, now_s: float) -> None:
        """Nodes of the World that were not found are gone."""
        for name in self._teller.names():
            if name not in self._observed.nodes:
                self._tell(name, now_s)

    def tell_others(self, booked_on: Callable[[NodeName], Collection[str]], now_s: float) -> None:
        """Tells the World what it does not know yet; `booked_on` has the pods of its jobs on a node."""
        for name in self._doubtful:
            if name not in self._teller:
                continue
            held = self._site.cluster.others(name, booked_on(name))
            used = Used(held.gpus, held.cpus_milli, held.memory_bytes // _MIB)
            if self._told.get(name, Used()) != used:
                self._told[name] = used
                self._site.say(ev.OthersUse(now_s, name, *used))
        self._doubtful.clear()

    def _tell(self, name: NodeName, now_s: float) -> None:
        node, was_there = self._observed.nodes.get(name), name in self._teller
        found = None
        if node is not None:
            found = read_node(node, self._observed.topologies.get(name), self._gpu_resources)
        opened, ill = (False, frozenset[int]()) if node is None else (is_open(node), ill_cards(node))
        cause = "health" if node is not None and is_unhealthy(node) else "cluster"
        for event in self._teller.tell(name, found, opened, now_s, ill, cause):
            self._site.say(event)
        if name in self._teller and not was_there:
            self._doubtful.add(name)
