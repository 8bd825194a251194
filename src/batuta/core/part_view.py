"""Neighbouring rows of a view as a pool of their own.

Hundreds of small pools are shown to a policy one after the other. So columns are made once for all of them,
and each pool cuts its part out when it is asked for, without a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from batuta.core.curve import Curves
from batuta.core.sizes import LegalSizes
from batuta.core.view import PoolView
from batuta.core.world_view import WorldView

_set = object.__setattr__  # fills a slot of a frozen value, as its own constructor does


def part_of(whole: PoolView, part: slice, capacity: int) -> PoolView:
    """These rows of a view of some jobs of a World; they compete for a capacity of their own."""
    assert isinstance(whole, WorldView)
    world, rows, cap, kind = whole.source
    assert rows is not None
    view = PartView.__new__(PartView)
    _set(view, "now_s", whole.now_s)
    _set(view, "capacity", max(capacity, 0))
    _set(view, "source", (world, rows[part], cap, kind))
    _set(view, "whole", (whole, part))
    return view


class PartView(WorldView):
    """As a view of these rows alone. It holds for as long as the World does not change."""

    __slots__ = ("whole",)

    whole: tuple[WorldView, slice]

    def __getattr__(self, name: str) -> Any:
        """Called for an empty slot only."""
        whole, part = self.whole
        column = getattr(whole, name)
        if isinstance(column, np.ndarray):
            value: Any = column[part]
        elif isinstance(column, LegalSizes):
            low, high, step, listed = (
                column.min[part],
                column.max[part],
                column.step[part],
                column.set_of[part],
            )
            value = LegalSizes(low, high, step, listed, column.sets, column.regular, column.rigid)
        elif isinstance(column, Curves):
            value = Curves(column.flat, column.start[part], column.last[part])
        else:
            return super().__getattr__(name)
        _set(self, name, value)
        return value
