"""SRJF for elastic jobs: minimum first, then the free GPUs one at a time, round and round.

As in Voda's ElasticSRJF: admission is the same as `srjf`, growth is even, the shortest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batuta.core.arrays import IntArray
from batuta.core.parts import Parts
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.order import shortest_first
from batuta.policies.parted import admit_in_parts, grow_in_parts, lowest_first
from batuta.policies.rounds import grow_in_rounds


@dataclass(frozen=True, slots=True)
class ElasticSrjf:
    """Least `remaining_s` first; `min` to each that still fits, then rounds until none is free."""

    name: str = "elastic-srjf"
    generous: ClassVar[bool] = True

    def allocate(self, view: PoolView) -> IntArray:
        order = shortest_first(view)
        gpus = admit_in_order(view.min, view.capacity, order)
        return grow_in_rounds(gpus, view.sizes, view.capacity, order)

    def allocate_parts(self, view: PoolView, parts: Parts) -> IntArray:
        order = lowest_first(view.remaining_s, parts)
        gpus = admit_in_parts(view.min, parts, order)
        return grow_in_parts(gpus, view.sizes, parts, order)
