"""Find the GPUs of this machine by NVML, and hear of their errors.

A machine without a driver has no GPUs, which is not an error.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

_VENDOR = re.compile(r"^(NVIDIA|Tesla|Quadro)\s+", re.IGNORECASE)
_MIB = 1 << 20
EVENT_WAIT_MS = 1000
T = TypeVar("T")


class NvmlUnavailable(Exception):
    """There is no NVML on this machine, or it does not work."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU."""

    index: int
    uuid: str
    type: str  # as task files name it: `A100`, `H100`, `T4`
    memory_mib: int
    numa: int = 0


def find_devices() -> tuple[Device, ...]:
    try:
        nvml = open_nvml()
    except NvmlUnavailable:
        return ()
    try:
        return tuple(_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    numa = 0
    with suppress(nvml.NVMLError, AttributeError):
        numa = max(int(nvml.nvmlDeviceGetNumaNodeId(handle)), 0)
    return Device(
        index,
        nvml_text(nvml.nvmlDeviceGetUUID(handle)),
        short_name(nvml_text(nvml.nvmlDeviceGetName(handle))),
        nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB,
        numa,
    )


def short_name(name: str) -> str:
    """Return the name that task files use: `A100-80GB` for `NVIDIA A100-SXM4-80GB`, `T4` for `Tesla T4`."""
    bare = _VENDOR.sub("", name.strip())
    words = re.split(r"[\s-]+", bare)
    model = next((word for word in words if re.search(r"\d", word)), words[0])
    memory = next((word for word in words if re.fullmatch(r"\d+GB", word)), "")
    return f"{model}-{memory}" if model == "A100" and memory == "80GB" else model


def open_nvml() -> Any:
    """Return NVML, initialised, or raise NvmlUnavailable."""
    import pynvml  # noqa: PLC0415 - only a machine with GPUs needs it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(str(error)) from None
    return pynvml


def nvml_text(value: str | bytes) -> str:
    """Return a string of NVML; some versions of its bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def ask_nvml(nvml: Any, call: Callable[..., T], *arguments: Any) -> T | None:
    """Return NVML's answer; None where this GPU or its driver has none."""
    try:
        return call(*arguments)
    except nvml.NVMLError:
        return None


class XidEvents:
    """Xid errors of GPUs, as NVML reports them. An event has a code and a GPU: no process, and no text."""

    def __init__(self, nvml: Any) -> None:
        """Raises NVMLError where the driver reports no events."""
        self._nvml, self._set = nvml, nvml.nvmlEventSetCreate()
        self._names: dict[int | None, str] = {}

    def register(self, handle: Any, name: str) -> None:
        """Report the errors of a GPU by this name, or raise NVMLError."""
        self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, self._set)
        self._names[_address(handle)] = name

    def wait(self) -> tuple[str, int] | None:
        """Wait for an event, up to a second; return the GPU's name and the code. Raises NVMLError on a time-out."""
        event = self._nvml.nvmlEventSetWait_v2(self._set, EVENT_WAIT_MS)
        # By its handle: a GPU that is lost does not answer with its name any more.
        name = self._names.get(_address(event.device))
        is_xid = event.eventType & self._nvml.nvmlEventTypeXidCriticalError
        return (name, int(event.eventData)) if name is not None and is_xid else None

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlEventSetFree(self._set)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
