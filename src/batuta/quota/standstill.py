"""Trees of cohorts in which nobody who waits can be served as things stand, and what is said to all of them.

Where nobody is served the books stay as they are. So all jobs of all these trees are compared with the same
numbers, at once, and no claim is made of any of them. A tree in which somebody might be served or push others
aside, or would have something kept for it, is none of these: there claims are looked at one by one
(`lines.py`), which comes to the same for whoever waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World
from batuta.quota.counters import Counters, Opening
from batuta.quota.glance import Glance
from batuta.quota.ledger import Ledger
from batuta.quota.reservation import Keeper
from batuta.quota.roll import Roll
from batuta.quota.row_claims import RowClaims
from batuta.quota.said import Numbers, say


class Stuck(NamedTuple):
    """Everybody who waits in some trees, and why."""

    trees: frozenset[int] = frozenset()
    rows: IntArray = np.zeros(0, dtype=np.int64)
    reasons: Sequence[tuple[Reason, Evidence]] = ()
    kept: BoolArray = np.zeros(0, dtype=bool)
    """Whether the row would have quota if that were not kept for another."""


class _Rows(NamedTuple):
    """Those who wait."""

    row: IntArray
    tree: IntArray
    queue: IntArray
    """By its number in a list of queues."""
    cell: IntArray
    needs: IntArray

    def only(self, chosen: BoolArray) -> _Rows:
        return _Rows(*(column[chosen] for column in self))


class Standstill:
    """Compares all who wait with what there is for their queues."""

    def __init__(self, world: World, roll: Roll, ledger: Ledger, keeper: Keeper, claims: RowClaims) -> None:
        self._world, self._roll, self._ledger = world, roll, ledger
        self._keeper, self._claims = keeper, claims

    def find(self, tree_of: Mapping[str, int]) -> Stuck:
        """Finds these trees, given the number of each queue's tree."""
        names = [name for name, part in self._roll.parts.items() if part.waiting]
        trees = np.array([tree_of[name] for name in names], dtype=np.int64)
        moves = np.zeros(1 + max(tree_of.values(), default=0), dtype=bool)
        rows = self._simple(names, trees, moves)
        if not rows.row.size:
            return Stuck()
        cells = len(self._ledger.tree.cells)
        asked, which = np.unique(rows.queue * cells + rows.cell, return_inverse=True)
        pairs = [(names[key // cells], key % cells) for key in asked.tolist()]
        counters = Opening(self._roll, self._ledger, self._keeper).counters(pairs)
        kept = self._look(names, rows, counters.at(which), moves)
        stays = ~moves[rows.tree]
        if not stays.any():
            return Stuck()
        rows, which, kept = rows.only(stays), which[stays], kept[stays]
        self._note(names, rows.only(kept))
        reasons = self._say(rows.needs, which, counters, kept)
        return Stuck(frozenset(rows.tree.tolist()), rows.row, reasons, kept)

    def _simple(self, names: list[str], trees: IntArray, moves: BoolArray) -> _Rows:
        """Those of trees in which everybody who waits has one way to get quota; the others move."""
        roll, parts = self._roll, self._roll.parts
        moves[trees[[parts[name].strict or not parts[name].plain for name in names]]] = True
        lines = [parts[name].waiting for name in names]
        row = np.fromiter((row for line in lines for row in line), np.int64)
        queue = np.repeat(np.arange(len(names)), [len(line) for line in lines])
        rows = _Rows(row, trees[queue], queue, roll.cell[row], roll.amount[row])
        odd = rows.cell < 0
        if self._claims.without:
            odd |= np.isin(row, list(self._claims.without))
        moves[rows.tree[odd]] = True
        return rows.only(~moves[rows.tree])

    def _look(self, names: list[str], rows: _Rows, found: Counters, moves: BoolArray) -> BoolArray:
        """Notes the trees in which something moves; returns who would have what is kept for another."""
        jobs, needs = self._world.jobs, rows.needs
        possible = needs <= found.most
        fits = possible & (needs <= found.left)
        pushes = jobs.priority[rows.row] >= found.pushes_from
        reclaims = found.reclaims & (needs <= found.own)
        doubtful = possible & (pushes | reclaims | (self._claims.due[rows.row] & ~found.looked_after))
        kept = possible & found.keeps & (needs <= found.free)
        moves[rows.tree[fits]] = True
        if kept.any():
            moves[rows.tree[kept & (self._claims.ends_by_row_s[rows.row] <= found.needed_s)]] = True
        doubtful &= ~moves[rows.tree]
        glances = [self._glance(name) for name in names] if doubtful.any() else []
        for tree, queue, row in np.stack((rows.tree, rows.queue, rows.row), axis=1)[doubtful].tolist():
            if not moves[tree] and glances[queue].hopeless(row) is None:
                moves[tree] = True
        return kept

    def _glance(self, name: str) -> Glance:
        return Glance(name, self._roll, self._ledger, self._keeper, self._claims)

    def _note(self, names: list[str], kept: _Rows) -> None:
        """Somebody's end was compared with when something is needed."""
        queues = self._ledger.tree.queues
        for queue, row in zip(kept.queue.tolist(), kept.row.tolist(), strict=True):
            self._keeper.note(queues[names[queue]], row)

    def _say(
        self, needs: IntArray, which: IntArray, found: Counters, kept: BoolArray
    ) -> list[tuple[Reason, Evidence]]:
        """Those who are told the same are told the very same."""
        sizes, size = np.unique(needs, return_inverse=True)
        asked, alike = np.unique((which * len(sizes) + size) * 2 + kept, return_inverse=True)
        asked, is_kept = np.divmod(asked, 2)
        at, amounts = found.at(asked // len(sizes)), sizes[asked % len(sizes)]
        own = np.maximum(at.own, 0)
        lends = np.maximum(at.left - own, 0)
        numbers = Numbers(is_kept > 0, at.cell, amounts, at.free, own, at.nominal, lends, at.most)
        words = say(self._ledger.tree.cells, numbers)
        return [words[number] for number in alike.tolist()]
