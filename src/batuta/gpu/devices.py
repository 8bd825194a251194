"""The GPUs of this machine, as NVML tells. A machine without a driver has none; that is no error."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_VENDOR = re.compile(r"^(NVIDIA|Tesla|Quadro)\s+", re.IGNORECASE)
_MIB = 1 << 20


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
    """All GPUs, in NVML's order."""
    import pynvml  # noqa: PLC0415 - only a server needs it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    numa = 0
    with suppress(nvml.NVMLError, AttributeError):
        numa = max(int(nvml.nvmlDeviceGetNumaNodeId(handle)), 0)
    return Device(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        short_name(_text(nvml.nvmlDeviceGetName(handle))),
        nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB,
        numa,
    )


def short_name(name: str) -> str:
    """`NVIDIA A100-SXM4-80GB` is an `A100-80GB`, `Tesla T4` a `T4`: the names that task files use."""
    bare = _VENDOR.sub("", name.strip())
    words = re.split(r"[\s-]+", bare)
    model = next((word for word in words if re.search(r"\d", word)), words[0])
    memory = next((word for word in words if re.fullmatch(r"\d+GB", word)), "")
    return f"{model}-{memory}" if model == "A100" and memory == "80GB" else model


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
