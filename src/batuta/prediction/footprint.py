"""What a run had, as far as its speed depends on it."""

from __future__ import annotations

from typing import NamedTuple


class Footprint(NamedTuple):
    """The GPUs of a run and how far they lie apart. More than two nodes or racks count as two."""

    gpus: int
    nodes: int = 1
    racks: int = 1
    gpu_speed: float = 1.0
    """Speed of its type of GPU relative to the reference type."""
