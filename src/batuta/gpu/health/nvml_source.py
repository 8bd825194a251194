"""Read the health of GPUs: metrics and Xid events from NVML, metrics of virtual GPUs from their files.

A metric that a GPU or its driver does not answer is left out.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid as unique
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from batuta.core.cluster import NodeName
from batuta.core.health_signals import Figure, Values
from batuta.gpu.devices import EVENT_WAIT_MS, NvmlUnavailable, XidEvents, ask_nvml, nvml_text, open_nvml
from batuta.gpu.health.kernel_log import Batch, Cursor, KernelLog, normalize_pci_address
from batuta.gpu.profiler.usage import NodeUsage
from batuta.gpu.vgpu.device_file import Device, open_device_file
from batuta.spec.problem import InputError

MAX_LINKS: Final = 18
_LOOKS: Final = 300  # between two questions where GPUs are
_log = logging.getLogger("batuta.agent")
_LINK_ERRORS: Final = range(3)
"""Replays, recoveries, checksum errors of data: a fourth counts what was repaired by those."""
_GONE: Final = frozenset({2, 6, 15, 16})
"""Invalid argument, not found, lost, needs a reset: of a GPU that was there before, all mean the same."""
MAX_EVENT_LINES: Final = 10_000  # kept for readers that have not seen them; the oldest are dropped


class NvmlHealthSource:
    """Reads the metrics of GPUs, divided among nodes. A GPU that NVML no longer knows counts as lost."""

    def __init__(self, devices: Mapping[NodeName, Sequence[str]]) -> None:
        """`devices`: by node the UUIDs of its GPUs. Raises NvmlUnavailable."""
        self._nvml = open_nvml()
        self._devices = {(node, gpu): uuid for node, own in devices.items() for gpu, uuid in enumerate(own)}

    def read(self) -> Mapping[tuple[NodeName, int], Values]:
        return {place: self._read_gpu(uuid) for place, uuid in self._devices.items()}

    def addresses(self) -> dict[NodeName, list[str]]:
        """Return the PCI addresses of the GPUs, by node and in order; empty for one that does not answer."""
        found: dict[NodeName, list[str]] = {}
        for (node, _), uuid in self._devices.items():
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid.encode())
            pci = None if handle is None else self._ask(self._nvml.nvmlDeviceGetPciInfo, handle)
            found.setdefault(node, []).append("" if pci is None else nvml_text(pci.busId))
        return found

    def in_use(self, uuid: str) -> bool:
        """Return whether processes compute on a GPU; False where the driver does not answer."""
        handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid.encode())
        return handle is not None and bool(self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle))

    def _read_gpu(self, uuid: str) -> Values:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            # Any other error, as while a driver is replaced, says nothing about the GPU.
            return {Figure.LOST: 1} if error.value in _GONE else {}
        _, _, pending, failed = self._ask(nvml.nvmlDeviceGetRemappedRows, handle) or (None,) * 4
        corrected, uncorrected = (
            self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, kind, nvml.NVML_VOLATILE_ECC)
            for kind in (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        )
        slowed = (
            nvml.nvmlClocksThrottleReasonHwSlowdown
            | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
        )
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        answers = {
            Figure.LOST: 0,
            Figure.REMAP_PENDING: pending,
            Figure.REMAP_FAILED: failed,
            Figure.ECC_CORRECTED: corrected,
            Figure.ECC_UNCORRECTED: uncorrected,
            Figure.TEMPERATURE: self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            Figure.SLOWED_DOWN: None if reasons is None else bool(reasons & slowed),
        }
        found = {figure: int(value) for figure, value in answers.items() if value is not None}
        self._read_links(handle, found)
        return found

    def _read_links(self, handle: Any, found: dict[Figure, int]) -> None:
        nvml = self._nvml
        up = [self._ask(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(MAX_LINKS)]
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

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return ask_nvml(self._nvml, call, *arguments)


class NvmlEventLog(KernelLog):
    """Xid events as lines of a kernel log, for a server that may not read the kernel's own.

    It listens from its construction until it is closed. An event has a code and a GPU: no process, and none
    of the text by which some rules distinguish kinds of an error.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        """`uuids`: of the GPUs to listen to. Raises NvmlUnavailable if none reports events."""
        self._nvml = nvml = open_nvml()
        self._run = unique.uuid4().hex
        self._lines: deque[str] = deque(maxlen=MAX_EVENT_LINES)
        self._count = 0  # lines so far, of which the last are kept
        self._lock, self._stop = threading.Lock(), threading.Event()
        try:
            self._events = XidEvents(nvml)
        except nvml.NVMLError as error:
            raise NvmlUnavailable(str(error)) from None
        registered = [ask_nvml(nvml, self._register, uuid) for uuid in uuids]
        if not any(registered):
            raise NvmlUnavailable("no GPU reports events")
        self._thread = threading.Thread(target=self._listen, name="batuta-xids", daemon=True)
        self._thread.start()

    def _register(self, uuid: str) -> bool:
        handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        self._events.register(handle, nvml_text(self._nvml.nvmlDeviceGetPciInfo(handle).busId))
        return True

    def _listen(self) -> None:
        nvml = self._nvml
        while not self._stop.is_set():
            try:
                found = self._events.wait()
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError:  # the driver is being replaced, say
                self._stop.wait(EVENT_WAIT_MS / 1000)
                continue
            if found is not None:
                self._add_line(*found)

    def _add_line(self, pci: str, code: int) -> None:
        with self._lock:
            self._lines.append(f"NVRM: Xid (PCI:{normalize_pci_address(pci)}): {code}, by NVML")
            self._count += 1

    def read(self, cursor: Cursor | None) -> Batch:
        """Return the lines behind a cursor; all lines for a cursor of another run."""
        with self._lock:
            is_own = cursor is not None and cursor.get("run") == self._run
            seen = int(cursor["seen"]) if cursor is not None and is_own else 0
            first = self._count - len(self._lines)
            missed = f"{first - seen} errors came too fast" if seen < first else ""
            lines = tuple(islice(self._lines, max(0, seen - first), None))
            return Batch(lines, {"run": self._run, "seen": self._count}, missed)

    def close(self) -> None:
        """Stop listening, within about a second."""
        self._stop.set()
        self._thread.join(2 * EVENT_WAIT_MS / 1000)
        if not self._thread.is_alive():
            self._events.close()


