"""One look at the GPUs of a node. What a device cannot tell is None, and never 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """A process that has a context on a GPU."""

    pid: int
    memory_mib: float | None = None
    utilisation: float | None = None
    """The share of the GPU's time that was this process's, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. A GPU that has fallen off the bus keeps its name and tells nothing."""

    index: int
    uuid: str
    model: str
    memory_mib: float
    memory_used_mib: float | None = None
    utilisation: float | None = None
    """The share of time in which a kernel ran, from 0 to 1."""
    sm_activity: float | None = None
    """The share of its multiprocessors that had work, from 0 to 1: DCGM tells, NVML does not."""
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

    time_s: float
    """Seconds since 1970."""
    gpus: tuple[GpuSample, ...]


Source: TypeAlias = Callable[[], NodeSample]
"""Looks at the GPUs: NVML, or a file of virtual GPUs."""


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)
