"""Arrays that grow."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)


def padded(table: NDArray[T], shape: tuple[int, ...], filling: float = 0) -> NDArray[T]:
    """The same values in a larger array, `filling` in the rest."""
    if table.shape == shape:
        return table
    larger = np.full(shape, filling, table.dtype)
    larger[tuple(slice(length) for length in table.shape)] = table
    return larger
