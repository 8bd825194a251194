"""How busy the GPUs of this machine were lately, by NVML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batuta.core.cluster import NodeName
from batuta.core.job import JobId
from batuta.engine.usage_watch import NodeUse
from batuta.gpu.attribution.local_owners import LocalOwners
from batuta.gpu.profiler.nvml import NvmlSource
from batuta.gpu.profiler.profiler import Profiler


class RealUse:
    """Measures all GPUs of this machine and divides them among its nodes. NoNvml where there is no NVML."""

    step_s = 1.0

    def __init__(self, devices: Mapping[NodeName, Sequence[str | int]]) -> None:
        self._devices = devices
        self._profiler = Profiler(NvmlSource().__enter__(), LocalOwners())

    def sample(self) -> None:
        self._profiler.sample()

    def look(self) -> Mapping[NodeName, NodeUse]:
        usage = self._profiler.usage()
        busy = {gpu.uuid: gpu.utilisation for gpu in usage.gpus}
        jobs: dict[JobId, float] = {
            job.job: job.utilisation.mean for job in usage.jobs if job.utilisation is not None
        }
        return {
            node: NodeUse(tuple(busy.get(str(uuid)) for uuid in own), jobs)
            for node, own in self._devices.items()
        }