class VirtualHealthSource:
    """Reads the metrics of virtual GPUs from the device files of their nodes."""

    def __init__(self, nodes: Sequence[NodeName], path_of: Callable[[NodeName], Path | None]) -> None:
        """`path_of`: returns the device file of a node; None while there is none."""
        self._nodes, self._path_of = nodes, path_of

    def read(self) -> Mapping[tuple[NodeName, int], Values]:
        found: dict[tuple[NodeName, int], Values] = {}
        for node in self._nodes:
            path = self._path_of(node)
            with suppress(InputError):  # the file was removed: nothing is known of this node
                if path is not None:
                    with open_device_file(path) as file:
                        found |= {(node, gpu): _values(file.devices[gpu]) for gpu in range(file.devices_count)}
        return found


def _values(device: Device) -> Values:
    if device.lost:
        return {Figure.LOST: 1}
    # Load alone never makes a virtual GPU too hot, and computing its share takes longer than all else.
    temperature_c = device.fixed_celsius or device.idle_celsius
    found = {
        Figure.LOST: 0,
        Figure.ECC_CORRECTED: device.ecc_volatile[0],
        Figure.ECC_UNCORRECTED: device.ecc_volatile[1],
        Figure.TEMPERATURE: temperature_c,
        Figure.SLOWED_DOWN: int(temperature_c >= device.slowdown_celsius),
    }
    if device.row_remap:
        found |= {Figure.REMAP_PENDING: device.remap_pending, Figure.REMAP_FAILED: device.remap_failed}
    links = (1 << device.links) - 1
    if links & ~device.links_down:
        found[Figure.NVLINKS_DOWN] = (device.links_down & links).bit_count()
    return found


class NvmlReader:
    """Reads the metrics of the GPUs of an agent's first sample: one that NVML no longer knows counts as lost."""

    def __init__(self, usage: Callable[[], NodeUsage]) -> None:
        self._usage = usage
        self._figures: NvmlHealthSource | None = None
        self._numbers: tuple[int, ...] = ()

    def __call__(self) -> Mapping[int, Values]:
        gpus = self._usage().gpus
        if self._figures is None and gpus:
            try:
                self._figures = NvmlHealthSource({"": [gpu.uuid for gpu in gpus]})
            except NvmlUnavailable as error:
                _log.warning("NVML does not tell how GPUs are: %s", error)
                return {}
            self._numbers = tuple(gpu.index for gpu in gpus)
        if self._figures is None:
            return {}
        return {self._numbers[place]: values for (_, place), values in self._figures.read().items()}


class PciAddresses:
    """The addresses of GPUs, kept in a file: a GPU that has fallen off the bus cannot be asked for its own any more.

    NVML is asked now and then, and whenever an address is not known.
    """

    def __init__(self, path: Path, ask: Callable[[], Mapping[str, int]]) -> None:
        """`ask`: the addresses of the GPUs that can tell now, and their numbers."""
        self._path, self._ask = path, ask
        self._known = _read_addresses(path)
        self._looks = 0

    def look(self) -> None:
        """Learn addresses. To be called all the time: it can be done while a GPU is on the bus."""
        if self._looks % _LOOKS == 0 or not self._known:
            self._learn()
        self._looks += 1

    def index(self, pci: str) -> int | None:
        """Return the number of the GPU at an address; None where there never was one."""
        address = normalize_pci_address(pci)
        if address not in self._known:
            self._learn()
        return self._known.get(address)

    def _learn(self) -> None:
        told = {normalize_pci_address(address): gpu for address, gpu in self._ask().items()}
        taken = set(told.values())
        # After a boot without one of them, others may have its number.
        kept = {address: gpu for address, gpu in self._known.items() if gpu not in taken}
        found = kept | told
        if found != self._known:
            self._known = found
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(found), encoding="utf-8")
            os.replace(fresh, self._path)


def _read_addresses(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError, AttributeError, TypeError):
        return {str(address): int(gpu) for address, gpu in json.loads(path.read_text("utf-8")).items()}
    return {}


def nvml_addresses(usage: Callable[[], NodeUsage]) -> Mapping[str, int]:
    """Return where the GPUs that were sampled are now, and their numbers; nothing where NVML does not answer."""
    gpus = usage().gpus
    try:
        found = NvmlHealthSource({"": [gpu.uuid for gpu in gpus]}).addresses().get("", [])
    except NvmlUnavailable as error:
        _log.warning("NVML does not tell where GPUs are: %s", error)
        return {}
    return {address: gpu.index for address, gpu in zip(found, gpus, strict=True) if address}
