"""The nodes of local mode: slices of this machine, with physical or virtual GPUs.

For each node with virtual GPUs there is a device file, on which CUDA and NVML programs see its jobs. Where virtual
GPUs are not available, GPUs are numbers in CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName
from batuta.core.world import World
from batuta.gpu.devices import Device, find_devices
from batuta.gpu.native_libraries import vgpu_environment, vgpu_libraries
from batuta.gpu.vgpu.device_file import DEVICES, Machine, create_device_file
from batuta.gpu.vgpu.models import MODELS, Model, find_model
from batuta.gpu.vgpu.snapshot import VirtualGpu, read_gpus
from batuta.spec.problem import InputError, Problem
from batuta.spec.task_resources import VIRTUAL_GPU

DEFAULT_NODES, DEFAULT_GPUS = 2, 4
MOST_NODES, MOST_GPUS = 1000, 64
VIRTUAL_CPUS, VIRTUAL_MEMORY_GIB = 16, 128
"""Of a virtual node, for each of its GPUs."""
_FOLDER = "vgpu"
_MIB, _MIB_PER_GIB = 1 << 20, 1024
_MADE_AHEAD = 32
"""So many nodes have their device files before a job needs them: to make one takes some milliseconds."""
_PLAIN = replace(MODELS["T4"], name="Batuta virtual GPU", memory_bytes=16 << 30)
"""What a virtual GPU is like that is of no real model."""


@dataclass(frozen=True, slots=True)
class LocalNodes:
    """Nodes, and by node what CUDA_VISIBLE_DEVICES shall say for each of its GPUs."""

    nodes: tuple[Node, ...]
    devices: Mapping[NodeName, Sequence[str | int]]

    @property
    def uuids(self) -> dict[NodeName, list[str]]:
        """By node, the UUIDs of its physical GPUs."""
        return {node: [str(uuid) for uuid in own] for node, own in self.devices.items()}


def check_counts(nodes: int | None, gpus: int | None) -> None:
    """Refuse numbers of nodes and GPUs that make no sense, all at once."""
    problems = [
        Problem(f"{name} must be within 1..{most}, found {value}")
        for name, value, most in (("--nodes", nodes, MOST_NODES), ("--gpus", gpus, MOST_GPUS))
        if value is not None and not 1 <= value <= most
    ]
    if problems:
        raise InputError(problems)


def virtual_nodes(count: int | None, gpus: int | None, gpu_type: str = VIRTUAL_GPU) -> LocalNodes:
    """Return nodes with GPUs that are not there. Processes are real, what they compute on is the CPU."""
    count, gpus = count or DEFAULT_NODES, gpus or DEFAULT_GPUS
    memory_mib = _model_of(gpu_type).memory_bytes >> 20
    nodes = tuple(Node(f"node-{i}", gpus, gpu_type, memory_mib) for i in range(count))
    return LocalNodes(nodes, {node.name: range(gpus) for node in nodes})


def physical_nodes(count: int | None, gpus: int | None) -> LocalNodes:
    """Return this machine's GPUs, of one type per node, divided evenly over the nodes that are asked for."""
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
            nodes.append(Node(name, len(part), gpu_type, memory_mib, numa=tuple(one.numa for one in part)))
            devices[name] = [device.uuid for device in part]
    return LocalNodes(tuple(nodes), devices)


def with_capacity(
    local: LocalNodes, compute_percent: int, cpus: float | None, memory_gib: float | None, *, virtual: bool
) -> LocalNodes:
    """Return the nodes with CPUs and memory, as told or else by their GPUs, and with compute for soft shares.

    `compute_percent` of each GPU is promised to soft shares together. Virtual nodes have as much CPU and memory as
    machines with such GPUs usually do, to try out jobs of that size. Others divide what this machine has.
    """
    total, nodes = sum(node.gpus for node in local.nodes), []
    for node in local.nodes:
        if virtual:
            own_cpus, own_mib = float(VIRTUAL_CPUS * node.gpus), VIRTUAL_MEMORY_GIB * _MIB_PER_GIB * node.gpus
        else:
            own_cpus = len(os.sched_getaffinity(0)) * node.gpus / total
            own_mib = (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20) * node.gpus // total
        cpus_milli = int(1000 * (own_cpus if cpus is None else cpus))
        memory_mib = own_mib if memory_gib is None else int(memory_gib * _MIB_PER_GIB)
        nodes.append(replace(node, cpus_milli=cpus_milli, memory_mib=memory_mib, gpu_compute_percent=compute_percent))
    return replace(local, nodes=tuple(nodes))


