"""What a policy sees that chooses GPU types itself: all jobs once, and what each could have of every type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.view import PoolView


class Choice(NamedTuple):
    """The answer: so many GPUs of one type for every row. Without GPUs the type does not matter."""

    gpus: IntArray
    gpu_type: IntArray


@dataclass(frozen=True, slots=True)
class TypedView:
    """Jobs and GPU types. A table has a row for each job of `jobs` and a column for each type of `types`.

    With n GPUs of type t a job needs `jobs.remaining_s / (speed[row, t] * jobs.speed(n))` more seconds.
    """

    jobs: PoolView
    """All types together: its capacity is their sum, `max` and `sizes` hold for the type that has most for a
    row, and `remaining_s` is on one GPU of the reference type, whose relative speed is 1."""
    types: tuple[str, ...]
    capacity: IntArray
    """By type: GPUs that jobs may have now, those that they already have included."""
    speed: FloatArray
    """Speed of one GPU of a type relative to the reference type; 0 where the job may have none of it, for
    whatever reason: it does not accept the type, quota is for another one, no node of it suits."""
    most: IntArray
    """The largest legal size of each type, at least `min` where `speed` is above 0, and 0 elsewhere."""
    gpu_type: IntArray
    """The type of the GPUs that a job has now; -1 for none."""
    node_gpus: tuple[int, ...]
    """By type: GPUs of its usual node."""

    def __len__(self) -> int:
        return len(self.gpu_type)
