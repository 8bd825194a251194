"""Figures of this machine's GPUs, by NVML. What a GPU or driver does not answer is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from batuta.core.cluster import NodeName
from batuta.core.health_figures import Figure, Values

MOST_LINKS: Final = 18
_LINK_ERRORS: Final = range(3)
"""Replays, recoveries, checksum errors of data: a fourth counts what was repaired by those."""
_GONE: Final = frozenset({2, 6, 15, 16})
"""Invalid argument, not found, lost, needs a reset: of a GPU that was there before, all mean the same."""
T = TypeVar("T")


class NoNvml(Exception):
    """There is no NVML on this machine, or it does not work."""


class NvmlFigures:
    """The GPUs that NVML knew when this was made, divided among nodes; one that it forgets counts as lost."""

    def __init__(self, devices: Mapping[NodeName, Sequence[str]]) -> None:
        """`devices`: by node the UUIDs of its GPUs. NoNvml where nobody can tell."""
        import pynvml  # noqa: PLC0415 - most servers that are tried out have no GPU

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoNvml(str(error)) from None
        self._devices = {(node, gpu): uuid for node, own in devices.items() for gpu, uuid in enumerate(own)}

    def read(self) -> Mapping[tuple[NodeName, int], Values]:
        return {place: self._look(uuid) for place, uuid in self._devices.items()}

    def addresses(self) -> dict[NodeName, list[str]]:
        """Where the GPUs are on the bus, by node and in their order; empty for one that cannot tell."""
        found: dict[NodeName, list[str]] = {}
        for (node, _), uuid in self._devices.items():
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid.encode())
            pci = None if handle is None else self._ask(self._nvml.nvmlDeviceGetPciInfo, handle)
            bus = "" if pci is None else pci.busId
            found.setdefault(node, []).append(bus.decode() if isinstance(bus, bytes) else bus)
        return found

    def in_use(self, uuid: str) -> bool:
        """Whether programs compute on it; not where nobody can tell."""
        handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid.encode())
        return handle is not None and bool(self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle))

    def _look(self, uuid: str) -> Values:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            # Anything else, a driver that is just being replaced say, tells nothing about the GPU.
            return {Figure.LOST: 1} if error.value in _GONE else {}
        found = {Figure.LOST: 0}
        remapped = self._ask(nvml.nvmlDeviceGetRemappedRows, handle)
        if remapped is not None:
            found[Figure.REMAP_PENDING], found[Figure.REMAP_FAILED] = int(remapped[2]), int(remapped[3])
        for figure, kind in (
            (Figure.ECC_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            (Figure.ECC_UNCORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        ):
            self._add(found, figure, nvml.nvmlDeviceGetTotalEccErrors, handle, kind, nvml.NVML_VOLATILE_ECC)
        self._add(found, Figure.TEMPERATURE, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if reasons is not None:
            by_hardware = (
                nvml.nvmlClocksThrottleReasonHwSlowdown
                | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
                | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
            )
            found[Figure.SLOWED_DOWN] = int(bool(reasons & by_hardware))
        self._look_at_links(handle, found)
        return found

    def _look_at_links(self, handle: Any, found: dict[Figure, int]) -> None:
        nvml = self._nvml
        up = [self._ask(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(MOST_LINKS)]
        if not any(up):
            return  # no links, or none that is connected to anything
        found[Figure.NVLINKS_DOWN] = sum(state == 0 for state in up)
        counts = [
            self._ask(nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind)
            for link, state in enumerate(up)
            if state is not None
            for kind in _LINK_ERRORS
        ]
        known = [int(count) for count in counts if count is not None]
        if known:
            found[Figure.NVLINK_ERRORS] = sum(known)

    def _add(
        self, found: dict[Figure, int], figure: Figure, call: Callable[..., Any], *arguments: Any
    ) -> None:
        value = self._ask(call, *arguments)
        if value is not None:
            found[figure] = int(value)

    def _ask(self, call: Callable[..., T], *arguments: Any) -> T | None:
        with suppress(self._nvml.NVMLError):
            return call(*arguments)
        return None
