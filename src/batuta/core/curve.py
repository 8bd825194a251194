"""How fast a job runs with n GPUs, relative to one, and which GPU counts it may have."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from batuta.core.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """`speeds[n]` is the speed with n GPUs; `speeds[0]` is 0; beyond the end the last value holds."""

    speeds: tuple[float, ...]
    across_nodes: float = 1.0  # factor on the speed when the GPUs lie on more than one node
    across_racks: float = 1.0  # further factor when they lie in more than one rack

    def __post_init__(self) -> None:
        if len(self.speeds) < 2:
            raise ValueError("a speed curve needs a value for 0 and for 1 GPU")
        if self.speeds[0] != 0:
            raise ValueError(f"speed with 0 GPUs must be 0, found {self.speeds[0]}")
        for n, speed in enumerate(self.speeds):
            if not math.isfinite(speed) or speed < 0:
                raise ValueError(f"speed with {n} GPUs must be a finite number ≥ 0, found {speed}")
        for factor in (self.across_nodes, self.across_racks):
            if not 0 < factor <= 1:
                raise ValueError(f"a spread factor must be in (0, 1], found {factor}")

    @property
    def minds_spread(self) -> bool:
        """Whether it matters to the speed on how many nodes or racks the GPUs lie."""
        return self.across_nodes < 1.0 or self.across_racks < 1.0

    def at(self, n: int) -> float:
        speeds = self.speeds
        return speeds[n] if n < len(speeds) else speeds[-1]

    def spread(self, nodes: int, racks: int) -> float:
        """Factor on the speed for a placement over so many nodes and racks."""
        factor = self.across_nodes if nodes > 1 else 1.0
        return factor * self.across_racks if racks > 1 else factor

    @staticmethod
    def of(values: Iterable[float]) -> SpeedCurve:
        return SpeedCurve(tuple(float(v) for v in values))


@lru_cache(maxsize=4096)
def linear_curve(largest: int) -> SpeedCurve:
    """Perfect scaling up to `largest` GPUs."""
    return SpeedCurve(tuple(float(n) for n in range(largest + 1)))


@lru_cache(maxsize=4096)
def amdahl_curve(largest: int, serial_fraction: float) -> SpeedCurve:
    """Amdahl's law: a fraction of each step does not scale."""
    return SpeedCurve((0.0, *(1.0 / (serial_fraction + (1.0 - serial_fraction) / n) for n in range(1, largest + 1))))


@lru_cache(maxsize=4096)
def power_curve(largest: int, exponent: float) -> SpeedCurve:
    """n to the power of `exponent`: the usual prior when nothing has been measured."""
    return SpeedCurve((0.0, *(float(n) ** exponent for n in range(1, largest + 1))))


@dataclass(slots=True, eq=False, repr=False)
class CurvePool:
    """All curves of a World in one flat array, equal ones stored once."""

    flat: FloatArray = field(default_factory=lambda: np.zeros(1024))
    places: dict[SpeedCurve, tuple[int, int]] = field(default_factory=dict)
    used: int = 0
    limit: int = 1 << 17  # values beyond which it is worth looking for curves that no job has any more

    def add(self, curve: SpeedCurve) -> tuple[int, int]:
        """Where the curve starts and the index of its last value."""
        place = self.places.get(curve)
        if place is None:
            n = len(curve.speeds)
            while self.used + n > len(self.flat):
                self.flat = np.concatenate([self.flat, np.zeros_like(self.flat)])
            self.flat[self.used : self.used + n] = curve.speeds
            place = self.places[curve] = (self.used, n - 1)
            self.used += n
        return place


@dataclass(frozen=True, slots=True)
class Curves:
    """The speed curves of many jobs, looked up in one go."""

    flat: FloatArray
    start: IntArray
    last: IntArray

    def at(self, gpus: IntArray) -> FloatArray:
        """Speed of every job at its own GPU count."""
        return self.flat[self.start + np.minimum(gpus, self.last)]

    def of(self, rows: IntArray, gpus: IntArray) -> FloatArray:
        """Speed of chosen jobs (rows may repeat) at the given counts."""
        return self.flat[self.start[rows] + np.minimum(gpus, self.last[rows])]

    def subset(self, rows: IntArray) -> Curves:
        return Curves(self.flat, self.start[rows], self.last[rows])

    def row(self, row: int, largest: int) -> FloatArray:
        """Speeds of one job for 0..largest GPUs."""
        n = np.minimum(np.arange(largest + 1), self.last[row])
        found: FloatArray = self.flat[self.start[row] + n]
        return found


NO_SET = -1
_BEYOND = np.int64(2**62)


@dataclass(slots=True, eq=False, repr=False)
class SizeSetPool:
    """Explicit size lists of a World, equal ones stored once, as rows of a padded matrix."""

    matrix: IntArray = field(default_factory=lambda: np.full((0, 1), _BEYOND, dtype=np.int64))
    places: dict[tuple[int, ...], int] = field(default_factory=dict)

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


@dataclass(frozen=True, slots=True)
class LegalSizes:
    """The legal sizes of many jobs. Zero is always legal and is not listed."""

    min: IntArray
    max: IntArray
    step: IntArray
    set_of: IntArray
    sets: IntArray
    regular: bool  # True when no job has an explicit list and every step is 1: the common, fastest case
    rigid: bool = False  # True when it is known that no job may have more than its `min`

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
        found: IntArray = table[(table >= self.min[row]) & (table <= self.max[row])]
        return found


FINE_NODES = 8  # up to so many nodes every number is a size; beyond, there are four to an octave


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
