"""The nodes of local mode: slices of this machine, with physical or virtual GPUs; and how busy those are.

For each node with virtual GPUs there is a device file, on which CUDA and NVML programs see its jobs. Where virtual
GPUs are not available, GPUs are numbers in CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName, Placement
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.engine.requests import RequestFn
from batuta.engine.trials.measurement import Look
from batuta.engine.usage_watch import LOOK_S, NodeUse, UsageWatch
from batuta.gpu.devices import Device, NvmlUnavailable, find_devices
from batuta.gpu.native_libraries import copy_for_all, vgpu_environment, vgpu_libraries
from batuta.gpu.owners import LocalOwners
from batuta.gpu.profiler.sources import NvmlSource
from batuta.gpu.vgpu.device_file import DEVICES, MODELS, Machine, Model, create_device_file, find_model
from batuta.gpu.vgpu.snapshot import VirtualGpu, read_gpus
from batuta.spec.problem import InputError, Problem
from batuta.spec.task_resources import VIRTUAL_GPU

DEFAULT_NODES, DEFAULT_GPUS = 2, 4
MOST_NODES, MOST_GPUS = 1000, 64
VIRTUAL_CPUS, VIRTUAL_MEMORY_GIB = 16, 128  # of a virtual node, for each of its GPUs
_FOLDER = "vgpu"
_MIB, _MIB_PER_GIB = 1 << 20, 1024
_MADE_AHEAD = 32  # so many nodes have their device files before a job needs them: to make one takes some milliseconds
_PLAIN = replace(MODELS["T4"], name="Batuta virtual GPU", memory_bytes=16 << 30)
"""What a virtual GPU is like that is of no real model."""
_TAIL_BYTES = 32 * 1024
_MOST_RANKS = 16
_Figures = tuple[float | None, float | None]  # memory in use, in MiB, and how busy: of one GPU
_log = logging.getLogger(__name__)


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

    def __init__(self, home: Path, nodes: Sequence[Node], *, for_all: bool = False) -> None:
        """`for_all`: jobs of other users use them, too, so `home` has to be a folder that they get to."""
        self._home = home
        self._for_all = for_all
        self._nodes = {node.name: node for node in nodes}
        self._libraries: Path | None = None
        self._made: dict[NodeName, tuple[str, ...]] = {}  # by node: the UUIDs of its GPUs
        self._making = threading.Lock()

    def build(self) -> None:
        """Compile the libraries, which takes seconds the first time; InputError where that cannot be."""
        most = max((node.gpus for node in self._nodes.values()), default=0)
        if most > DEVICES:
            raise InputError.of(f"programs can see {DEVICES} GPUs of a virtual node at most, it has {most}")
        self._libraries = vgpu_libraries()
        if self._for_all:
            self._libraries = copy_for_all(self._libraries, self._home)

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
                path.parent.mkdir(mode=0o755 if self._for_all else 0o700, exist_ok=True)
                label = f"{os.path.realpath(self._home)}/{node.name}"
                create_device_file(path, Machine(model, node.gpus, memory_bytes, label=label), overwrite=True)
            if self._for_all:
                path.chmod(0o666)  # programs keep in it what they use of a GPU
            self._made[node.name] = tuple(gpu.uuid for gpu in read_gpus(path))


def _is_as_wanted(path: Path, gpus: int, model: str, memory_bytes: int) -> bool:
    try:
        found = read_gpus(path)
    except InputError:
        return False
    return [(gpu.name, gpu.memory_bytes) for gpu in found] == [(model, memory_bytes)] * gpus


def usage_watch(
    virtual: VirtualGpus | None, local: LocalNodes, ask: Callable[[RequestFn], object], fence: Fence
) -> UsageWatch | None:
    """Return what reports the utilisation of these GPUs to the engine; None where it cannot be measured."""
    if virtual is not None:
        return UsageWatch(VirtualGpuUtilisation(virtual, tuple(node.name for node in local.nodes)), ask, fence=fence)
    try:
        return UsageWatch(NvmlUtilisation(local.devices), ask, fence=fence)
    except NvmlUnavailable:
        return None


class VirtualGpuUtilisation:
    """Measures the nodes that have device files."""

    step_s = LOOK_S

    def __init__(self, virtual: VirtualGpus, nodes: Sequence[NodeName]) -> None:
        self._virtual = virtual
        self._nodes = nodes
        self._owners = LocalOwners()
        self._before: dict[NodeName, tuple[int, dict[tuple[int, int], int]]] = {}
        """By node: when it was looked at, and device time so far by GPU and process; 0: of all processes."""

    def sample(self) -> None:
        """Do nothing: the GPUs themselves keep account of their time."""

    def look(self) -> Mapping[NodeName, NodeUse]:
        found = {node: self._since_before(node, gpus) for node in self._nodes if (gpus := self._virtual.read(node))}
        return {node: use for node, use in found.items() if use is not None}

    def _since_before(self, node: NodeName, gpus: Sequence[VirtualGpu]) -> NodeUse | None:
        now_ns = time.monotonic_ns()
        spent = {(gpu.index, 0): gpu.busy_ns for gpu in gpus}
        spent |= {(gpu.index, one.pid): one.busy_ns for gpu in gpus for one in gpu.processes}
        before = self._before.get(node)
        self._before[node] = now_ns, spent
        if before is None or before[0] >= now_ns:
            return None
        busy = {
            place: min(1.0, max(0.0, (spent_ns - before[1].get(place, 0)) / (now_ns - before[0])))
            for place, spent_ns in spent.items()
        }
        jobs: dict[JobId, float] = {}
        for (_, pid), part in busy.items():
            if pid and (owner := self._owners.of(pid)) is not None:
                jobs[owner.job] = max(jobs.get(owner.job, 0.0), part)
        return NodeUse(tuple(round(busy[gpu.index, 0], 3) for gpu in gpus), jobs, knows_all_jobs=True)


class NvmlUtilisation:
    """Measures all GPUs of this machine, by node. Raises NvmlUnavailable where there is no NVML."""

    step_s = 1.0

    def __init__(self, devices: Mapping[NodeName, Sequence[str | int]]) -> None:
        # Most servers that are tried out have no real GPU, and start sooner without it.
        from batuta.gpu.profiler.profiler import Profiler  # noqa: PLC0415

        self._devices = devices
        self._profiler = Profiler(NvmlSource().__enter__(), LocalOwners())

    def sample(self) -> None:
        self._profiler.sample()

    def look(self) -> Mapping[NodeName, NodeUse]:
        usage = self._profiler.usage()
        busy = {gpu.uuid: gpu.utilisation for gpu in usage.gpus}
        jobs: dict[JobId, float] = {job.job: job.utilisation.mean for job in usage.jobs if job.utilisation is not None}
        return {node: NodeUse(tuple(busy.get(str(uuid)) for uuid in own), jobs) for node, own in self._devices.items()}


class TrialMonitor:
    """Looks at the GPUs of trial runs: virtual ones by their files, real ones by NVML, opened when it is needed."""

    def __init__(
        self,
        local: LocalNodes,
        virtual: VirtualGpus | None,
        ranks: Callable[[JobId], Sequence[int]],
        log_path: Callable[[JobId, int], Path],
    ) -> None:
        self._local, self._virtual = local, virtual
        self._ranks, self._log_path = ranks, log_path
        self._nvml: NvmlSource | None = None
        self._has_nvml = virtual is None

    def look(self, placement: Placement) -> Look:
        """Return the fullest memory and the mean load of these GPUs; nothing where they cannot be seen."""
        of_node = self._of_real if self._virtual is None else self._of_virtual
        figures = [one for span in placement.spans for one in of_node(span.node, span.gpus)]
        memory = [mib for mib, _ in figures if mib is not None]
        busy = [share for _, share in figures if share is not None]
        return Look(round(max(memory)) if memory else None, fmean(busy) if busy else None)

    def output(self, run: JobId) -> str:
        return "\n".join(self._tails(run))

    def _tails(self, run: JobId) -> Iterator[str]:
        for rank in self._ranks(run)[:_MOST_RANKS]:
            try:
                with self._log_path(run, rank).open("rb") as log:
                    log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
                    yield log.read(_TAIL_BYTES).decode("utf-8", "replace")
            except OSError as error:
                _log.warning("what trial run %s printed cannot be read: %s", run, error)

    def _of_virtual(self, node: NodeName, gpus: Sequence[int]) -> list[_Figures]:
        found = () if self._virtual is None else self._virtual.read(node)
        return [(gpu.used_bytes / _MIB, gpu.utilization) for gpu in found if gpu.index in gpus]

    def _of_real(self, node: NodeName, gpus: Sequence[int]) -> list[_Figures]:
        devices = self._local.devices.get(node, ())
        names = {str(devices[gpu]) for gpu in gpus if gpu < len(devices)}
        if self._nvml is None and self._has_nvml:
            try:
                self._nvml = NvmlSource().__enter__()
            except NvmlUnavailable:
                self._has_nvml = False
        seen = () if self._nvml is None else self._nvml().gpus
        return [(gpu.memory_used_mib, gpu.utilisation) for gpu in seen if gpu.uuid in names]
