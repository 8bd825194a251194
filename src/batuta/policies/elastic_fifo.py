"""FIFO for elastic jobs: minimum first, then the free GPUs one at a time, round and round.

As in Voda's ElasticFIFO: admission is the same as `fifo`, growth is even, the eldest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batuta.core.arrays import IntArray
from batuta.core.parts import Parts
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.parted import admit_in_parts, grow_in_parts
from batuta.policies.rounds import grow_in_rounds


@dataclass(frozen=True, slots=True)
class ElasticFifo:
    """Submit order; `min` to each that still fits, then rounds of one step each until none is free."""

    name: str = "elastic-fifo"
    generous: ClassVar[bool] = True

    def allocate(self, view: PoolView) -> IntArray:
        gpus = admit_in_order(view.min, view.capacity)
        return grow_in_rounds(gpus, view.sizes, view.capacity)

    def allocate_parts(self, view: PoolView, parts: Parts) -> IntArray:
        gpus = admit_in_parts(view.min, parts)
        return grow_in_parts(gpus, view.sizes, parts)
