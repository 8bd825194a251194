"""Whether a pod fits a node, the slow and plain way: what the binder is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from batuta.backends.kube import objects

GPU = "nvidia.com/gpu"


@dataclass
class World:
    """Nodes, and the pods on them."""

    nodes: dict[str, objects.Node] = field(default_factory=dict)
    pods: dict[str, objects.Pod] = field(default_factory=dict)
    """Those that are bound and not over, by key."""

    def on(self, node: str) -> list[objects.Pod]:
        return [pod for pod in self.pods.values() if pod.spec.node_name == node]

    def everyone(self) -> list[tuple[objects.Pod, objects.Node]]:
        return [(pod, self.nodes[pod.spec.node_name]) for pod in self.pods.values() if pod.spec.node_name in self.nodes]


def fits(world: World, pod: objects.Pod, node: objects.Node) -> bool:
    return (
        tolerated(pod, node)
        and matches(pod, node)
        and has_room(world, pod, node)
        and ports_free(world, pod, node)
        and near(world, pod, node)
        and apart(world, pod, node)
        and welcome(world, pod, node)
        and even(world, pod, node)
    )


def requests(pod: objects.Pod) -> dict[str, int]:
    """Whole numbers of everything but the CPU, which is in thousandths; one container, no surprises."""
    found = {}
    for name, text in pod.spec.containers[0].resources.requests.items():
        milli = name == "cpu" and not text.endswith("m")
        found[name] = int(text.removesuffix("m")) * (1000 if milli else 1)
    return found


def has_room(world: World, pod: objects.Pod, node: objects.Node) -> bool:
    has = {name: int(text) * (1000 if name == "cpu" else 1) for name, text in node.status.allocatable.items()}
    here = world.on(node.metadata.name)
    if len(here) + 1 > has.get("pods", 0):
        return False
    return all(
        value == 0 or value <= has.get(name, 0) - sum(requests(other).get(name, 0) for other in here)
        for name, value in requests(pod).items()
    )


def tolerated(pod: objects.Pod, node: objects.Node) -> bool:
    def tolerates(key: str, value: str, effect: str) -> bool:
        for one in pod.spec.tolerations:
            if one.effect not in {"", effect} or one.key not in {"", key}:
                continue
            if one.operator == "Exists" or one.value == value:
                return True
        return False

    if node.spec.unschedulable and not tolerates("node.kubernetes.io/unschedulable", "", "NoSchedule"):
        return False
    return all(
        tolerates(taint.key, taint.value, taint.effect)
        for taint in node.spec.taints
        if taint.effect in {"NoSchedule", "NoExecute"}
    )


def holds(expression: objects.Expression, value: str | None) -> bool:
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and value.isdecimal() and int(value) > int(expression.values[0])
        case _:
            return value is not None and value.isdecimal() and int(value) < int(expression.values[0])


def matches(pod: objects.Pod, node: objects.Node) -> bool:
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return True
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    if required is None:
        return True
    for term in required.node_selector_terms:
        wanted = [holds(one, labels.get(one.key)) for one in term.match_expressions]
        wanted += [holds(one, node.metadata.name) for one in term.match_fields]
        if wanted and all(wanted):
            return True
    return False


def ports_free(world: World, pod: objects.Pod, node: objects.Node) -> bool:
    def ports(of: objects.Pod) -> list[objects.ContainerPort]:
        return [port for one in of.spec.containers for port in one.ports if port.host_port]

    for other in world.on(node.metadata.name):
        for mine in ports(pod):
            for theirs in ports(other):
                same = (mine.host_port, mine.protocol) == (theirs.host_port, theirs.protocol)
                addresses = {mine.host_ip or "0.0.0.0", theirs.host_ip or "0.0.0.0"}
                if same and (len(addresses) == 1 or "0.0.0.0" in addresses):
                    return False
    return True


def selected(selector: objects.LabelSelector | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        holds(one, labels.get(one.key)) for one in selector.match_expressions
    )


def speaks_of(owner: objects.Pod, term: objects.PodAffinityTerm, other: objects.Pod) -> bool:
    spaces = term.namespaces or [owner.metadata.namespace]
    return other.metadata.namespace in spaces and selected(term.label_selector, other.metadata.labels)


def terms(pod: objects.Pod, which: str) -> Sequence[objects.PodAffinityTerm]:
    found: objects.PodAffinity | None = getattr(pod.spec.affinity, which, None)
    return () if found is None else found.required_during_scheduling_ignored_during_execution


def together(a: objects.Node, b: objects.Node, key: str) -> bool:
    return key in a.metadata.labels and a.metadata.labels.get(key) == b.metadata.labels.get(key)


def near(world: World, pod: objects.Pod, node: objects.Node) -> bool:
    wanted = terms(pod, "pod_affinity")
    if any(term.topology_key not in node.metadata.labels for term in wanted):
        return False
    friends = [(other, home) for other, home in world.everyone() if all(speaks_of(pod, term, other) for term in wanted)]
    if all(any(together(node, home, term.topology_key) for _, home in friends) for term in wanted):
        return True
    # The first of a kind may go anywhere; a friend on a node without the label is no friend here.
    reachable = [1 for _, home in friends for term in wanted if term.topology_key in home.metadata.labels]
    return not reachable and all(speaks_of(pod, term, pod) for term in wanted)


def apart(world: World, pod: objects.Pod, node: objects.Node) -> bool:
    return not any(
        speaks_of(pod, term, other) and together(node, home, term.topology_key)
        for term in terms(pod, "pod_anti_affinity")
        for other, home in world.everyone()
    )


def welcome(world: World, pod: objects.Pod, node: objects.Node) -> bool:
    return not any(
        speaks_of(other, term, pod) and together(node, home, term.topology_key)
        for other, home in world.everyone()
        for term in terms(other, "pod_anti_affinity")
    )


def even(world: World, pod: objects.Pod, node: objects.Node) -> bool:
    hard = [one for one in pod.spec.topology_spread_constraints if one.when_unsatisfiable == "DoNotSchedule"]
    return all(_even(world, pod, node, one, [other.topology_key for other in hard]) for one in hard)


def _even(
    world: World, pod: objects.Pod, node: objects.Node, spread: objects.TopologySpread, keys: Sequence[str]
) -> bool:
    if spread.topology_key not in node.metadata.labels:
        return False
    counts: dict[str, int] = {}
    for home in world.nodes.values():
        if all(key in home.metadata.labels for key in keys) and matches(pod, home):
            counts.setdefault(home.metadata.labels[spread.topology_key], 0)
            for other in world.on(home.metadata.name):
                lasting = not other.metadata.deletion_timestamp
                same = other.metadata.namespace == pod.metadata.namespace
                if lasting and same and selected(spread.label_selector, other.metadata.labels):
                    counts[home.metadata.labels[spread.topology_key]] += 1
    fewest = min(counts.values(), default=0) if len(counts) >= spread.min_domains else 0
    own = counts.get(node.metadata.labels[spread.topology_key], 0)
    return own + selected(spread.label_selector, pod.metadata.labels) - fewest <= spread.max_skew
