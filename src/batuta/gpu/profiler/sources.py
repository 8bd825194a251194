"""Take one sample of the GPUs of a node: by NVML, and with the metrics of DCGM's exporter.

A value that a device does not report is None, never 0.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from batuta.gpu.devices import ask_nvml, nvml_text, open_nvml, short_name

_MIB: Final = 1 << 20
_KIB: Final = 1 << 10
_ALL_LINKS: Final = 0xFFFFFFFF  # as the scope of a field: the sum over all NVLinks
_TRAFFIC_NAMES: Final = ("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx")
_FIRST_SAMPLES_US: Final = 1_000_000
_DCGM_MAX_BYTES: Final = 8 << 20
_DCGM_LINE: Final = re.compile(r"^(?P<name>DCGM_FI_[A-Z0-9_]+)\{(?P<labels>[^}]*)\}\s+(?P<value>[-+0-9.eE]+)")
_DCGM_UUID: Final = re.compile(r'(?:^|,)\s*UUID="(?P<uuid>[^"]+)"')
_DCGM_SERIES: Final = {
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_activity", 1.0),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("pcie_rx_mib_s", 1 / _MIB),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("pcie_tx_mib_s", 1 / _MIB),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("nvlink_rx_mib_s", 1 / _MIB),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("nvlink_tx_mib_s", 1 / _MIB),
}
"""Series → field of a sample, and its unit there. All are rates."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """A process that has a context on a GPU."""

    pid: int
    memory_mib: float | None = None
    utilisation: float | None = None  # the share of the GPU's time that was this process's, from 0 to 1


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. A GPU that has fallen off the bus keeps its name and has no values."""

    index: int
    uuid: str
    model: str
    memory_mib: float
    memory_used_mib: float | None = None
    utilisation: float | None = None  # the share of time in which a kernel ran, from 0 to 1
    sm_activity: float | None = None  # the share of its multiprocessors that had work, from 0 to 1: from DCGM, not NVML
    pcie_rx_mib_s: float | None = None
    pcie_tx_mib_s: float | None = None
    nvlink_rx_mib_s: float | None = None
    nvlink_tx_mib_s: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    processes: tuple[ProcessSample, ...] = ()
    recent: tuple[tuple[float, float], ...] = ()
    """How busy it was between the last look and this one, where the driver keeps that: seconds, 0 to 1."""

    @property
    def pcie_mib_s(self) -> float | None:
        """Both directions together."""
        return _sum(self.pcie_rx_mib_s, self.pcie_tx_mib_s)

    @property
    def nvlink_mib_s(self) -> float | None:
        """Both directions and all links together."""
        return _sum(self.nvlink_rx_mib_s, self.nvlink_tx_mib_s)


@dataclass(frozen=True, slots=True)
class NodeSample:
    """All GPUs of a node at one moment."""

    time_s: float  # seconds since 1970
    gpus: tuple[GpuSample, ...]


SampleSource: TypeAlias = Callable[[], NodeSample]


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)


