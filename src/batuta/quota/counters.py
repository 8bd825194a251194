"""What those who wait find where they ask: one counter for each queue and cell, all of them as columns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.quota import Reclaim, Within
from batuta.quota.ledger import Ledger
from batuta.quota.reservation import Keeper
from batuta.quota.roll import Roll
from batuta.quota.tree import Node


class Counters(NamedTuple):
    """Columns, with an entry for each counter, or for each row the one of its own."""

    cell: IntArray
    left: IntArray
    """More than this nobody gets without somebody else's loss, …"""
    free: IntArray
    """… or this much, if nothing were kept for another of the queue."""
    own: IntArray
    """What the queue does not use of its own quota; below 0 where it borrows."""
    nominal: IntArray
    most: IntArray
    """What the queue could have if it were alone."""
    looked_after: BoolArray
    """Whether somebody of the queue was to have something kept for it, …"""
    keeps: BoolArray
    """… and whether there was anything to keep, …"""
    needed_s: FloatArray
    """… and from when on that is needed."""
    pushes_from: FloatArray
    """From this priority on a job could push somebody of its queue aside."""
    reclaims: BoolArray
    """Whether it could take back what others have borrowed, if it stays within its own."""

    def at(self, which: IntArray) -> Counters:
        columns: tuple[Any, ...] = self
        return Counters(*(column[which] for column in columns))


class Opening:
    """Opens counters. What is the same at several of them is looked at once."""

    def __init__(self, roll: Roll, ledger: Ledger, keeper: Keeper) -> None:
        self._roll, self._ledger, self._keeper = roll, ledger, keeper
        self._borrowed: dict[tuple[Node, int], bool] = {}

    def counters(self, asked: Iterable[tuple[str, int]]) -> Counters:
        """A counter for each of these queues and cells."""
        found = [self._look(name, cell) for name, cell in asked]
        ints, flags = np.int64, np.bool_
        kinds: tuple[Any, ...] = (ints,) * 6 + (flags, flags, np.float64, np.float64, flags)
        columns = zip(*found, strict=True) if found else ((),) * len(kinds)
        return Counters(*(np.array(own, dtype=kind) for own, kind in zip(columns, kinds, strict=True)))

    def _look(self, name: str, cell: int) -> tuple[float, ...]:
        node, keeper = self._ledger.tree.queues[name], self._keeper
        limits, left = node.limits.get(cell), node.left(cell)
        nominal = limits.nominal if limits is not None else 0
        kept = keeper.kept.get(node)
        return (
            cell,
            left,
            left if kept is None else keeper.left_without(kept, cell),
            nominal - node.usage.get(cell, 0),
            nominal,
            node.most(cell),
            node in keeper.kept,
            kept is not None,
            0.0 if kept is None else kept.needed.from_s,
            self._pushes_from(name),
            self._could_reclaim(node, cell),
        )

    def _pushes_from(self, name: str) -> float:
        rule = self._roll.parts[name].within
        if rule is Within.NEVER:
            return math.inf
        lowest = self._ledger.holders.lowest(name)
        return lowest if rule is Within.LOWER_OR_NEWER_EQUAL_PRIORITY else lowest + 1

    def _could_reclaim(self, node: Node, cell: int) -> bool:
        cohort = node.parent
        if cohort is None or self._ledger.quota.queue_of[node.name].preemption.reclaim is Reclaim.NEVER:
            return False
        found = self._borrowed.get((cohort, cell))
        if found is None:
            found = any(child.borrows_with(cell, 0) for child in cohort.children)
            self._borrowed[cohort, cell] = found
        return found
