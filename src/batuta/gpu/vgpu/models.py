"""The GPU models that a virtual GPU can have, with the values of their data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batuta.spec.problem import InputError, did_you_mean

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Model:
    """The properties of a GPU model. Temperatures and idle values are typical, not measured."""

    name: str
    """As NVML reports it."""
    memory_bytes: int
    compute: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    limit_w: int
    idle_w: int
    max_sm_mhz: int
    memory_mhz: int
    memory_bus_bits: int
    pcie_generation: int
    row_remap: bool = True
    links: int = 0
    link_mbps: int = 0
    switched: bool = False
    """NVLink goes to a switch, which joins all; else to the other GPUs in turn."""


_V100_LINKS: dict[str, Any] = {"links": 6, "link_mbps": 25_781}
_A100_LINKS: dict[str, Any] = {"links": 12, "link_mbps": 25_781, "switched": True}
_H100_LINKS: dict[str, Any] = {"links": 18, "link_mbps": 26_562, "switched": True}

MODELS = {
    "P100": Model("Tesla P100-PCIE-16GB", 16 * _GIB, (6, 0), 56, 2048, 250, 27, 1328, 715, 4096, 3, False),
    "V100": Model(
        "Tesla V100-SXM2-16GB", 16 * _GIB, (7, 0), 80, 2048, 300, 40, 1530, 877, 4096, 3, False, **_V100_LINKS
    ),
    "T4": Model("Tesla T4", 15 * _GIB, (7, 5), 40, 1024, 70, 10, 1590, 5001, 256, 3, False),
    "A10": Model("NVIDIA A10", 23 * _GIB, (8, 6), 72, 1536, 150, 16, 1695, 6251, 384, 4),
    "A100": Model("NVIDIA A100-SXM4-40GB", 40 * _GIB, (8, 0), 108, 2048, 400, 50, 1410, 1215, 5120, 4, **_A100_LINKS),
    "A100-80GB": Model(
        "NVIDIA A100-SXM4-80GB", 80 * _GIB, (8, 0), 108, 2048, 400, 60, 1410, 1593, 5120, 4, **_A100_LINKS
    ),
    "L4": Model("NVIDIA L4", 23 * _GIB, (8, 9), 58, 1536, 72, 12, 2040, 6251, 192, 4),
    "H100": Model("NVIDIA H100 80GB HBM3", 80 * _GIB, (9, 0), 132, 2048, 700, 70, 1980, 2619, 5120, 5, **_H100_LINKS),
    "H200": Model("NVIDIA H200", 141 * _GIB, (9, 0), 132, 2048, 700, 75, 1980, 3201, 6144, 5, **_H100_LINKS),
}


def find_model(name: str) -> Model:
    """Return the model with a name as in task files, in upper or lower case."""
    for known, model in MODELS.items():
        if known.lower() == name.lower():
            return model
    raise InputError.of(f"unknown GPU model: {name}", fix=did_you_mean(name, tuple(MODELS)))
