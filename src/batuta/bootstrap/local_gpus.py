"""The nodes of local mode and their GPUs, physical or virtual: inventory, injection, utilisation.

A node is a slice of this machine. For each node with virtual GPUs there is a device file, on which CUDA and
NVML programs see its jobs. Where virtual GPUs are not available, GPUs are numbers in CUDA_VISIBLE_DEVICES.

Libraries are compiled beside the start of the server, which does not wait: the first time on a machine that
takes seconds. No replica starts before they are there. What is not available is done without, and logged
once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from batuta.backends.local.backend import LocalBackend
from batuta.backends.local.replica_plan import ReplicaGpus
from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName, Placement
from batuta.core.job import JobId, Share
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.engine.requests import RequestFn
from batuta.engine.trials.measurement import Look
from batuta.engine.usage_watch import LOOK_S, NodeUse, UsageWatch
from batuta.gpu.devices import Device, find_devices
from batuta.gpu.native_libraries import find_compiler, share_library, vgpu_environment, vgpu_libraries
from batuta.gpu.owners import LocalOwners
from batuta.gpu.profiler.sources import SampleSource
from batuta.gpu.share.limits import DeviceLimit, ShareLimits, share_environment, write_limits
from batuta.gpu.vgpu.device_file import DEVICES, Machine, create_device_file
from batuta.gpu.vgpu.models import MODELS, Model, find_model
from batuta.gpu.vgpu.snapshot import VirtualGpu, read_gpus
from batuta.spec.problem import InputError
from batuta.spec.task_resources import VIRTUAL_GPU

FOLDER = "vgpu"
"""Within the state directory."""
_MIB = 1 << 20
_MADE_AHEAD = 32
"""So many nodes have their files before a job needs them: to make one takes some milliseconds."""
_PLAIN = replace(MODELS["T4"], name="Batuta virtual GPU", memory_bytes=16 << 30)
"""What a virtual GPU is like that is of no real model."""


def device_path(home: Path, node: NodeName) -> Path:
    """Where the GPUs of a virtual node live."""
    return home / FOLDER / f"{node}.vgpu"


def model_of(gpu_type: str) -> Model:
    """What virtual GPUs of a type pretend to be; one that no data sheet is known of has only its name."""
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
        """Compiles the libraries, which takes seconds the first time; InputError where that cannot be."""
        most = max((node.gpus for node in self._nodes.values()), default=0)
        if most > DEVICES:
            raise InputError.of(f"programs can see {DEVICES} GPUs of a virtual node at most, it has {most}")
        self._libraries = vgpu_libraries()

    @property
    def has_libraries(self) -> bool:
        """Whether programs can see these GPUs by now."""
        return self._libraries is not None

    def make_ahead(self) -> None:
        """Makes the files of the first nodes."""
        for node in list(self._nodes.values())[:_MADE_AHEAD]:
            with suppress(InputError, OSError):  # a command that needs it reports the error
                self._make(node)

    def environment(self, node: NodeName, env: Mapping[str, str]) -> dict[str, str]:
        """`env`, in which programs find the node's virtual GPUs; as it was where there are none."""
        if self._libraries is None:
            return dict(env)
        self._make(self._nodes[node])
        return vgpu_environment(device_path(self._home, node), env, self._libraries)

    def uuids(self, node: NodeName) -> tuple[str, ...]:
        """The GPUs of a node as NVML names them; nothing where there are none, or not yet."""
        return self._made.get(node, ())

    def read(self, node: NodeName) -> tuple[VirtualGpu, ...]:
        """What the GPUs of a node are doing; nothing where there are none, or not yet."""
        return read_gpus(device_path(self._home, node)) if node in self._made else ()

    def _make(self, node: Node) -> None:
        """The file of a node: that of a former server, which jobs that still run have open, if it will do."""
        if node.name in self._made:
            return
        path, model = device_path(self._home, node.name), model_of(node.gpu_type)
        memory_bytes = node.gpu_memory_mib * _MIB
        # Of two who make it at once one would use a file that the other has replaced.
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


DEFAULT_NODES, DEFAULT_GPUS = 2, 4
MOST_NODES, MOST_GPUS = 1000, 64
VIRTUAL_CPUS, VIRTUAL_MEMORY_GIB = 16, 128
"""Of a virtual node, for each of its GPUs."""
_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class LocalNodes:
    """Nodes, and by node what CUDA_VISIBLE_DEVICES shall say for each of its GPUs."""

    nodes: tuple[Node, ...]
    devices: Mapping[NodeName, Sequence[str | int]]


def virtual_nodes(count: int | None, gpus: int | None, gpu_type: str = VIRTUAL_GPU) -> LocalNodes:
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


