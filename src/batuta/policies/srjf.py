"""Shortest remaining job first: each job that fits gets its minimum, least predicted time first.

Schrage, "A proof of the optimality of the shortest remaining processing time discipline", Operations
Research 16(3), 1968; with the predicted run time on one GPU as in Voda.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core.arrays import IntArray
from batuta.core.parts import Parts
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.order import shortest_first
from batuta.policies.parted import admit_in_parts, lowest_first


@dataclass(frozen=True, slots=True)
class Srjf:
    """Least `remaining_s` first; `min` to each that still fits."""

    name: str = "srjf"

    def allocate(self, view: PoolView) -> IntArray:
        return admit_in_order(view.min, view.capacity, shortest_first(view))

    def allocate_parts(self, view: PoolView, parts: Parts) -> IntArray:
        return admit_in_parts(view.min, parts, lowest_first(view.remaining_s, parts))
