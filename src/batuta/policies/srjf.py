"""Shortest remaining job first: each job that fits gets its minimum, least predicted time first.

Schrage, "A proof of the optimality of the shortest remaining processing time discipline", Operations
Research 16(3), 1968; with the predicted run time on one GPU as in Voda. `elastic-srjf` is Voda's
ElasticSRJF: the same admission, then the free GPUs one at a time, round and round, the shortest job first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batuta.core.arrays import IntArray, Partitions
from batuta.core.policy import PolicyTraits
from batuta.core.view import PoolView
from batuta.policies.growth import admit_in_parts, grow_in_parts, grow_in_rounds, lowest_first
from batuta.policies.order import admit_in_order, shortest_first


@dataclass(frozen=True, slots=True)
class Srjf:
    """Least `remaining_s` first; `min` to each that still fits."""

    name: str = "srjf"
    traits: ClassVar[PolicyTraits] = PolicyTraits(parted=True)

    def allocate(self, view: PoolView) -> IntArray:
        return admit_in_order(view.min, view.capacity, shortest_first(view))

    def allocate_parts(self, view: PoolView, parts: Partitions) -> IntArray:
        return admit_in_parts(view.min, parts, lowest_first(view.remaining_s, parts))


@dataclass(frozen=True, slots=True)
class ElasticSrjf:
    """Least `remaining_s` first; `min` to each that still fits, then rounds until none is free."""

    name: str = "elastic-srjf"
    traits: ClassVar[PolicyTraits] = PolicyTraits(parted=True, generous=True)

    def allocate(self, view: PoolView) -> IntArray:
        order = shortest_first(view)
        gpus = admit_in_order(view.min, view.capacity, order)
        return grow_in_rounds(gpus, view.sizes, view.capacity, order)

    def allocate_parts(self, view: PoolView, parts: Partitions) -> IntArray:
        order = lowest_first(view.remaining_s, parts)
        gpus = admit_in_parts(view.min, parts, order)
        return grow_in_parts(gpus, view.sizes, parts, order)
