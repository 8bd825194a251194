"""The nodes of local mode: slices of this machine, with the GPUs that it has or with virtual ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from batuta.bootstrap.virtual_gpus import model_of
from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName
from batuta.core.world import World
from batuta.gpu.devices import Device, find_devices
from batuta.spec.problem import InputError

VIRTUAL = "virtual"
DEFAULT_NODES, DEFAULT_GPUS = 2, 4
MOST_NODES, MOST_GPUS = 1000, 64


@dataclass(frozen=True, slots=True)
class LocalNodes:
    """Nodes, and by node what CUDA_VISIBLE_DEVICES shall say for each of its GPUs."""

    nodes: tuple[Node, ...]
    devices: Mapping[NodeName, Sequence[str | int]]


def virtual_nodes(count: int | None, gpus: int | None, gpu_type: str = VIRTUAL) -> LocalNodes:
    """Nodes with GPUs that are not there. Processes are real, what they compute on is the CPU."""
    count, gpus = count or DEFAULT_NODES, gpus or DEFAULT_GPUS
    memory_mib = model_of(gpu_type).memory_bytes >> 20
    nodes = tuple(Node(f"node-{i}", gpus, gpu_type, memory_mib) for i in range(count))
    return LocalNodes(nodes, {node.name: range(gpus) for node in nodes})


def physical_nodes(count: int | None, gpus: int | None) -> LocalNodes:
    """This machine's GPUs, of one type per node, divided evenly over the nodes that are asked for."""
    found = find_devices()
    if not found:
        raise InputError.of(
            "no GPU was found on this machine (NVML does not answer)",
            fix="batuta up --virtual tries everything out with virtual GPUs",
        )
    by_type: dict[str, list[Device]] = {}
    for device in found:
        by_type.setdefault(device.type, []).append(device)
    nodes: list[Node] = []
    devices: dict[NodeName, Sequence[str | int]] = {}
    for gpu_type, own in by_type.items():
        size = gpus or -(-len(own) // (count or 1))
        for begin in range(0, len(own), size):
            part = own[begin : begin + size]
            name = f"node-{len(nodes)}"
            memory_mib = min(device.memory_mib for device in part)
            nodes.append(Node(name, len(part), gpu_type, memory_mib, numa=tuple(d.numa for d in part)))
            devices[name] = [device.uuid for device in part]
    return LocalNodes(tuple(nodes), devices)


def promising(local: LocalNodes, percent: int) -> LocalNodes:
    """The same nodes, with so much of each GPU's compute to promise to soft shares together."""
    return replace(local, nodes=tuple(replace(node, gpu_compute_percent=percent) for node in local.nodes))


def check_counts(nodes: int | None, gpus: int | None) -> None:
    """Refuses numbers of nodes and GPUs that make no sense, all at once."""
    from batuta.spec.problem import Problem

    problems = [
        Problem(f"{name} must be within 1..{most}, found {value}")
        for name, value, most in (("--nodes", nodes, MOST_NODES), ("--gpus", gpus, MOST_GPUS))
        if value is not None and not 1 <= value <= most
    ]
    if problems:
        raise InputError(problems)


def node_events(world: World, nodes: Sequence[Node], now_s: float) -> list[ev.Event]:
    """What has to happen so that the World has these nodes: a start may have others than the last one.

    A node that has other GPUs than before cannot be told from another machine with the same name.
    """
    known = {node.name: node for node in world.nodes.nodes}
    wanted = {node.name for node in nodes}
    events: list[ev.Event] = []
    for node in nodes:
        before = known.get(node.name)
        if before is None:
            events.append(ev.NodeAdded(now_s, node))
            continue
        if (before.gpus, before.gpu_type) != (node.gpus, node.gpu_type):
            raise InputError.of(
                f"{node.name} had {before.gpus} GPUs of type {before.gpu_type} when this state directory was "
                f"last used, and would have {node.gpus} of type {node.gpu_type} now",
                fix="start with the same --gpus and --gpu-type, or with another --home",
            )
        if before != node:
            events.append(ev.NodeChanged(now_s, node))
        if world.lost >> world.nodes.index[node.name] & 1:
            events.append(ev.NodeReturned(now_s, node.name))
    gone = [name for name in known if name not in wanted]
    events += [ev.NodeLost(now_s, name) for name in gone if not world.lost >> world.nodes.index[name] & 1]
    return events