@dataclass(slots=True)
class Traffic:
    """One GPU's traffic. What its driver does not have is asked for once."""

    nvml: Any
    handle: Any
    _wanted: list[str] = field(default_factory=lambda: list(_TRAFFIC_NAMES))  # counters that the driver may have
    _counters: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Bytes that ever went over a link, and when that was read: two readings make a rate."""
    _held: dict[str, float | None] = field(default_factory=dict)
    """The last measurement of a driver that has no counters."""

    def rates_mib_s(self, now_s: float, *, measure: bool) -> Mapping[str, float | None]:
        """Return rates by name. `measure`: let the driver measure PCIe without counters, up to 40 ms."""
        rates: dict[str, float | None] = dict.fromkeys(_TRAFFIC_NAMES)
        for name, count in self._counts().items():
            rates[name] = self._rate_mib_s(name, count, now_s)
        uncounted = [name for name in _TRAFFIC_NAMES[:2] if name not in self._wanted]
        if measure:
            self._held = {name: self._measured_mib_s(name) for name in uncounted}
        return rates | self._held

    def _rate_mib_s(self, name: str, now_bytes: int, now_s: float) -> float | None:
        before_bytes, before_s = self._counters.get(name, (now_bytes, now_s))
        self._counters[name] = now_bytes, now_s
        # A counter that went back was reset.
        known = now_s > before_s and now_bytes >= before_bytes
        return (now_bytes - before_bytes) / (now_s - before_s) / _MIB if known else None

    def _counts(self) -> dict[str, int]:
        if not self._wanted:
            return {}
        nvml = self.nvml
        fields = {
            "pcie_rx": getattr(nvml, "NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0),
            "pcie_tx": getattr(nvml, "NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0),
            "nvlink_rx": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
            "nvlink_tx": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
        }
        try:
            values = nvml.nvmlDeviceGetFieldValues(self.handle, [fields[name] for name in self._wanted])
        except nvml.NVMLError_GpuIsLost:
            return {}  # it may come back with all its counters
        except nvml.NVMLError:
            self._wanted = []
            return {}
        there = {
            name: int(value.value.ullVal) * (_KIB if name.startswith("nvlink") else 1)
            for name, value in zip(self._wanted, values, strict=True)
            if value.nvmlReturn == nvml.NVML_SUCCESS
        }
        self._wanted = list(there)
        return there

    def _measured_mib_s(self, name: str) -> float | None:
        nvml = self.nvml
        which = nvml.NVML_PCIE_UTIL_TX_BYTES if name == "pcie_tx" else nvml.NVML_PCIE_UTIL_RX_BYTES
        try:
            return float(nvml.nvmlDeviceGetPcieThroughput(self.handle, which)) * 1000 / _MIB
        except nvml.NVMLError:
            return None


@dataclass(slots=True)
class _Gpu:
    """What stays the same about a GPU, and where its counters were."""

    index: int
    handle: Any
    uuid: str
    model: str
    memory_mib: float
    traffic: Traffic
    process_us: int = 0  # the time stamp of the last sample of its processes
    sampled_us: int = 0  # the same of the GPU itself


class NvmlSource:
    """Samples all GPUs that NVML knows, as a context manager. Each call takes one sample."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._nvml: Any = None
        self._gpus: dict[int, _Gpu] = {}
        self._samples = 0

    def __enter__(self) -> NvmlSource:
        self._nvml = open_nvml()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def __call__(self) -> NodeSample:
        now_s = self._clock()
        self._samples += 1
        found = (self._known(index) for index in range(self._nvml.nvmlDeviceGetCount()))
        return NodeSample(now_s, tuple(self._sample(gpu, now_s) for gpu in found if gpu is not None))

    def _known(self, index: int) -> _Gpu | None:
        """Return the GPU, looked up once; None while it does not even answer with its name."""
        if index in self._gpus:
            return self._gpus[index]
        nvml = self._nvml
        with suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self._gpus[index] = _Gpu(
                index,
                handle,
                nvml_text(nvml.nvmlDeviceGetUUID(handle)),
                short_name(nvml_text(nvml.nvmlDeviceGetName(handle))),
                nvml.nvmlDeviceGetMemoryInfo(handle).total / _MIB,
                Traffic(nvml, handle),
            )
        return self._gpus.get(index)

    def _sample(self, gpu: _Gpu, now_s: float) -> GpuSample:
        nvml, handle = self._nvml, gpu.handle
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        recent = self._recent(gpu)
        # A measurement may hold the driver up, so the GPUs take turns.
        its_turn = self._samples % max(len(self._gpus), 1) == gpu.index
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
        """Return the mean since the last sample; NVML's own rate covers only a fraction of a second."""
        if recent:
            return sum(busy for _, busy in recent) / len(recent)
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, gpu.handle)
        return None if rates is None else rates.gpu / 100

    def _recent(self, gpu: _Gpu) -> tuple[tuple[float, float], ...]:
        kind = self._nvml.NVML_GPU_UTILIZATION_SAMPLES
        answer = self._ask(self._nvml.nvmlDeviceGetSamples, gpu.handle, kind, gpu.sampled_us)
        found = [(one.timeStamp, one.sampleValue.uiVal) for one in answer[1]] if answer is not None else []
        since_us = _begin_us(gpu.sampled_us, [time_us for time_us, _ in found])
        gpu.sampled_us = max([gpu.sampled_us, *(time_us for time_us, _ in found)])
        return tuple((time_us / 1e6, min(percent, 100) / 100) for time_us, percent in found if time_us > since_us)

    def _processes(self, gpu: _Gpu) -> Iterator[ProcessSample]:
        found = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle) or ()
        # One alone has all the GPU's time.
        busy = self._busy(gpu) if len(found) > 1 else {}
        for one in found:
            memory = None if one.usedGpuMemory is None else one.usedGpuMemory / _MIB
            yield ProcessSample(one.pid, memory, busy.get(one.pid))

    def _busy(self, gpu: _Gpu) -> dict[int, float]:
        """Return each process's share of the GPU's time since the last sample, if the driver keeps it."""
        answer = self._ask(self._nvml.nvmlDeviceGetProcessUtilization, gpu.handle, gpu.process_us) or ()
        since_us = _begin_us(gpu.process_us, [one.timeStamp for one in answer])
        gpu.process_us = max([gpu.process_us, *(one.timeStamp for one in answer)])
        shares: dict[int, list[float]] = {}
        for one in answer:
            if one.timeStamp > since_us:
                shares.setdefault(one.pid, []).append(min(one.smUtil, 100) / 100)
        return {pid: sum(values) / len(values) for pid, values in shares.items()}

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return ask_nvml(self._nvml, call, *arguments)


