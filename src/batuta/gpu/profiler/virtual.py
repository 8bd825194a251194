"""Looks at a file of virtual GPUs without NVML: a server that has several such nodes sees them all."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from batuta.gpu.devices import short_name
from batuta.gpu.profiler.sample import GpuSample, NodeSample, ProcessSample
from batuta.gpu.vgpu.snapshot import Gpu, ProcessUse, read

_MIB: Final = 1 << 20


class VirtualSource:
    """The GPUs of one file. Calling it looks once; shares of time are those since the call before."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._looked_ns = 0
        self._busy_ns: dict[tuple[int, int], int] = {}
        """Device time so far, by GPU and pid."""

    def __call__(self) -> NodeSample:
        now_s, now_ns = self._clock(), time.monotonic_ns()
        gpus = read(self._path)
        since_ns, self._looked_ns = now_ns - self._looked_ns if self._looked_ns else 0, now_ns
        samples = tuple(self._gpu(gpu, since_ns) for gpu in gpus)
        self._busy_ns = {(gpu.index, one.pid): one.busy_ns for gpu in gpus for one in gpu.processes}
        return NodeSample(now_s, samples)

    def _gpu(self, gpu: Gpu, since_ns: int) -> GpuSample:
        known = GpuSample(gpu.index, gpu.uuid, short_name(gpu.name), gpu.memory_bytes / _MIB)
        if gpu.lost:
            return known
        return GpuSample(
            known.index,
            known.uuid,
            known.model,
            known.memory_mib,
            memory_used_mib=gpu.used_bytes / _MIB,
            utilisation=gpu.utilization,
            power_w=gpu.power_w,
            temperature_c=float(gpu.temperature_c),
            processes=tuple(self._process(gpu.index, one, since_ns) for one in gpu.processes),
        )

    def _process(self, gpu: int, use: ProcessUse, since_ns: int) -> ProcessSample:
        before_ns = self._busy_ns.get((gpu, use.pid))
        share = None
        if before_ns is not None and since_ns > 0:
            share = min(max((use.busy_ns - before_ns) / since_ns, 0.0), 1.0)
        return ProcessSample(use.pid, use.used_bytes / _MIB, share)
