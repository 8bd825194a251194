"""What a round saw of a tree of cohorts, what it came to, and whether that still holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.quota.answers import Answers
from batuta.quota.census import Census


class Timing(NamedTuple):
    """What the answers owe to the clock: who will have ended before whom.

    Jobs are meant by their place in the tree.
    """

    running: IntArray
    """Those who will give quota back, as they are listed, …"""
    first: IntArray
    """… and which of them do so first, as far as it mattered, by their number in that list."""
    asked: IntArray
    """Those who wanted what is kept for others, …"""
    until: IntArray
    """… whose end they would have had to be before, by its number in `first`, …"""
    later: BoolArray
    """… and whether they would end later than that."""

    def holds(self, census: Census, tree: int) -> bool:
        rows = census.rows[tree]
        ends_s = census.ends_s[rows]
        given_back_s = ends_s[self.running]
        first = np.argsort(given_back_s, kind="stable")[: len(self.first)]
        if not np.array_equal(first, self.first):
            return False
        return np.array_equal(ends_s[self.asked] > given_back_s[first[self.until]], self.later)


class Past(NamedTuple):
    """One tree in the last round."""

    seen: IntArray
    things: Sequence[Any]
    """Kept alive, because `seen` knows them by their identity."""
    timing: Timing | None
    answers: Answers

    def holds(self, census: Census, tree: int) -> bool:
        """Whether a round would come to the same: nothing that it would read has changed."""
        return np.array_equal(self.seen, census.seen[tree]) and (
            self.timing is None or self.timing.holds(census, tree)
        )
