"""What the profiler reports: how GPUs were used, by whom, and what jobs make of them. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from batuta.gpu.attribution.owner import Owner
from batuta.gpu.profiler.behaviour import Behaviour
from batuta.gpu.profiler.figures import Figures
from batuta.gpu.profiler.progress import Progress


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One GPU over the last report's time. None: it cannot tell."""

    index: int
    uuid: str
    model: str
    memory_mib: float
    memory_used_mib: float | None
    utilisation: float | None
    """Mean, from 0 to 1."""
    utilisation_peak: float | None
    sm_activity: float | None
    pcie_mib_s: float | None
    nvlink_mib_s: float | None
    power_w: float | None
    temperature_c: float | None
    owners: tuple[Owner, ...] = ()
    """Who has processes on it now."""


@dataclass(frozen=True, slots=True)
class PodUsage:
    """One pod of a job, or one replica."""

    owner: Owner
    gpus: tuple[int, ...]
    utilisation: Figures | None
    memory_mib: float | None


@dataclass(frozen=True, slots=True)
class JobUsage:
    """A job on this node: its pods as one."""

    job: str
    namespace: str
    pods: tuple[PodUsage, ...]
    gpus: tuple[int, ...]
    utilisation: Figures | None
    memory_mib: float | None
    """Now, of all its GPUs together."""
    memory_peak_mib: float | None
    memory_plateau_mib: float | None
    period_s: float | None
    """Between two iterations, as seen in the use of its GPUs."""
    behaviour: Behaviour
    progress: Progress | None = None
    """By its own reports."""
    slowdown: float | None = None
    """How many times slower neighbours on its GPUs make it; 1: not at all."""

    @property
    def step_time_s(self) -> float | None:
        """By its own reports, else as seen."""
        told = None if self.progress is None else self.progress.step_time_s
        return self.period_s if told is None else told


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Everything that the profiler of one node knows."""

    node: str
    time_s: float
    """Of the last sample, in seconds since 1970."""
    gpus: tuple[GpuUsage, ...]
    jobs: tuple[JobUsage, ...]

    def is_stale(self, now_s: float, after_s: float = 90.0) -> bool:
        """Whether it is too old to count; what comes from the future is of a wrong clock, and as bad."""
        return abs(now_s - self.time_s) > after_s