def _begin_us(last_us: int, times_us: Sequence[int]) -> int:
    """Return the time after which samples are new. Of a first call's samples, one second counts."""
    return last_us or max(times_us, default=0) - _FIRST_SAMPLES_US


class DcgmUnavailable(Exception):
    """The exporter does not answer."""


@dataclass(frozen=True, slots=True)
class DcgmReading:
    """One scrape: fields of samples by the UUID of the GPU."""

    time_s: float
    by_uuid: Mapping[str, Mapping[str, float]]


def parse_dcgm(text: str, time_s: float) -> DcgmReading:
    """Parse the exporter's page. Lines for parts of a GPU (MIG) and of other series are left out."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        match = _DCGM_LINE.match(line)
        if match is None or match["name"] not in _DCGM_SERIES or 'GPU_I_ID="' in match["labels"]:
            continue
        uuid = _DCGM_UUID.search(match["labels"])
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if uuid is not None and value >= 0:
            field, unit = _DCGM_SERIES[match["name"]]
            found.setdefault(uuid["uuid"], {})[field] = value * unit
    return DcgmReading(time_s, found)


def fetch_dcgm(url: str, time_s: float, within_s: float = 3.0) -> DcgmReading:
    """Scrape the exporter once, or raise DcgmUnavailable."""
    try:
        with urllib.request.urlopen(url, timeout=within_s) as answer:
            return parse_dcgm(answer.read(_DCGM_MAX_BYTES).decode(errors="replace"), time_s)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise DcgmUnavailable(f"no DCGM exporter at {url}: {error}") from None


def add_dcgm(sample: NodeSample, reading: DcgmReading | None, stale_s: float = 60.0) -> NodeSample:
    """Return the sample with what the exporter knows better; unchanged where the reading is old."""
    if reading is None or not 0 <= sample.time_s - reading.time_s <= stale_s:
        return sample
    known: Mapping[str, Mapping[str, Any]] = reading.by_uuid
    return replace(sample, gpus=tuple(replace(gpu, **known.get(gpu.uuid, {})) for gpu in sample.gpus))