def with_cpus(
    local: LocalNodes, *, virtual: bool, cpus: float | None = None, memory_gib: float | None = None
) -> LocalNodes:
    """The same nodes with CPUs and memory, as they are told; else by their GPUs.

    Virtual nodes have as much as machines with such GPUs usually do: only that much can be tried out. Others
    divide what this machine has.
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
        nodes.append(replace(node, cpus_milli=cpus_milli, memory_mib=memory_mib))
    return replace(local, nodes=tuple(nodes))


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


_LONGEST_NAME = 63


class GpuShareLimits:
    """Writes limits for replicas that have a part of a card."""

    def __init__(self, cards: Path) -> None:
        """`cards` is a folder in which replicas on one card agree on who may have how much of its time."""
        self._cards = cards
        self._library: Path | None = None

    def build(self) -> None:
        """Compiles the library, which takes seconds the first time; InputError where that cannot be."""
        self._library = share_library()

    def hold(self, replica: ReplicaGpus, uuid: str, env: Mapping[str, str]) -> dict[str, str]:
        """`env`, in which a replica gets no more than its share; as it was for one that has whole GPUs."""
        if self._library is None or replica.job.share is None:
            return dict(env)
        self._cards.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = replica.folder / "gpu-limits"
        limits = ShareLimits(
            replica.run_id[-_LONGEST_NAME:],
            replica.folder / "gpu-region",
            (_limit(uuid, replica.job.share),),
            self._cards,
        )
        write_limits(path, limits)
        return {**env, **share_environment(path, self._library, env)}


def _limit(uuid: str, share: Share) -> DeviceLimit:
    """A share without a word on compute competes for the card's time with the others, by equal weight."""
    percent = share.compute_percent or None
    return DeviceLimit(
        uuid,
        memory_mib=share.memory_mib or None,
        compute_percent=None if share.soft else percent,
        soft_compute_percent=percent if share.soft else None,
    )


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
        """Nothing: the GPUs themselves keep account of their time."""

    def look(self) -> Mapping[NodeName, NodeUse]:
        found: dict[NodeName, NodeUse] = {}
        for node in self._nodes:
            try:
                gpus = self._virtual.read(node)
            except InputError:
                continue  # the file was removed: of this node nothing is known
            use = self._since_before(node, gpus) if gpus else None
            if use is not None:
                found[node] = use
        return found

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


CARDS = "gpu-cards"
"""Within the state directory."""


class LocalGpus:
    """Gives replicas access to their GPUs."""

    def __init__(
        self, home: Path, devices: Mapping[NodeName, Sequence[str | int]], virtual: VirtualGpus | None
    ) -> None:
        self.virtual = virtual
        """None where the GPUs are real."""
        self.notes: list[str] = _known_at_once(virtual)
        """What cannot be had, and why."""
        self._devices = devices
        self._shares = GpuShareLimits(home / CARDS)
        self._ready = threading.Event()

    def prepare(self, done: Callable[[], None], fence: Fence | None = None) -> None:
        """Begins to compile what is missing; `done` is called when replicas may start."""
        (fence or Fence()).start("preparation of GPUs", lambda: self._prepare(done))

    def _prepare(self, done: Callable[[], None]) -> None:
        if not self.notes:
            steps = [("no job is held to its share of a GPU", self._shares.build)]
            if self.virtual is not None:
                steps.insert(0, ("no program sees the virtual GPUs", self.virtual.build))
            for what, build in steps:
                try:
                    build()
                except (InputError, OSError) as error:
                    self.notes.append(f"{what}: {error}")
        self._ready.set()
        done()
        if self.virtual is not None:
            self.virtual.make_ahead()

    # ------------------------------------------------------------------------------------- for the backend

    def is_ready(self) -> bool:
        return self._ready.is_set()

    def inject(self, replica: ReplicaGpus, env: Mapping[str, str]) -> dict[str, str]:
        try:
            found = dict(env) if self.virtual is None else self.virtual.environment(replica.node, env)
            uuid = self._uuid(replica.node, replica.gpus[0])
            return found if uuid is None else self._shares.hold(replica, uuid, found)
        except InputError as error:
            raise ValueError(f"its GPUs cannot be had: {error}") from error

    def _uuid(self, node: NodeName, gpu: int) -> str | None:
        """What NVML calls a GPU; None where no program will see it."""
        with suppress(LookupError):
            named = self._devices[node][gpu] if self.virtual is None else self.virtual.uuids(node)[gpu]
            return named if isinstance(named, str) else None
        return None


def _known_at_once(virtual: VirtualGpus | None) -> list[str]:
    try:
        find_compiler()
    except InputError as error:
        what = "no program sees the virtual GPUs, and " if virtual is not None else ""
        return [f"{what}no job is held to its share of a GPU: {error}"]
    return []


