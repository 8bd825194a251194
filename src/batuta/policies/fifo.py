"""First come, first served, and shortest remaining job first: each job that fits gets its minimum, in that order.

FIFO is the baseline of Voda and of every paper; jobs that do not fit are passed by later ones (backfilling
without reservations), so a large job can wait long. SRJF takes the least predicted time first: Schrage, "A proof
of the optimality of the shortest remaining processing time discipline", Operations Research 16(3), 1968; with the
predicted run time on one GPU as in Voda. The elastic ones are Voda's ElasticFIFO and ElasticSRJF: the same
admission, then the free GPUs one at a time, round and round, in the same order.
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
class Fifo:
    """Submit order; `min` to each that still fits."""

    name: str = "fifo"
    traits: ClassVar[PolicyTraits] = PolicyTraits(parted=True)

    def order(self, view: PoolView, parts: Partitions | None = None) -> IntArray | None:
        """Return the rows in the order of this policy, part by part; None for submit order."""
        return None

    def allocate(self, view: PoolView) -> IntArray:
        return admit_in_order(view.min, view.capacity, self.order(view))

    def allocate_parts(self, view: PoolView, parts: Partitions) -> IntArray:
        return admit_in_parts(view.min, parts, self.order(view, parts))


@dataclass(frozen=True, slots=True)
class ElasticFifo(Fifo):
    """Submit order; `min` to each that still fits, then rounds of one step each until none is free."""

    name: str = "elastic-fifo"
    traits: ClassVar[PolicyTraits] = PolicyTraits(parted=True, generous=True, min_first=True)

    def allocate(self, view: PoolView) -> IntArray:
        order = self.order(view)
        gpus = admit_in_order(view.min, view.capacity, order)
        return grow_in_rounds(gpus, view.sizes, view.capacity, order)

    def allocate_parts(self, view: PoolView, parts: Partitions) -> IntArray:
        order = self.order(view, parts)
        gpus = admit_in_parts(view.min, parts, order)
        return grow_in_parts(gpus, view.sizes, parts, order)


class _ShortestFirst:
    __slots__ = ()

    def order(self, view: PoolView, parts: Partitions | None = None) -> IntArray | None:
        return shortest_first(view) if parts is None else lowest_first(view.remaining_s, parts)


@dataclass(frozen=True, slots=True)
class Srjf(_ShortestFirst, Fifo):
    """Least `remaining_s` first; `min` to each that still fits."""

    name: str = "srjf"


@dataclass(frozen=True, slots=True)
class ElasticSrjf(_ShortestFirst, ElasticFifo):
    """Least `remaining_s` first; `min` to each that still fits, then rounds until none is free."""

    name: str = "elastic-srjf"
    traits: ClassVar[PolicyTraits] = PolicyTraits(parted=True, generous=True)
