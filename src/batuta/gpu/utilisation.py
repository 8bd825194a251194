"""Measure how busy the GPUs of local mode are, for the scheduler and for trial runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from batuta.core.cluster import NodeName, Placement
from batuta.core.job import JobId
from batuta.engine.fence import Fence
from batuta.engine.requests import RequestFn
from batuta.engine.trials.measurement import Look
from batuta.engine.usage_watch import LOOK_S, NodeUse, UsageWatch
from batuta.gpu.devices import NvmlUnavailable
from batuta.gpu.local_nodes import LocalNodes, VirtualGpus
from batuta.gpu.owners import LocalOwners
from batuta.gpu.profiler.sources import NvmlSource
from batuta.gpu.vgpu.snapshot import VirtualGpu

_log = logging.getLogger(__name__)
_TAIL_BYTES = 32 * 1024
_MOST_RANKS = 16
_MIB = 1 << 20
_Figures = tuple[float | None, float | None]
"""Memory in use, in MiB, and how busy: of one GPU."""


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
