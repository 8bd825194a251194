"""Array types that the core computes with, and sets of small numbers as one integer with a bit per member."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


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
