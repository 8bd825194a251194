"""One look at the jobs of plain trees, in the light of quota: at all of them at once.

It does what `tree_round.py` does for any tree, and leaves the trees to that in which more has to be done than
to serve lines from their queues' own quota.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World
from batuta.quota.answers import Answers, New
from batuta.quota.census import Census
from batuta.quota.memory import Memory
from batuta.quota.past import Past, Timing
from batuta.quota.plain_books import Heads, PlainBooks
from batuta.quota.plain_growth import PlainGrowth
from batuta.quota.plain_rows import PlainRows
from batuta.quota.said import Numbers, say
from batuta.quota.tree import Tree


class PlainRound:
    """Gives out quota in plain trees."""

    def __init__(
        self,
        world: World,
        now_s: float,
        trees: Sequence[int],
        census: Census,
        tree: Tree,
        memory: Memory,
    ) -> None:
        """All of these trees have to be plain."""
        self._world, self._now_s, self._census, self._tree = world, now_s, census, tree
        self._asked_for, self._quota = trees, memory.plain
        self.trees: list[int] = []
        """Those in which nothing else has to be done."""
        self._rows = PlainRows(world, now_s, tree, trees, census, memory)
        self._books = PlainBooks(self._quota, self._rows, lambda: census.ends_s)

    def serve(self) -> dict[int, Answers]:
        """Who gets quota and who waits, by tree."""
        heads = self._books.settle()
        places = self._quota.place_of
        self.trees = [number for number in self._asked_for if self._rows.settled[places[number]]]
        return self._answers(heads) if self.trees else {}

    def grow(self, cap: IntArray, answers: Mapping[int, Answers]) -> None:
        """Works out what those who have quota may grow to, given the largest size that each may have."""
        for number in self.trees:
            answers[number].grown_from = cap[self._census.rows[number]]
            answers[number].budgets = {}
        if not self.trees:
            return
        self._books.forget_what_is_kept()
        place = self._census.place
        growth = PlainGrowth(self._world, self._tree, self._quota, self._rows, self._books, place)
        for number, queue, budget in growth.budgets(self.trees, cap):
            answers[number].budgets[queue] = [budget]

    def as_past(self, answers: Mapping[int, Answers]) -> dict[int, Past]:
        """What is worth remembering of each tree."""
        census = self._census
        if self._now_s <= 0:
            return {}
        timing = self._timing()
        return {
            number: Past(census.seen[number], census.things(number), timing.get(number), answers[number])
            for number in self.trees
        }

    def _timing(self) -> dict[int, Timing]:
        """Whose ends were compared, by tree in which that was so."""
        place, rows, books = self._census.place, self._rows, self._books
        waiting, running = rows.waiting, rows.running
        asked = np.flatnonzero(books.would_have & (books.needed_by[waiting.queue] >= 0))
        bounds = self._bounds(waiting.queue[asked])
        found: dict[int, Timing] = {}
        for number in self.trees:
            at = self._quota.place_of[number]
            own = asked[bounds[at] : bounds[at + 1]]
            if own.size:
                until = books.needed_by[waiting.queue[own]]
                listed, order = books.releases(at)
                first = order[: int(until.max()) + 1]
                later = np.ones(len(own), dtype=bool)
                found[number] = Timing(
                    place[running.row[listed]], first, place[waiting.row[own]], until, later
                )
        return found

    def _answers(self, heads: Heads) -> dict[int, Answers]:
        census, rows, quota = self._census, self._rows, self._quota
        waiting, running, served = rows.waiting, rows.running, self._books.served
        left = np.flatnonzero(~served)
        cap = self._caps(left)
        refused: list[int] = census.place[waiting.row[left]].tolist()
        reasons = self._say(heads, left)
        waits = self._bounds(waiting.queue[left])
        held = list(zip(census.place[running.row].tolist(), running.flavors, strict=True))
        has = self._bounds(running.queue)
        new = self._new()
        found: dict[int, Answers] = {}
        for number in self.trees:
            at = quota.place_of[number]
            own, queues = slice(waits[at], waits[at + 1]), quota.trees.rows(at)
            found[number] = Answers(
                cap[census.rows[number]],
                refused[own],
                reasons[own],
                {quota.names[one]: new[one] for one in range(queues.start, queues.stop) if one in new},
                held[has[at] : has[at + 1]],
                {},
                own.stop > own.start,
            )
        for row in rows.no_flavor.tolist():
            number = int(census.tree_of[row])
            if number in found:
                found[number].refused.append(int(census.place[row]))
                found[number].reasons.append((Reason.NO_MATCHING_FLAVOR, ()))
        return found

    def _bounds(self, queue: IntArray) -> list[int]:
        """Where the rows of each tree begin and end, given their queues in order."""
        trees = self._quota.trees
        bounds: list[int] = np.searchsorted(queue, [*trees.starts.tolist(), len(trees.number)]).tolist()
        return bounds

    def _caps(self, left: IntArray) -> IntArray:
        rows, cap = self._rows, self._world.jobs.max.copy()
        cap[rows.waiting.row[left]] = 0
        cap[rows.quiet] = 0
        cap[rows.no_flavor] = 0
        # Also where a policy may change what is in motion, it gets no more than it has.
        still = rows.running.row[rows.running.still]
        cap[still] = np.minimum(cap[still], rows.running.size[rows.running.still])
        return cap

    def _new(self) -> dict[int, New]:
        """By queue: those that get quota."""
        waiting, served = self._rows.waiting, np.flatnonzero(self._books.served)
        places: list[int] = self._census.place[waiting.row[served]].tolist()
        asks = list(map(self._rows.asks.__getitem__, waiting.ask[served].tolist()))
        flavors = [ask.flavors for ask in asks]
        queues, starts = np.unique(waiting.queue[served], return_index=True)
        bounds = [*starts.tolist(), len(places)]
        return {
            queue: New(places[start:end], flavors[start:end], asks[start:end])
            for queue, start, end in zip(queues.tolist(), bounds[:-1], bounds[1:], strict=True)
        }

    def _say(self, heads: Heads, left: IntArray) -> list[tuple[Reason, Evidence]]:
        """Why those wait who are left."""
        quota, books, waiting = self._quota, self._books, self._rows.waiting
        queue, needs, kept = waiting.queue[left], waiting.needs[left], books.would_have[left]
        sizes, size = np.unique(needs, return_inverse=True)
        asked, alike = np.unique((queue * len(sizes) + size) * 2 + kept, return_inverse=True)
        asked, is_kept = np.divmod(asked, 2)
        at, amounts = np.divmod(asked, len(sizes))
        own = np.maximum(books.own, 0)
        lends = np.maximum(books.left - own, 0)
        columns = (books.free[at], own[at], quota.nominal[at], lends[at], quota.most[at])
        words = say(self._tree.cells, Numbers(is_kept > 0, quota.cell[at], sizes[amounts], *columns))
        found = [words[number] for number in alike.tolist()]
        # A head is told in its own numbers, not in those that count what is kept for it as used.
        told = ~books.would_have[heads.at]
        mine = Heads(*(column[told] for column in heads))
        numbers = Numbers(
            np.zeros(len(mine.at), dtype=bool),
            quota.cell[mine.queue],
            waiting.needs[mine.at],
            mine.own,
            mine.own,
            quota.nominal[mine.queue],
            mine.lends,
            quota.most[mine.queue],
        )
        spoken = zip(np.searchsorted(left, mine.at).tolist(), say(self._tree.cells, numbers), strict=True)
        for number, words_of_head in spoken:
            found[number] = words_of_head
        return found
