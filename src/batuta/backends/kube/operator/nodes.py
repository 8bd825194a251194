"""Convert Kubernetes nodes to nodes of the World."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.gpu_table import MOST_MEMORY_MIB, gpus_of_node
from batuta.backends.kube.binder.requests import amount, units
from batuta.backends.kube.bounded_text import MOST_GPUS, read_whole
from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName
from batuta.core.node_table import OFFERS_SHARES

NAME_LABEL: Final = "metadata.name"
"""Not a label in the cluster: affinity can ask for a node by its name, and the World compares labels."""
_BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})
_STATES: Final = frozenset(
    {
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        names.UNHEALTHY,
    }
)
"""Taints that say what the World knows as a closed node."""
_SHARES: Final = (names.SHARE_COMPUTE, names.SHARE_MEMORY)
_MIB: Final = 1 << 20
DEFAULT_GPU_MEMORY_MIB: Final = 16_384


def read_node(
    node: objects.Node, topology: objects.NodeResourceTopology | None, gpu_resources: Sequence[str]
) -> Node | None:
    """What the World knows of a node; None for one that offers neither GPUs nor CPUs.

    A node without GPUs is for CPU-only jobs. So is one whose device plugin has gone: its jobs with GPUs lose
    them, the others stay.
    """
    allocatable, labels = node.status.allocatable, node.metadata.labels
    resource = next((name for name in gpu_resources if count(allocatable, name)), None)
    # Capacity for shares: while its device plugin restarts, a node offers none, and yet keeps its jobs.
    resource = resource or next((name for name in _SHARES if count(node.status.capacity, name)), None)
    if resource is None and not count(allocatable, "cpu"):
        return None  # its kubelet has not said yet what it has, and to the World 0 would be "not counted"
    shared = gpus_of_node(node) if resource in _SHARES else ()
    gpus = len(shared) or (min(count(allocatable, resource), MOST_GPUS) if resource is not None else 0)
    well = [card for card in shared if not card.is_ill]
    memory_mib = min((card.memory_mib for card in well), default=0)
    labelled_mib = read_whole(labels.get(names.GPU_MEMORY_LABEL), most=MOST_MEMORY_MIB)
    return Node(
        name=node.metadata.name,
        gpus=gpus,
        # The product as the node is labelled, else who makes it.
        gpu_type="" if resource is None else _first(labels, names.GPU_PRODUCT_LABELS) or resource.split("/")[0],
        gpu_memory_mib=memory_mib or labelled_mib or DEFAULT_GPU_MEMORY_MIB,
        cpus_milli=count(allocatable, "cpu"),
        memory_mib=count(allocatable, "memory") // _MIB,
        rack=_first(labels, names.RACK_LABELS),
        zone=labels.get(names.ZONE_LABEL, ""),
        numa=() if resource is None else _numa(topology, resource, gpus),
        labels=(
            (NAME_LABEL, node.metadata.name),
            *((OFFERS_SHARES,) if any(count(node.status.capacity, name) for name in _SHARES) else ()),
            *sorted(labels.items()),
        ),
        taints=(
            *(
                f"{taint.key}={taint.value}:{taint.effect}"
                for taint in node.spec.taints
                if taint.effect in _BLOCKING and taint.key not in _STATES
            ),
            *((f"{names.SHARES_ONLY}=true:NoSchedule",) if shared else ()),
        ),
        gpu_compute_percent=max(100, min((card.compute_percent for card in well), default=100)),
    )


def is_open(node: objects.Node) -> bool:
    """Whether new pods may go there: it is ready, not cordoned, and healthy."""
    ready = next((one.status for one in node.status.conditions if one.type == "Ready"), "True")
    is_shut = node.spec.unschedulable or is_unhealthy(node)
    return ready == "True" and not is_shut and not node.metadata.deletion_timestamp


def is_unhealthy(node: objects.Node) -> bool:
    """Whether it was taken out of service because of its health."""
    return any(taint.key == names.UNHEALTHY and taint.effect in _BLOCKING for taint in node.spec.taints)


def ill_cards(node: objects.Node) -> frozenset[int]:
    """The GPUs of a node that are ill, as reported by its device plugin or the health controller."""
    return frozenset(gpu for gpu, card in enumerate(gpus_of_node(node)) if card.is_ill)


def count(amounts: Mapping[str, str], resource: str) -> int:
    return units(resource, amount(amounts.get(resource, "0")))


def _numa(topology: objects.NodeResourceTopology | None, resource: str, gpus: int) -> tuple[int, ...]:
    """The NUMA node of each GPU, numbered in the order of the zones; empty unless it is known for all."""
    groups: list[int] = []
    for k, zone in enumerate(topology.zones if topology is not None else ()):
        for own in zone.resources:
            if own.name == resource:
                groups.extend([k] * min(units(resource, amount(own.allocatable)), MOST_GPUS))
    return tuple(groups) if len(groups) == gpus else ()


def _first(labels: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


class NodeReporter:
    """Tells the World about nodes: what is new since it was told last."""

    def __init__(
        self, known: Mapping[NodeName, tuple[Node, bool, bool]], ill: Mapping[NodeName, frozenset[int]] | None = None
    ) -> None:
        """`known`: what the World knows already: node, whether it is open, whether it is there.

        `ill`: which GPUs of nodes it knows to be ill.
        """
        self._told: dict[NodeName, Node] = {name: node for name, (node, _, _) in known.items()}
        self._closed = {name for name, (_, is_open, _) in known.items() if not is_open}
        self._lost = {name for name, (_, _, is_there) in known.items() if not is_there}
        self._ill = dict(ill or {})

    def __contains__(self, name: NodeName) -> bool:
        return name in self._told and name not in self._lost

    def tell(
        self,
        name: NodeName,
        node: Node | None,
        opened: bool,
        now_s: float,
        ill: frozenset[int] = frozenset(),
        cause: str = "cluster",
    ) -> list[ev.Event]:
        """What has to be said so that the World knows this; None for a node that is gone.

        `ill`: which of its GPUs must not be used. `cause`: of its being closed.
        """
        said: list[ev.Event] = []
        if node is None:
            if name in self:
                self._lost.add(name)
                said.append(ev.NodeLost(now_s, name))
            return said
        if name not in self._told:
            said.append(ev.NodeAdded(now_s, node))
        elif self._told[name] != node:
            said.append(ev.NodeChanged(now_s, node))
        if name in self._lost:
            self._lost.remove(name)
            said.append(ev.NodeReturned(now_s, name))
        self._told[name] = node
        if opened and name in self._closed:
            self._closed.remove(name)
            said.append(ev.NodeUncordoned(now_s, name, cause=cause))
        elif not opened and name not in self._closed:
            self._closed.add(name)
            said.append(ev.NodeCordoned(now_s, name, cause=cause))
        return [*said, *self._tell_ill(name, frozenset(gpu for gpu in ill if gpu < node.gpus), now_s)]

    def _tell_ill(self, name: NodeName, ill: frozenset[int], now_s: float) -> list[ev.Event]:
        known = self._ill.get(name, frozenset())
        self._ill[name] = ill
        failed = (ev.GpuFailed(now_s, name, gpu) for gpu in sorted(ill - known))
        return [*failed, *(ev.GpuRepaired(now_s, name, gpu) for gpu in sorted(known - ill))]

    def names(self) -> list[NodeName]:
        return [name for name in self._told if name not in self._lost]

    def nodes(self) -> list[Node]:
        return [node for name, node in self._told.items() if name not in self._lost]
