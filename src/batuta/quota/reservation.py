"""Quota that is kept for those who have waited long, so that smaller jobs do not pass them for ever.

What is left of its queue's quota is set aside for the first such claim. Another one may still have it if it
will have ended by the time at which the claim could start at the earliest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from batuta.core.quota import counts_gpus
from batuta.quota.claim import Claim
from batuta.quota.ledger import Ledger
from batuta.quota.refusal import Refusal, Why
from batuta.quota.tree import Amounts, Node


class Release(NamedTuple):
    """Somebody who has quota now, and when it will end."""

    ends_s: float
    queue: Node
    usage: Amounts
    key: Hashable = None


class Asked(NamedTuple):
    """Somebody who wanted what is kept for another, and whether it would end too late for that."""

    queue: Node
    key: Hashable
    number: int
    """Of the one by whose end it would have to be done, in the order in which quota is given back."""
    later: bool


class Moment(NamedTuple):
    """When enough will have been given back, and by the how manieth; -1 if it cannot be said."""

    from_s: float
    number: int


UNKNOWN = Moment(-math.inf, -1)


class Kept(NamedTuple):
    """What is set aside for the first of a queue, and from when on it is needed."""

    queue: Node
    amounts: Amounts
    needed: Moment


class Keeper:
    """Sets quota aside, for one claim per queue at most, and only what belongs to its queue."""

    def __init__(
        self,
        ledger: Ledger,
        ends_s: Callable[[Hashable], float],
        releases: Callable[[Node], Sequence[Release]],
    ) -> None:
        """`ends_s` says when a claim will have ended, by its key; `releases` what is given back in a tree,
        the soonest first.
        """
        self._ledger, self._ends_s, self._releases = ledger, ends_s, releases
        self.kept: dict[Node, Kept | None] = {}
        """By queue; None where nothing is left to keep."""
        self._too_long: dict[tuple[Node, Hashable], tuple[Moment, Hashable]] = {}
        """By queue and shape: who ends later than this would delay others, and somebody who was told so."""
        self.denied: dict[Hashable, Refusal] = {}
        """Those who would have quota if nothing were kept for others, by key."""
        self.asked: list[Asked] = []
        """Whatever an answer owed to when jobs will end."""

    def keep(self, queue: Node, needs: Amounts) -> None:
        """Sets aside what is left of what somebody of a queue needs, unless something is kept there already.

        That should have waited long enough, and fit at some time.
        """
        if queue in self.kept:
            return
        subtree, usage = queue.subtree, queue.usage
        amounts = {
            cell: max(0, min(amount, subtree.get(cell, 0) - usage.get(cell, 0), queue.left(cell)))
            for cell, amount in needs.items()
        }
        self.kept[queue] = None
        if any(amounts.values()):
            self.kept[queue] = Kept(queue, amounts, self._earliest(queue, needs))
            queue.add(amounts)

    def give_up(self, queue: Node) -> None:
        """Keeps nothing for this queue's first claim any more."""
        kept = self.kept.pop(queue, None)
        if kept is not None:
            queue.remove(kept.amounts)

    def kept_in(self, queue: Node) -> Amounts:
        """What is set aside of a queue's quota."""
        kept = self.kept.get(queue)
        return {} if kept is None else kept.amounts

    def left_without(self, kept: Kept, cell: int) -> int:
        """What a queue would have left if nothing were kept for its first claim."""
        queue = kept.queue
        if not queue.local:
            return queue.left(cell) + kept.amounts.get(cell, 0)
        with _without(kept):
            return queue.left(cell)

    def note(self, queue: Node, key: Hashable) -> None:
        """Somebody was found to end too late to have what is kept for another of its queue."""
        kept = self.kept[queue]
        assert kept is not None
        if kept.needed.number >= 0:
            self.asked.append(Asked(queue, key, kept.needed.number, later=True))

    def lets_in(self, claim: Claim) -> bool:
        """Gives a claim quota that is set aside for another of its queue, if it does not delay that one."""
        kept = self.kept.get(claim.queue)
        if kept is None:
            return False
        with _without(kept):
            found = self._ledger.fit(claim)
            if found is None:
                return False
            if self._ends_later(claim.queue, claim.key, kept.needed):
                self.denied[claim.key] = self._in_numbers(claim, found.usage)
                self._too_long[claim.queue, claim.shape] = kept.needed, claim.key
                return False
            self._ledger.admit(claim, found)
            return True

    def denies(self, queue: Node, shape: Hashable, key: Hashable) -> bool:
        """Whether it is known already, from another just like it, that this one would delay somebody."""
        known = self._too_long.get((queue, shape)) if self._too_long else None
        if known is None or not self._ends_later(queue, key, known[0]):
            return False
        self.denied[key] = self.denied[known[1]]
        return True

    def look_again(self, root: Node) -> None:
        """Something was given back in a tree: what was known there may be so no more."""
        self._too_long = {key: known for key, known in self._too_long.items() if key[0].root is not root}

    def forget(self) -> None:
        """Nothing is set aside any more: growth may have it, for that can be taken back at any time."""
        for kept in self.kept.values():
            if kept is not None:
                kept.queue.remove(kept.amounts)
        self.kept.clear()

    def _ends_later(self, queue: Node, key: Hashable, moment: Moment) -> bool:
        later = self._ends_s(key) > moment.from_s
        if moment.number >= 0:
            self.asked.append(Asked(queue, key, moment.number, later))
        return later

    def _in_numbers(self, claim: Claim, usage: Amounts) -> Refusal:
        """What a claim needs, and what would be left to it if nothing were kept."""
        cells = self._ledger.tree.cells
        cell = next((cell for cell in usage if counts_gpus(cells[cell].resource)), next(iter(usage)))
        left = claim.queue.left(cell)
        return Refusal(Why.WAITING_FOR_QUOTA, "", cells[cell], usage[cell], left)

    def _earliest(self, queue: Node, needs: Amounts) -> Moment:
        """When so many of those who have quota will have ended that so much fits.

        At any moment, if it cannot be said: then nobody may have what is kept for it.
        """
        gone: list[Release] = []
        found = UNKNOWN
        for one in self._releases(queue.root):
            one.queue.remove(one.usage)
            gone.append(one)
            if queue.fits(needs):
                found = Moment(one.ends_s, len(gone) - 1)
                break
        for one in gone:
            one.queue.add(one.usage)
        return found


@contextmanager
def _without(kept: Kept) -> Iterator[None]:
    """As if nothing were kept."""
    kept.queue.remove(kept.amounts)
    try:
        yield
    finally:
        kept.queue.add(kept.amounts)
