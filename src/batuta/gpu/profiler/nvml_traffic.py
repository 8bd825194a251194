"""Traffic of GPUs over PCIe and NVLink, from whichever counters the driver has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_MIB: Final = 1 << 20
_KIB: Final = 1 << 10
_ALL_LINKS: Final = 0xFFFFFFFF
"""As the scope of a field: the sum over all NVLinks."""
NAMES: Final = ("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx")


@dataclass(slots=True)
class _Counter:
    """Bytes that ever went over a link; two readings of it make a rate."""

    bytes: int = -1
    time_s: float = 0.0

    def rate_mib_s(self, now_bytes: int, now_s: float) -> float | None:
        before, since_s = self.bytes, now_s - self.time_s
        self.bytes, self.time_s = now_bytes, now_s
        # A counter that went back was reset.
        known = before >= 0 and since_s > 0 and now_bytes >= before
        return (now_bytes - before) / since_s / _MIB if known else None


@dataclass(slots=True)
class Traffic:
    """One GPU's traffic. What its driver does not have is asked for once."""

    nvml: Any
    handle: Any
    _wanted: list[str] = field(default_factory=lambda: list(NAMES))
    """Counters that may be there."""
    _counters: dict[str, _Counter] = field(default_factory=dict)
    _held: dict[str, float | None] = field(default_factory=dict)
    """The last measurement of a driver that has no counters."""

    def rates_mib_s(self, now_s: float, *, measure: bool) -> Mapping[str, float | None]:
        """By name. `measure`: where PCIe has no counters, let the driver measure, which may take 40 ms."""
        rates: dict[str, float | None] = dict.fromkeys(NAMES)
        for name, count in self._counts().items():
            rates[name] = self._counters.setdefault(name, _Counter()).rate_mib_s(count, now_s)
        uncounted = [name for name in NAMES[:2] if name not in self._wanted]
        if measure:
            self._held = {name: self._measured_mib_s(name) for name in uncounted}
        return rates | self._held

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
            told = nvml.nvmlDeviceGetFieldValues(self.handle, [fields[name] for name in self._wanted])
        except nvml.NVMLError_GpuIsLost:
            return {}  # it may come back with all its counters
        except nvml.NVMLError:
            self._wanted = []
            return {}
        there = {
            name: int(value.value.ullVal) * (_KIB if name.startswith("nvlink") else 1)
            for name, value in zip(self._wanted, told, strict=True)
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
