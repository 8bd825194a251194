"""Classes of pods with the same requirements: Filter and Score run once for all pods of a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.affinity import PodTerm, Requirement, Spread, pod_terms, requirements, spreads
from batuta.backends.kube.binder.numa_table import aligned_containers, aligned_pod
from batuta.backends.kube.binder.requests import ContainerNeed, HostPort, Needs, host_ports, pod_requests

_MOST_OF_A_CARD: Final = 2**40
_encode = msgspec.msgpack.Encoder().encode


class Tolerance(NamedTuple):
    """A taint that a pod does not mind."""

    key: str
    operator: str
    value: str
    effect: str


class NodeTerm(NamedTuple):
    """Conditions on a node's labels and on its name that hold together."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]


class Share(NamedTuple):
    """A part of one GPU."""

    memory_mib: int
    compute_percent: int
    soft: bool = False
    """Whether it may have more compute while the card is idle, and counts on less than it was promised."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PodClass:
    """What a spec asks for, read once. Pods that ask for the same thing share one object of this."""

    requests: Needs  # by resource, without zeros; the pod itself counts as one of `pods` besides
    tolerations: tuple[Tolerance, ...]
    selector: tuple[Requirement, ...]
    required: tuple[NodeTerm, ...] | None  # terms of which a node must meet one; None: any node will do
    preferred: tuple[tuple[int, NodeTerm], ...]
    ports: tuple[HostPort, ...]
    near: tuple[PodTerm, ...]
    apart: tuple[PodTerm, ...]
    spread: tuple[Spread, ...]
    gpus: int
    share: Share | None
    aligned: Needs  # what the whole pod takes from particular NUMA nodes, where the kubelet aligns pods
    aligned_containers: tuple[ContainerNeed, ...]
    """What each of its containers takes from particular NUMA nodes, where the kubelet aligns containers."""

    @property
    def has_affinity(self) -> bool:
        """Whether other pods matter to where this one goes."""
        return bool(self.near or self.apart or self.spread)


class PodClasses:
    """The classes of all pods that are known; a class goes when its last pod does."""

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[bytes, PodClass] = WeakValueDictionary()

    def of(self, pod: objects.Pod) -> PodClass:
        key = _key(pod)
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = read_class(pod)
        return found

    def __len__(self) -> int:
        return len(self._by_key)


def _key(pod: objects.Pod) -> bytes:
    """Everything that `read_class` reads. Labels count only where the pod compares itself with others."""
    spec = pod.spec
    affinity = spec.affinity
    social = spec.topology_spread_constraints or (
        affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    )
    containers, inits = (
        [(one.resources, one.ports, one.restart_policy) for one in some]
        for some in (spec.containers, spec.init_containers)
    )
    nodes = (spec.node_selector, affinity, spec.tolerations, spec.topology_spread_constraints)
    who = (pod.metadata.namespace, pod.metadata.labels) if social else None
    return _encode((containers, inits, spec.overhead, spec.resources, nodes, who, _is_soft(pod)))


def read_class(pod: objects.Pod) -> PodClass:
    """What the pod's spec asks for, whatever is or was in force on a node."""
    spec = msgspec.structs.replace(pod.spec, node_name="")
    asked = pod_requests(objects.Pod(metadata=pod.metadata, spec=spec))
    affinity = spec.affinity or objects.Affinity()
    node = affinity.node_affinity or objects.NodeAffinity()
    required = node.required_during_scheduling_ignored_during_execution
    near = affinity.pod_affinity or objects.PodAffinity()
    apart = affinity.pod_anti_affinity or objects.PodAffinity()
    space = pod.metadata.namespace
    containers = aligned_containers(spec)
    return PodClass(
        requests=tuple(asked.items()),
        tolerations=tuple(
            Tolerance(one.key, one.operator or "Equal", one.value, one.effect) for one in spec.tolerations
        ),
        selector=requirements((), spec.node_selector),
        required=None if required is None else _terms(required),
        preferred=_preferred(node),
        ports=host_ports(spec),
        near=pod_terms(near.required_during_scheduling_ignored_during_execution, space),
        apart=pod_terms(apart.required_during_scheduling_ignored_during_execution, space),
        spread=spreads(spec.topology_spread_constraints, space, pod.metadata.labels),
        gpus=next((asked[name] for name in names.GPU_RESOURCES if name in asked), 0),
        share=_share(asked, _is_soft(pod)),
        aligned=aligned_pod(containers),
        aligned_containers=containers,
    )


def _terms(required: objects.NodeSelector) -> tuple[NodeTerm, ...]:
    """Empty terms match no node, so they are left out; without any term no node matches."""
    return tuple(_term(one) for one in required.node_selector_terms if one.match_expressions or one.match_fields)


def _term(term: objects.NodeSelectorTerm) -> NodeTerm:
    return NodeTerm(requirements(term.match_expressions), requirements(term.match_fields))


def _preferred(node: objects.NodeAffinity) -> tuple[tuple[int, NodeTerm], ...]:
    return tuple(
        (one.weight, _term(one.preference))
        for one in node.preferred_during_scheduling_ignored_during_execution
        if one.weight and (one.preference.match_expressions or one.preference.match_fields)
    )


def _is_soft(pod: objects.Pod) -> bool:
    return pod.metadata.annotations.get(names.SHARE_LIMITS) == "soft"


def _share(asked: dict[str, int], soft: bool) -> Share | None:
    # A share that no card has: the columns of cards hold 64 bits, and the sum over all sharers has to fit in.
    units, compute = (min(asked.get(name, 0), _MOST_OF_A_CARD) for name in (names.SHARE_MEMORY, names.SHARE_COMPUTE))
    return Share(units * names.SHARE_UNIT_MIB, compute, soft) if units or compute else None
