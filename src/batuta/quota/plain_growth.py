"""What jobs of plain trees may have above their `min`: as `growth.py`, in columns where nobody can borrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from batuta.core.admission import Budget
from batuta.core.arrays import IntArray, Partitions
from batuta.core.quota import MILLI
from batuta.core.world import World
from batuta.quota.growth import Growers, grow
from batuta.quota.ledger import Ledger
from batuta.quota.plain_books import PlainBooks
from batuta.quota.plain_quota import PlainQuota
from batuta.quota.plain_rows import PlainRows
from batuta.quota.tree import Tree


class PlainGrowth:
    """Growth in plain trees, from what the `min`s leave."""

    def __init__(
        self,
        world: World,
        tree: Tree,
        quota: PlainQuota,
        rows: PlainRows,
        books: PlainBooks,
        place: IntArray,
    ) -> None:
        """`place` is by row its place among those of its tree."""
        self._world, self._tree, self._quota = world, tree, quota
        self._rows, self._books, self._place = rows, books, place

    def budgets(self, trees: Sequence[int], cap: IntArray) -> Iterator[tuple[int, str, Budget]]:
        """Budgets for those that cannot all have what they may have alone, with their trees and queues.

        Their rows are places in their trees.
        """
        quota, books = self._quota, self._books
        rows, queue = self._growers()
        low = self._world.jobs.min[rows]
        wants = cap[rows] - low
        wanting = wants > 0
        rows, queue, low, wants = rows[wanting], queue[wanting], low[wanting], wants[wanting]
        groups = Partitions(np.bincount(queue, minlength=len(quota.names)), quota.nominal)
        wanted, least = groups.sums(wants), groups.sums(low)
        # What belongs to a queue is its own to grow into.
        granted = np.maximum(np.minimum(wanted, books.own // MILLI), 0)
        own = books.own - granted * MILLI
        rest = books.rest - quota.trees.sums(granted) * MILLI
        short = granted < wanted
        room = np.minimum(rest[quota.at], own + quota.borrows) // MILLI
        # Where less is left than belongs to somebody, or something is left that can be lent.
        odd = (quota.trees.sums(short & (room > 0)) > 0) | (rest < 0)
        lending = [number for number in trees if odd[quota.place_of[number]]]
        yield from self._lend(lending, cap)
        given = (least + granted).tolist()
        places, starts = self._place[rows], [*groups.starts.tolist(), len(rows)]
        number_at = {quota.place_of[number]: number for number in trees}
        chosen = np.flatnonzero(short & ~odd[quota.at])
        for at, one in zip(quota.at[chosen].tolist(), chosen.tolist(), strict=True):
            if at in number_at:
                own_places = places[starts[one] : starts[one + 1]]
                yield number_at[at], quota.names[one], Budget(own_places, given[one])

    def _growers(self) -> tuple[IntArray, IntArray]:
        """Those that may have another size, queue by queue, the oldest first; and their queues."""
        running, waiting, served = self._rows.running, self._rows.waiting, self._books.served
        rows = np.concatenate((running.row[~running.still], waiting.row[served]))
        queue = np.concatenate((running.queue[~running.still], waiting.queue[served]))
        order = np.lexsort((rows, queue))
        return rows[order], queue[order]

    def _lend(self, trees: Sequence[int], cap: IntArray) -> Iterator[tuple[int, str, Budget]]:
        """The same where something is lent: in the books of the tree, by whoever borrows the least."""
        if not trees:
            return
        quota, tree = self._quota, self._tree
        rows, queue = self._growers()
        bounds = np.searchsorted(queue, np.arange(len(quota.names) + 1)).tolist()
        listed = rows.tolist()
        growers: list[Growers] = []
        number_of: dict[str, int] = {}
        for number in trees:
            queues = quota.trees.rows(quota.place_of[number])
            for one in range(queues.start, queues.stop):
                node = tree.queues[quota.names[one]]
                node.add({int(quota.cell[one]): int(quota.nominal[one] - self._books.own[one])})
                own = listed[bounds[one] : bounds[one + 1]]
                growers.append(Growers(node, dict.fromkeys(own, quota.flavors[one])))
                number_of[node.name] = number
        for node, budget in grow(self._world, Ledger(self._world.effective_quota, tree), growers, cap):
            yield number_of[node.name], node.name, Budget(self._place[budget.rows], budget.gpus)
