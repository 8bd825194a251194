"""Figures of virtual GPUs, from their files: the same that NVML tells whoever runs on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from batuta.core.cluster import NodeName
from batuta.core.health_figures import Figure, Values
from batuta.gpu.vgpu.device_file import opened
from batuta.gpu.vgpu.layout import Device
from batuta.spec.problem import InputError


class VirtualFigures:
    """Looks at the nodes that have device files by now."""

    def __init__(self, nodes: Sequence[NodeName], path_of: Callable[[NodeName], Path | None]) -> None:
        """`path_of`: the file of a node; None while there is none."""
        self._nodes, self._path_of = nodes, path_of

    def read(self) -> Mapping[tuple[NodeName, int], Values]:
        found: dict[tuple[NodeName, int], Values] = {}
        for node in self._nodes:
            path = self._path_of(node)
            if path is None:
                continue
            try:
                with opened(path) as file:
                    found |= {(node, gpu): _values(file.devices[gpu]) for gpu in range(file.devices_count)}
            except InputError:
                continue  # somebody has removed the file: of this node nothing is known
        return found


def _values(device: Device) -> Values:
    if device.lost:
        return {Figure.LOST: 1}
    # Load alone makes no virtual GPU too hot, and what it makes of it takes longer to work out than all else.
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
