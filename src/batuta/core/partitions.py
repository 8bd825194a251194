"""Neighbouring rows in parts, each with a capacity of its own: sums and running sums of all parts at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from batuta.core.arrays import BoolArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """All rows from the first on belong to the parts, in their order; a part may be empty."""

    lengths: IntArray
    capacity: IntArray
    """GPUs that the rows of each part may have together."""
    starts: IntArray = field(init=False)
    number: IntArray = field(init=False)
    """By row: the number of its part."""

    def __post_init__(self) -> None:
        number = np.repeat(np.arange(len(self.lengths)), self.lengths)
        object.__setattr__(self, "starts", np.cumsum(self.lengths) - self.lengths)
        object.__setattr__(self, "number", number)

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, part: int) -> slice:
        start = int(self.starts[part])
        return slice(start, start + int(self.lengths[part]))

    def only(self, chosen: BoolArray) -> Partitions:
        """Some of the parts, as if there were no others."""
        return Partitions(self.lengths[chosen], self.capacity[chosen])

    def sums(self, values: IntArray | BoolArray) -> IntArray:
        """By part."""
        total = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
        found: IntArray = total[self.starts + self.lengths] - total[self.starts]
        return found

    def running(self, values: IntArray | BoolArray) -> IntArray:
        """By row: the sum from the first row of its part to this one."""
        total = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
        found: IntArray = total[1:] - total[self.starts][self.number]
        return found