def usage_watch(
    virtual: VirtualGpus | None,
    local: LocalNodes,
    ask: Callable[[RequestFn], object],
    fence: Fence | None = None,
) -> UsageWatch | None:
    """Reports the utilisation of these GPUs to the engine; None where it cannot be measured."""
    if virtual is not None:
        return UsageWatch(VirtualGpuUtilisation(virtual, tuple(node.name for node in local.nodes)), ask, fence=fence)
    # Most servers that are tried out have no real GPU, and start sooner without all this.
    from batuta.gpu.devices import NvmlUnavailable

    try:
        return UsageWatch(NvmlUtilisation(local.devices), ask, fence=fence)
    except NvmlUnavailable:
        return None


class NvmlUtilisation:
    """Measures all GPUs of this machine, by node. Raises NvmlUnavailable where there is no NVML."""

    step_s = 1.0

    def __init__(self, devices: Mapping[NodeName, Sequence[str | int]]) -> None:
        from batuta.gpu.profiler.profiler import Profiler
        from batuta.gpu.profiler.sources import NvmlSource

        self._devices = devices
        self._profiler = Profiler(NvmlSource().__enter__(), LocalOwners())

    def sample(self) -> None:
        self._profiler.sample()

    def look(self) -> Mapping[NodeName, NodeUse]:
        usage = self._profiler.usage()
        busy = {gpu.uuid: gpu.utilisation for gpu in usage.gpus}
        jobs: dict[JobId, float] = {job.job: job.utilisation.mean for job in usage.jobs if job.utilisation is not None}
        return {node: NodeUse(tuple(busy.get(str(uuid)) for uuid in own), jobs) for node, own in self._devices.items()}


_log = logging.getLogger(__name__)
_TAIL_BYTES = 32 * 1024
_MOST_RANKS = 16
_Figures = tuple[float | None, float | None]
"""Memory in use, in MiB, and how busy: of one GPU."""


class TrialMonitor:
    """Looks at virtual GPUs by their files and at real ones by NVML, which is opened when it is needed."""

    def __init__(self, backend: LocalBackend, local: LocalNodes, virtual: VirtualGpus | None) -> None:
        self._backend = backend
        self._local = local
        self._virtual = virtual
        self._nvml: SampleSource | None = None
        self._has_nvml = virtual is None

    def look(self, placement: Placement) -> Look:
        """The fullest memory and the mean load of these GPUs; nothing where they cannot be seen."""
        figures = [one for span in placement.spans for one in self._of_node(span.node, span.gpus)]
        memory = [mib for mib, _ in figures if mib is not None]
        busy = [share for _, share in figures if share is not None]
        return Look(round(max(memory)) if memory else None, fmean(busy) if busy else None)

    def output(self, run: JobId) -> str:
        """The end of each rank's log."""
        return "\n".join(self._tails(run))

    def _tails(self, run: JobId) -> Iterable[str]:
        for rank in self._backend.ranks(run)[:_MOST_RANKS]:
            try:
                with self._backend.log_path(run, rank).open("rb") as log:
                    log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
                    yield log.read(_TAIL_BYTES).decode("utf-8", "replace")
            except OSError as error:
                _log.warning("what trial run %s printed cannot be read: %s", run, error)

    def _of_node(self, node: NodeName, gpus: Sequence[int]) -> list[_Figures]:
        if self._virtual is None:
            return self._of_real(node, gpus)
        try:
            found = {gpu.index: gpu for gpu in self._virtual.read(node)}
        except InputError:
            return []  # the file was removed
        return [(found[gpu].used_bytes / (1 << 20), found[gpu].utilization) for gpu in gpus if gpu in found]

    def _of_real(self, node: NodeName, gpus: Sequence[int]) -> list[_Figures]:
        devices = self._local.devices.get(node, ())
        names = {str(devices[gpu]) for gpu in gpus if gpu < len(devices)}
        if self._nvml is None and self._has_nvml:
            self._nvml = _open_nvml()
            self._has_nvml = self._nvml is not None
        sample = self._nvml() if self._nvml is not None else None
        return [
            (gpu.memory_used_mib, gpu.utilisation)
            for gpu in (sample.gpus if sample is not None else ())
            if gpu.uuid in names
        ]


def _open_nvml() -> SampleSource | None:
    from batuta.gpu.devices import NvmlUnavailable
    from batuta.gpu.profiler.sources import (  # where there are virtual GPUs it is not needed
        NvmlSource,
    )

    try:
        return NvmlSource().__enter__()
    except NvmlUnavailable:
        return None
