"""Which GPU has which address on the bus, remembered: one that has fallen off it cannot tell any more."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from batuta.gpu.health.kernel_line import short_address
from batuta.gpu.health.nvml_figures import NoNvml, NvmlFigures
from batuta.gpu.profiler.usage import NodeUsage

FILE: Final = "gpu-addresses.json"
_LOOKS: Final = 300
_log = logging.getLogger("batuta.agent")


class Addresses:
    """Asks NVML now and then, and whenever an address is not known; keeps what it once said in a file."""

    def __init__(self, path: Path, ask: Callable[[], Mapping[str, int]]) -> None:
        """`ask`: the addresses of the GPUs that can tell now, and their numbers."""
        self._path, self._ask = path, ask
        self._known = _read(path)
        self._looks = 0

    def look(self) -> None:
        """To be called all the time: while a GPU is on the bus, its address can be learned."""
        if self._looks % _LOOKS == 0 or not self._known:
            self._learn()
        self._looks += 1

    def index(self, pci: str) -> int | None:
        """The number of the GPU at an address; None where there never was one."""
        address = short_address(pci)
        if address not in self._known:
            self._learn()
        return self._known.get(address)

    def _learn(self) -> None:
        told = {short_address(address): gpu for address, gpu in self._ask().items()}
        taken = set(told.values())
        # After a boot without one of them, others may have its number.
        kept = {address: gpu for address, gpu in self._known.items() if gpu not in taken}
        found = kept | told
        if found != self._known:
            self._known = found
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(found), encoding="utf-8")
            os.replace(fresh, self._path)


def _read(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError, AttributeError, TypeError):
        return {str(address): int(gpu) for address, gpu in json.loads(path.read_text("utf-8")).items()}
    return {}


def nvml_addresses(usage: Callable[[], NodeUsage]) -> Mapping[str, int]:
    """What NVML says now of the GPUs that were looked at; nothing where it does not answer."""
    gpus = usage().gpus
    try:
        found = NvmlFigures({"": [gpu.uuid for gpu in gpus]}).addresses().get("", [])
    except NoNvml as error:
        _log.warning("NVML does not tell where GPUs are: %s", error)
        return {}
    return {address: gpu.index for address, gpu in zip(found, gpus, strict=True) if address}
