"""First come, first served: each job that fits gets its minimum, in submit order.

The baseline of Voda and of every paper; jobs that do not fit are passed by later ones (backfilling without
reservations), so a large job can wait long.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core.arrays import IntArray
from batuta.core.parts import Parts
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.parted import admit_in_parts


@dataclass(frozen=True, slots=True)
class Fifo:
    """Submit order; `min` to each that still fits."""

    name: str = "fifo"

    def allocate(self, view: PoolView) -> IntArray:
        return admit_in_order(view.min, view.capacity)

    def allocate_parts(self, view: PoolView, parts: Parts) -> IntArray:
        return admit_in_parts(view.min, parts)
