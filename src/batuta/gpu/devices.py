"""Find the GPUs of this machine by NVML. A machine without a driver has none, which is not an error."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_VENDOR = re.compile(r"^(NVIDIA|Tesla|Quadro)\s+", re.IGNORECASE)
_MIB = 1 << 20


class NvmlUnavailable(Exception):
    """There is no NVML on this machine, or it does not work."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU."""

    index: int
    uuid: str
    type: str
    """As task files name it: `A100`, `H100`, `T4`."""
    memory_mib: int
    numa: int = 0


def find_devices() -> tuple[Device, ...]:
    """Return all GPUs, in NVML's order."""
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


def same_device(one: Any, other: Any) -> bool:
    """Return whether two handles of NVML are of one GPU."""
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value
