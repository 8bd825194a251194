"""Resource requests and host ports of a pod, as kube-scheduler counts them; quantities (`500m`, `16Gi`)."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

from batuta.backends.kube import objects
from batuta.backends.kube.bounded_text import read_quantity

LARGEST: Final = 2**62
"""Columns hold 64 bits; a sum of a few of these still fits a Python int, and a single one fits a column."""
MOST_REQUESTED: Final = 2**50
"""What one pod asks for counts as no more than this: the sum over all pods of a node has to fit into a column."""
_NOTHING: Final = Fraction(0)
Amounts: TypeAlias = dict[str, Fraction]
Needs: TypeAlias = tuple[tuple[str, int], ...]  # resources and how much of each, in the units of `quantity.units`
ALWAYS: Final = "Always"
_POD_LEVEL: Final = ("cpu", "memory")
ANY_ADDRESS: Final = "0.0.0.0"


def amount(text: str) -> Fraction:
    """The exact value; what is no quantity counts as 0, because the API server lets none through."""
    return read_quantity(text) or _NOTHING


def whole(value: Fraction) -> int:
    """Rounded up, as the API means a request that is no whole number."""
    return max(min(-(-value.numerator // value.denominator), LARGEST), -LARGEST)


def units(resource: str, value: Fraction) -> int:
    """In the unit in which a resource is counted: thousandths of a CPU, whole numbers of all else."""
    return whole(value * 1000) if resource == "cpu" else whole(value)


class HostPort(NamedTuple):
    """A port of the node itself."""

    ip: str
    protocol: str
    port: int

    def clashes(self, other: HostPort) -> bool:
        """The same port and protocol, on the same address or on all of them."""
        if self.port != other.port or self.protocol != other.protocol:
            return False
        return self.ip == other.ip or ANY_ADDRESS in {self.ip, other.ip}


class ContainerNeed(NamedTuple):
    """What one container asks for; `kept` is false for init containers that end before the others start."""

    requests: Needs
    kept: bool


def pod_requests(pod: objects.Pod) -> dict[str, int]:
    """Requests of the whole pod, by resource, in the units of `quantity.units`; zeros are left out."""
    spec = pod.spec
    running = _in_force(pod) if pod.spec.node_name else {}
    total = _containers(spec, running)
    if spec.resources is not None:
        for name, text in spec.resources.requests.items():
            if _pod_level(name):
                total[name] = amount(text)
    _add(total, _parsed(spec.overhead))
    counted = {name: min(units(name, value), MOST_REQUESTED) for name, value in total.items() if _counts(name)}
    return {name: value for name, value in sorted(counted.items()) if value > 0}


def is_resized(pod: objects.Pod) -> bool:
    """Whether something else is in force on the node than what the spec says."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    stated = [(one.name, one.resources.requests, one.allocated_resources) for one in statuses if one.resources]
    if not stated:
        return False
    specs = {one.name: one.resources.requests for one in (*pod.spec.init_containers, *pod.spec.containers)}
    return any(specs.get(name) != had or (given and specs.get(name) != given) for name, had, given in stated)


def container_needs(spec: objects.PodSpec) -> tuple[ContainerNeed, ...]:
    """Containers in the order in which the kubelet admits them."""
    inits = [(one, one.restart_policy == ALWAYS) for one in spec.init_containers]
    needs = []
    for one, kept in [*inits, *((one, True) for one in spec.containers)]:
        asked = (
            (name, min(units(name, amount(text)), MOST_REQUESTED)) for name, text in one.resources.requests.items()
        )
        needs.append(ContainerNeed(tuple(sorted(asked)), kept))
    return tuple(needs)


def host_ports(spec: objects.PodSpec) -> tuple[HostPort, ...]:
    lasting = [one for one in spec.init_containers if one.restart_policy == ALWAYS]
    ports = [port for one in (*lasting, *spec.containers) for port in one.ports if port.host_port > 0]
    return tuple(sorted({HostPort(one.host_ip or ANY_ADDRESS, one.protocol or "TCP", one.host_port) for one in ports}))


def is_guaranteed(spec: objects.PodSpec) -> bool:
    """Whether the pod has the QoS class Guaranteed: limits of CPU and memory, and requests equal to them."""
    stated = spec.resources
    if stated is not None and any(_pod_level(name) for name in (*stated.requests, *stated.limits)):
        return _equal_limits(stated)
    everyone = (*spec.init_containers, *spec.containers)
    return bool(everyone) and all(_equal_limits(one.resources) for one in everyone)


def _equal_limits(resources: objects.Resources) -> bool:
    for name in _POD_LEVEL:
        limit = amount(resources.limits.get(name, "0"))
        if limit <= 0 or amount(resources.requests.get(name, resources.limits[name])) != limit:
            return False
    return True


def _containers(spec: objects.PodSpec, running: Mapping[str, Amounts]) -> Amounts:
    """Sum of containers and sidecars, or the most that starting up needs at one time, whichever is more."""
    total: Amounts = {}
    for one in spec.containers:
        _add(total, running.get(one.name) or _parsed(one.resources.requests))
    sidecars: Amounts = {}
    starting: Amounts = {}
    for one in spec.init_containers:
        own = _parsed(one.resources.requests)
        if one.restart_policy == ALWAYS:
            own = running.get(one.name) or own
            _add(total, own)
            _add(sidecars, own)
            _raise(starting, sidecars)
        else:
            moment = dict(own)
            _add(moment, sidecars)
            _raise(starting, moment)
    _raise(total, starting)
    return total


def _in_force(pod: objects.Pod) -> dict[str, Amounts]:
    """Requests of containers that are being resized in place: the most of what was, is and shall be."""
    refused = any(one.type == "PodResizePending" and one.reason == "Infeasible" for one in pod.status.conditions)
    specs = {one.name: one.resources.requests for one in (*pod.spec.init_containers, *pod.spec.containers)}
    found: dict[str, Amounts] = {}
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.resources is None or status.name not in specs:
            continue
        own = {} if refused else _parsed(specs[status.name])
        _raise(own, _parsed(status.resources.requests))
        _raise(own, _parsed(status.allocated_resources))
        found[status.name] = own
    return found


def _parsed(requests: Mapping[str, str]) -> Amounts:
    return {name: amount(text) for name, text in requests.items()}


def _add(total: Amounts, more: Mapping[str, Fraction]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, Fraction(0)) + value


def _raise(total: Amounts, least: Mapping[str, Fraction]) -> None:
    for name, value in least.items():
        if name not in total or value > total[name]:
            total[name] = value


def _pod_level(name: str) -> bool:
    return name in _POD_LEVEL or name.startswith("hugepages-")


def _counts(name: str) -> bool:
    """Resources that a node is checked for; others (such as `storage`) belong to volumes."""
    is_core = name in {"cpu", "memory", "ephemeral-storage"} or name.startswith(("hugepages-", "attachable-volumes-"))
    return is_core or "/" in name
