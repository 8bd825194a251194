"""Names for the array types that the core computes with."""

from __future__ import annotations

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
