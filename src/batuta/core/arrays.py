"""Array types that the core computes with, and sets of small numbers as one integer with a bit per member."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
_State = TypeVar("_State", bound="DataclassInstance")


def with_own_containers(state: _State) -> _State:
    """A copy of a dataclass whose lists, dicts, sets and arrays are copies too; what they hold is shared."""
    twin = copy(state)
    for one in fields(state):
        value = getattr(state, one.name)
        if isinstance(value, list | dict | set | np.ndarray):
            setattr(twin, one.name, value.copy())
    return twin


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A view of the array that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def bits(value: int) -> Iterator[int]:
    """The numbers of the set bits, ascending."""
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


@lru_cache(maxsize=1 << 16)
def mask_of(gpus: tuple[int, ...]) -> int:
    """A set of GPUs as a number. The same few sets come up again and again, so it is remembered."""
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """All rows from the first on belong to the parts, in their order; a part may be empty."""

    lengths: IntArray
    capacity: IntArray  # GPUs that the rows of each part may have together
    starts: IntArray = field(init=False)
    number: IntArray = field(init=False)  # by row: the number of its part

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
        return total[1:] - total[self.starts][self.number]
