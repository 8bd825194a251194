"""Looks at real GPUs through NVML. The virtual GPU's library is taken for NVIDIA's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeVar

from batuta.gpu.devices import short_name
from batuta.gpu.profiler.nvml_traffic import Traffic
from batuta.gpu.profiler.sample import GpuSample, NodeSample, ProcessSample

_MIB: Final = 1 << 20
_FIRST_US: Final = 1_000_000
T = TypeVar("T")


class NoNvml(Exception):
    """There is no NVML on this machine, or it does not work."""


@dataclass(slots=True)
class _Gpu:
    """What stays the same about a GPU, and where its counters were."""

    index: int
    handle: Any
    uuid: str
    model: str
    memory_mib: float
    traffic: Traffic
    told_us: int = 0
    """The time stamp of the last sample of its processes."""
    sampled_us: int = 0
    """The same of the GPU itself."""


class NvmlSource:
    """All GPUs that NVML knows, as a context manager. Calling it looks once."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._nvml: Any = None
        self._gpus: dict[int, _Gpu] = {}
        self._looks = 0

    def __enter__(self) -> NvmlSource:
        import pynvml  # noqa: PLC0415 - only what looks at GPUs needs it

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoNvml(str(error)) from None
        self._nvml = pynvml
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def __call__(self) -> NodeSample:
        now_s = self._clock()
        self._looks += 1
        found = (self._known(index) for index in range(self._nvml.nvmlDeviceGetCount()))
        return NodeSample(now_s, tuple(self._look(gpu, now_s) for gpu in found if gpu is not None))

    def _known(self, index: int) -> _Gpu | None:
        """The GPU, looked up once; None while it cannot even tell its name."""
        if index in self._gpus:
            return self._gpus[index]
        nvml = self._nvml
        with suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self._gpus[index] = _Gpu(
                index,
                handle,
                _text(nvml.nvmlDeviceGetUUID(handle)),
                short_name(_text(nvml.nvmlDeviceGetName(handle))),
                nvml.nvmlDeviceGetMemoryInfo(handle).total / _MIB,
                Traffic(nvml, handle),
            )
        return self._gpus.get(index)

    def _look(self, gpu: _Gpu, now_s: float) -> GpuSample:
        nvml, handle = self._nvml, gpu.handle
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        recent = self._recent(gpu)
        # A measurement may hold the driver up, so the GPUs take turns.
        its_turn = self._looks % max(len(self._gpus), 1) == gpu.index
        traffic = gpu.traffic.rates_mib_s(now_s, measure=its_turn)
        return GpuSample(
            gpu.index,
            gpu.uuid,
            gpu.model,
            gpu.memory_mib,
            memory_used_mib=None if memory is None else memory.used / _MIB,
            utilisation=self._utilisation(gpu, recent),
            pcie_rx_mib_s=traffic["pcie_rx"],
            pcie_tx_mib_s=traffic["pcie_tx"],
            nvlink_rx_mib_s=traffic["nvlink_rx"],
            nvlink_tx_mib_s=traffic["nvlink_tx"],
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            processes=tuple(self._processes(gpu)),
            recent=recent,
        )

    def _utilisation(self, gpu: _Gpu, recent: Sequence[tuple[float, float]]) -> float | None:
        """The mean since the last look; what NVML calls the rate is the last fraction of a second only."""
        if recent:
            return sum(busy for _, busy in recent) / len(recent)
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, gpu.handle)
        return None if rates is None else rates.gpu / 100

    def _recent(self, gpu: _Gpu) -> tuple[tuple[float, float], ...]:
        kind = self._nvml.NVML_GPU_UTILIZATION_SAMPLES
        told = self._ask(self._nvml.nvmlDeviceGetSamples, gpu.handle, kind, gpu.sampled_us)
        found = [(one.timeStamp, one.sampleValue.uiVal) for one in told[1]] if told is not None else []
        since_us = _begin_us(gpu.sampled_us, [time_us for time_us, _ in found])
        gpu.sampled_us = max([gpu.sampled_us, *(time_us for time_us, _ in found)])
        return tuple(
            (time_us / 1e6, min(percent, 100) / 100) for time_us, percent in found if time_us > since_us
        )

    def _processes(self, gpu: _Gpu) -> Iterator[ProcessSample]:
        found = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle) or ()
        # One alone has all the GPU's time.
        busy = self._busy(gpu) if len(found) > 1 else {}
        for one in found:
            memory = None if one.usedGpuMemory is None else one.usedGpuMemory / _MIB
            yield ProcessSample(one.pid, memory, busy.get(one.pid))

    def _busy(self, gpu: _Gpu) -> dict[int, float]:
        """Each process's share of the GPU's time since the last look; empty where the driver keeps none."""
        told = self._ask(self._nvml.nvmlDeviceGetProcessUtilization, gpu.handle, gpu.told_us) or ()
        since_us = _begin_us(gpu.told_us, [one.timeStamp for one in told])
        gpu.told_us = max([gpu.told_us, *(one.timeStamp for one in told)])
        shares: dict[int, list[float]] = {}
        for one in told:
            if one.timeStamp > since_us:
                shares.setdefault(one.pid, []).append(min(one.smUtil, 100) / 100)
        return {pid: sum(values) / len(values) for pid, values in shares.items()}

    def _ask(self, call: Callable[..., T], *words: Any) -> T | None:
        """What NVML answers; None where this GPU, or its driver, cannot tell."""
        try:
            return call(*words)
        except self._nvml.NVMLError:
            return None


def _begin_us(last_us: int, times_us: Sequence[int]) -> int:
    """Samples after this are new. Who asks for the first time gets all that is kept: a second will do."""
    return last_us or max(times_us, default=0) - _FIRST_US


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
