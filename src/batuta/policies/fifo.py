"""First come, first served: each job that fits gets its minimum, in submit order.

The baseline of Voda and of every paper; jobs that do not fit are passed by later ones (backfilling without
reservations), so a large job can wait long. `elastic-fifo` is Voda's ElasticFIFO: the same admission, then
the free GPUs one at a time, round and round, the eldest job first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batuta.core.arrays import IntArray, Partitions
from batuta.core.policy import PolicyTraits
from batuta.core.view import PoolView
from batuta.policies.growth import admit_in_parts, grow_in_parts, grow_in_rounds
from batuta.policies.order import admit_in_order


@dataclass(frozen=True, slots=True)
class Fifo:
    """Submit order; `min` to each that still fits."""

    name: str = "fifo"
    traits: ClassVar[PolicyTraits] = PolicyTraits(parted=True)

    def allocate(self, view: PoolView) -> IntArray:
        return admit_in_order(view.min, view.capacity)

    def allocate_parts(self, view: PoolView, parts: Partitions) -> IntArray:
        return admit_in_parts(view.min, parts)


@dataclass(frozen=True, slots=True)
class ElasticFifo:
    """Submit order; `min` to each that still fits, then rounds of one step each until none is free."""

    name: str = "elastic-fifo"
    traits: ClassVar[PolicyTraits] = PolicyTraits(parted=True, generous=True, min_first=True)

    def allocate(self, view: PoolView) -> IntArray:
        gpus = admit_in_order(view.min, view.capacity)
        return grow_in_rounds(gpus, view.sizes, view.capacity)

    def allocate_parts(self, view: PoolView, parts: Partitions) -> IntArray:
        gpus = admit_in_parts(view.min, parts)
        return grow_in_parts(gpus, view.sizes, parts)