def node_events(world: World, nodes: Sequence[Node], now_s: float) -> list[ev.Event]:
    """Return the events that give the World these nodes: a start may have others than the last one.

    A node that has other GPUs than before cannot be told from another machine with the same name.
    """
    known = {node.name: node for node in world.nodes.nodes}
    lost = {name for name in known if world.lost >> world.nodes.index[name] & 1}
    events: list[ev.Event] = []
    for node in nodes:
        before = known.pop(node.name, None)
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
        if node.name in lost:
            events.append(ev.NodeReturned(now_s, node.name))
    return events + [ev.NodeLost(now_s, name) for name in known if name not in lost]


def device_path(home: Path, node: NodeName) -> Path:
    """Return the file with the GPUs of a virtual node, whether it is there or not."""
    return home / _FOLDER / f"{node}.vgpu"


def virtual_log(home: Path) -> Path:
    """Return where the drivers of virtual GPUs write, as the log of one machine that collects those of others."""
    return home / "health" / "kern.log"


def _model_of(gpu_type: str) -> Model:
    """Return what virtual GPUs of a type pretend to be; one that no data sheet is known of has only its name."""
    try:
        return find_model(gpu_type)
    except InputError:
        return _PLAIN if gpu_type == VIRTUAL_GPU else replace(_PLAIN, name=gpu_type)


class VirtualGpus:
    """The device files of virtual nodes. A file is made when it is first needed, or ahead of that."""

    def __init__(self, home: Path, nodes: Sequence[Node]) -> None:
        self._home = home
        self._nodes = {node.name: node for node in nodes}
        self._libraries: Path | None = None
        self._made: dict[NodeName, tuple[str, ...]] = {}
        """By node: the UUIDs of its GPUs."""
        self._making = threading.Lock()

    def build(self) -> None:
        """Compile the libraries, which takes seconds the first time; InputError where that cannot be."""
        most = max((node.gpus for node in self._nodes.values()), default=0)
        if most > DEVICES:
            raise InputError.of(f"programs can see {DEVICES} GPUs of a virtual node at most, it has {most}")
        self._libraries = vgpu_libraries()

    @property
    def has_libraries(self) -> bool:
        """Whether programs can see these GPUs by now."""
        return self._libraries is not None

    def make_ahead(self) -> None:
        for node in list(self._nodes.values())[:_MADE_AHEAD]:
            with suppress(InputError, OSError):  # a command that needs it reports the error
                self._make(node)

    def environment(self, node: NodeName, env: Mapping[str, str]) -> dict[str, str]:
        """Return `env`, in which programs find the node's virtual GPUs; as it was where there are none."""
        if self._libraries is None:
            return dict(env)
        self._make(self._nodes[node])
        return vgpu_environment(device_path(self._home, node), env, self._libraries)

    def uuids(self, node: NodeName) -> tuple[str, ...]:
        """Return the GPUs of a node as NVML names them; nothing where there are none, or not yet."""
        return self._made.get(node, ())

    def path(self, node: NodeName) -> Path | None:
        """Return the device file of a node; None where there is none, or not yet."""
        return device_path(self._home, node) if node in self._made else None

    def read(self, node: NodeName) -> tuple[VirtualGpu, ...]:
        """Return what the GPUs of a node are doing; nothing where there are none, not yet, or not any more."""
        path = self.path(node)
        with suppress(InputError):  # the file was removed
            return () if path is None else read_gpus(path)
        return ()

    def _make(self, node: Node) -> None:
        """Make the file of a node, or keep that of a former server, which jobs that still run have open."""
        if node.name in self._made:
            return
        path, model = device_path(self._home, node.name), _model_of(node.gpu_type)
        memory_bytes = node.gpu_memory_mib * _MIB
        # Of two threads that make it at once, one would use a file that the other has replaced.
        with self._making:
            if not _is_as_wanted(path, node.gpus, model.name, memory_bytes):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                label = f"{os.path.realpath(self._home)}/{node.name}"
                create_device_file(path, Machine(model, node.gpus, memory_bytes, label=label), overwrite=True)
            self._made[node.name] = tuple(gpu.uuid for gpu in read_gpus(path))


def _is_as_wanted(path: Path, gpus: int, model: str, memory_bytes: int) -> bool:
    try:
        found = read_gpus(path)
    except InputError:
        return False
    return [(gpu.name, gpu.memory_bytes) for gpu in found] == [(model, memory_bytes)] * gpus
