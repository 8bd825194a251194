"""The GPU counts that a job may have: every step from min to max, or a list; and sizes that fill nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from batuta.core.arrays import IntArray

NO_SET = -1
_BEYOND = np.int64(2**62)


class SizeSetPool:
    """Explicit size lists of a World, equal ones stored once, as rows of a padded matrix."""

    __slots__ = ("matrix", "places")

    def __init__(self) -> None:
        self.matrix: IntArray = np.full((0, 1), _BEYOND, dtype=np.int64)
        self.places: dict[tuple[int, ...], int] = {}

    def add(self, sizes: tuple[int, ...] | None) -> int:
        if sizes is None:
            return NO_SET
        place = self.places.get(sizes)
        if place is None:
            place = self.places[sizes] = len(self.places)
            width = max(self.matrix.shape[1], len(sizes))
            grown = np.full((place + 1, width), _BEYOND, dtype=np.int64)
            grown[:place, : self.matrix.shape[1]] = self.matrix
            grown[place, : len(sizes)] = sizes
            self.matrix = grown
        return place

    def fork(self) -> SizeSetPool:
        twin = SizeSetPool()
        twin.matrix, twin.places = self.matrix, dict(self.places)
        return twin


@dataclass(frozen=True, slots=True)
class LegalSizes:
    """The legal sizes of many jobs. Zero is always legal and is not listed."""

    min: IntArray
    max: IntArray
    step: IntArray
    set_of: IntArray
    sets: IntArray
    regular: bool
    """True when no job has an explicit list and every step is 1: the common, fastest case."""
    rigid: bool = False
    """True when it is known that no job may have more than its `min`."""

    @staticmethod
    def build(low: IntArray, high: IntArray, step: IntArray, set_of: IntArray, sets: IntArray) -> LegalSizes:
        regular = bool((set_of == NO_SET).all() and (step == 1).all())
        return LegalSizes(low, high, step, set_of, sets, regular)

    def subset(self, rows: IntArray) -> LegalSizes:
        low, high, step, set_of = self.min[rows], self.max[rows], self.step[rows], self.set_of[rows]
        if self.regular:
            return LegalSizes(low, high, step, set_of, self.sets, True)
        return LegalSizes.build(low, high, step, set_of, self.sets)

    def next(self, gpus: IntArray) -> IntArray:
        """The next legal size above each count; the count itself where there is none."""
        above = gpus + 1 if self.regular else gpus + self.step - (gpus - self.min) % self.step
        up = np.where(gpus < self.min, self.min, above)
        up = np.where(up > self.max, gpus, up)
        if self.regular:
            return up
        listed = np.flatnonzero(self.set_of != NO_SET)
        if listed.size:
            table = self.sets[self.set_of[listed]]
            listed_above = np.where(table > gpus[listed, None], table, _BEYOND).min(axis=1)
            up[listed] = np.where(listed_above > self.max[listed], gpus[listed], listed_above)
        return up

    def floor(self, gpus: IntArray) -> IntArray:
        """The largest legal size that is at most each count; 0 where there is none."""
        capped = np.minimum(gpus, self.max)
        down = self.min + (capped - self.min) // self.step * self.step
        down = np.where(capped < self.min, 0, down)
        listed = np.flatnonzero(self.set_of != NO_SET)
        if listed.size:
            table = self.sets[self.set_of[listed]]
            below = np.where(table <= capped[listed, None], table, 0).max(axis=1)
            down[listed] = np.where(below < self.min[listed], 0, below)
        return down

    def of(self, row: int) -> IntArray:
        """All legal sizes of one job, ascending, without zero."""
        if self.set_of[row] == NO_SET:
            return np.arange(self.min[row], self.max[row] + 1, self.step[row], dtype=np.int64)
        table = self.sets[self.set_of[row]]
        legal: IntArray = table[(table >= self.min[row]) & (table <= self.max[row])]
        return legal


FINE_NODES = 8
"""Up to so many nodes every number is a size; beyond, there are four to an octave."""


@lru_cache(maxsize=256)
def node_sizes(most: int, gpus_per_node: int) -> tuple[int, ...]:
    """Such sizes up to `most`, ascending: 1, 2, 4, 8, 12, …, 32, 40, 48, 56, 64, 80, … on nodes of four."""
    sizes = set()
    part = 1
    while part < gpus_per_node:
        sizes.add(part)
        part *= 2
    nodes, step = 1, 1
    while nodes * gpus_per_node <= most:
        sizes.add(nodes * gpus_per_node)
        if nodes >= FINE_NODES * step:
            step *= 2
        nodes += step
    return tuple(sorted(n for n in sizes if n <= most))
