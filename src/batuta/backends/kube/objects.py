"""The objects of the API server, with the fields that Batuta reads and no others.

Decoding into these is several times faster than into dictionaries, and takes a fraction of the memory: a
cluster has tens of thousands of pods. Batuta builds the objects that it writes as plain dictionaries.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from batuta.backends.kube import names
from batuta.backends.kube.bounded_text import LATEST_S, MOST_GPUS, read_json

Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Bounds as the API server has them; an object beyond them is malformed, also if the API server let it in."""


class _Base(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Names as the API server spells them; what it sends beyond these fields is skipped.

    Objects are trees, so the collector of garbage has no business with their hundreds of thousands of parts.
    """


class OwnerReference(_Base):
    """Who an object belongs to."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(_Base):
    """What every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: Int64 = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []


class _Object(_Base):
    metadata: Meta = msgspec.field(default_factory=Meta)


class Condition(_Base):
    """One statement about an object, as `metav1.Condition` and its older relatives have it."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class Expression(_Base):
    """One requirement of a selector."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class LabelSelector(_Base):
    """Which labels other objects must have."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Expression] = []


class NodeSelectorTerm(_Base):
    """Requirements that a node must meet together."""

    match_expressions: list[Expression] = []
    match_fields: list[Expression] = []


class NodeSelector(_Base):
    """Terms of which a node must meet one."""

    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredTerm(_Base):
    """A term that counts in favour of a node."""

    weight: Int32 = 1
    preference: NodeSelectorTerm = msgspec.field(default_factory=NodeSelectorTerm)


class NodeAffinity(_Base):
    """Which nodes a pod must have, and would like."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredTerm] = []


class PodAffinityTerm(_Base):
    """Other pods, and how near."""

    label_selector: LabelSelector | None = None
    topology_key: str = ""
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None


class WeightedPodAffinityTerm(_Base):
    """Other pods, how near, and how much it counts."""

    weight: Int32 = 1
    pod_affinity_term: PodAffinityTerm = msgspec.field(default_factory=PodAffinityTerm)


class PodAffinity(_Base):
    """Which pods a pod must be near to (or away from), and would like to be."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = []


class Affinity(_Base):
    """Where a pod wants to be."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(_Base):
    """A taint that a pod does not mind."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Taint(_Base):
    """What keeps pods away from a node."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str = ""


class ContainerPort(_Base):
    """A port; only those on the host matter here."""

    host_port: Int32 = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Resources(_Base):
    """What a container asks for, as quantities."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Container(_Base):
    """One container of a pod."""

    name: str = ""
    resources: Resources = msgspec.field(default_factory=Resources)
    ports: list[ContainerPort] = []
    restart_policy: str = ""  # `Always` makes an init container a sidecar


class SchedulingGate(_Base):
    """Something that a pod waits for before it may be scheduled."""

    name: str = ""


class TopologySpread(_Base):
    """How evenly pods shall lie."""

    max_skew: Int32 = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    min_domains: Int32 = 1
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"


class SchedulingGroup(_Base):
    """The upstream group that a pod belongs to (1.36 and later)."""

    pod_group_name: str = ""


class PodSpec(_Base):
    """What a pod wants."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: Int32 = 0
    priority_class_name: str = ""
    scheduling_gates: list[SchedulingGate] = []
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: dict[str, str] = {}
    resources: Resources | None = None  # of the whole pod, where they are stated
    topology_spread_constraints: list[TopologySpread] = []
    scheduling_group: SchedulingGroup | None = None


class Terminated(_Base):
    """How a container ended."""

    exit_code: Int32 = 0
    reason: str = ""
    message: str = ""
    finished_at: str = ""


class ContainerState(_Base):
    """Where a container is in its life."""

    terminated: Terminated | None = None


class ContainerStatus(_Base):
    """What became of a container."""

    name: str = ""
    ready: bool = False
    resources: Resources | None = None
    """What the kubelet has put in force; differs from the spec while a pod is resized in place."""
    allocated_resources: dict[str, str] = {}
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class PodStatus(_Base):
    """What became of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    start_time: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class Pod(_Object):
    """A pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class NodeSpec(_Base):
    """What people set about a node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class Address(_Base):
    """Where a node is reached."""

    type: str = ""
    address: str = ""


class NodeInfo(_Base):
    """What runs on a node."""

    boot_id: str = msgspec.field(default="", name="bootID")  # another one after each boot


class NodeStatus(_Base):
    """What a node has."""

    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: list[Condition] = []
    addresses: list[Address] = []
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)


class Node(_Object):
    """A node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class Zone(_Base):
    """A part of a node, in NodeResourceTopology: mostly a NUMA node."""

    name: str = ""
    type: str = ""
    resources: list[ZoneResource] = []


class ZoneResource(_Base):
    """What a zone has of one resource."""

    name: str = ""
    capacity: str = "0"
    allocatable: str = "0"
    available: str = "0"


class ZoneAttribute(_Base):
    """A setting of the kubelet's topology manager."""

    name: str = ""
    value: str = ""


class NodeResourceTopology(_Object):
    """`topology.node.k8s.io/v1alpha2`: what each NUMA node of a node has."""

    topology_policies: list[str] = []
    zones: list[Zone] = []
    attributes: list[ZoneAttribute] = []


class PriorityClass(_Object):
    """A name for a priority."""

    value: Int32 = 0
    global_default: bool = False


class PodGroupSpec(_Base):
    """`scheduling.x-k8s.io` PodGroup."""

    min_member: Int32 = 0


class PodGroup(_Object):
    """How many pods of a group start together."""

    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


class Batch(_Object):
    """A batch/v1 Job, a JobSet, an MPIJob: what is read of it depends on its kind, so it stays plain."""

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class GpuFigures(msgspec.Struct, rename="camel"):
    """One GPU of an agent's report."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)]
    utilisation: float | None = None
    memory_used_mib: float | None = None

    def __post_init__(self) -> None:
        if self.utilisation is not None:
            self.utilisation = min(max(self.utilisation, 0.0), 1.0)


class UsageReport(msgspec.Struct):
    """What an agent writes on its node: how busy each GPU was at a time."""

    time: Annotated[float, msgspec.Meta(ge=0.0, lt=LATEST_S)]
    gpus: Annotated[list[GpuFigures], msgspec.Meta(max_length=MOST_GPUS)] = []


def read_usage(node: Node) -> UsageReport | None:
    """The report on a node; None for none, and for what cannot be read."""
    return read_json(node.metadata.annotations.get(names.UTILISATION), UsageReport | None, None)  # type: ignore[arg-type]


def has_condition(status: Any, *types: str) -> bool:
    """Whether a status, which may be anything, has one of these conditions as true."""
    listed = status.get("conditions") if isinstance(status, dict) else None
    return any(
        one.get("type") in types and one.get("status") == "True"
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict)
    )
