"""Quota that is kept for those who have waited long, so that smaller jobs do not pass them for ever.

What is left of its queue's quota is set aside for the first such claim. Another one may still have it if it
will have ended by the time at which the claim could start at the earliest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from batuta.quota.claim import Claim
from batuta.quota.demand import counts_gpus
from batuta.quota.flavors import Assignment, Mode
from batuta.quota.ledger import Ledger
from batuta.quota.refusal import Refusal, Why
from batuta.quota.tree import Amounts, Node


class Release(NamedTuple):
    """Somebody who has quota now, and when it will end."""

    ends_s: float
    queue: Node
    usage: Amounts


class _Kept(NamedTuple):
    """What is set aside for a claim, and from when on it is needed."""

    claim: Claim
    amounts: Amounts
    from_s: float


class Keeper:
    """Sets quota aside, for one claim per queue at most, and only what belongs to its queue."""

    def __init__(
        self,
        ledger: Ledger,
        ends_s: Callable[[Claim], float],
        releases: Callable[[Node], Sequence[Release]],
    ) -> None:
        """`releases` says what is given back in a tree, the soonest first."""
        self._ledger, self._ends_s, self._releases = ledger, ends_s, releases
        self._kept: dict[Node, _Kept | None] = {}
        """By queue; None where nothing is left to keep."""
        self._too_long: dict[tuple[Node, Hashable], tuple[float, Hashable]] = {}
        """By queue and shape: who ends later than this would delay others, and somebody who was told so."""
        self.denied: dict[Hashable, Refusal] = {}
        """Those who would have quota if nothing were kept for others, by key."""

    def keep(self, claim: Claim, assignment: Assignment) -> None:
        """Sets aside what is left of what a claim needs, if it has waited long enough and will ever fit."""
        queue = claim.queue
        if not claim.due or queue in self._kept or assignment.mode is Mode.NO_FIT:
            return
        amounts = {
            cell: max(0, min(amount, queue.left(cell), queue.subtree.get(cell, 0) - queue.usage.get(cell, 0)))
            for cell, amount in assignment.usage.items()
        }
        self._kept[queue] = None
        if any(amounts.values()):
            from_s = self._earliest_s(claim, assignment.usage)
            queue.add(amounts)
            self._kept[queue] = _Kept(claim, amounts, from_s)

    def give_up(self, queue: Node) -> None:
        """Keeps nothing for this queue's first claim any more."""
        kept = self._kept.pop(queue, None)
        if kept is not None:
            queue.remove(kept.amounts)

    def kept_in(self, queue: Node) -> Amounts:
        """What is set aside of a queue's quota."""
        kept = self._kept.get(queue)
        return {} if kept is None else kept.amounts

    def lets_in(self, claim: Claim) -> bool:
        """Gives a claim quota that is set aside for another of its queue, if it does not delay that one."""
        kept = self._kept.get(claim.queue)
        if kept is None:
            return False
        with _without(kept):
            found = self._ledger.fit(claim)
            if found is None:
                return False
            if self._ends_s(claim) > kept.from_s:
                self.denied[claim.key] = self._in_numbers(claim, found.usage)
                self._too_long[claim.queue, claim.shape] = kept.from_s, claim.key
                return False
            self._ledger.admit(claim, found)
            return True

    def denies(self, claim: Claim) -> bool:
        """Whether it is known already, from another just like it, that this one would delay somebody."""
        known = self._too_long.get((claim.queue, claim.shape)) if self._too_long else None
        if known is None or self._ends_s(claim) <= known[0]:
            return False
        self.denied[claim.key] = self.denied[known[1]]
        return True

    def look_again(self, root: Node) -> None:
        """Something was given back in a tree: what was known there may be so no more."""
        self._too_long = {key: known for key, known in self._too_long.items() if key[0].root is not root}

    def forget(self) -> None:
        """Nothing is set aside any more: growth may have it, for that can be taken back at any time."""
        for kept in self._kept.values():
            if kept is not None:
                kept.claim.queue.remove(kept.amounts)
        self._kept.clear()

    def _in_numbers(self, claim: Claim, usage: Amounts) -> Refusal:
        """What a claim needs, and what would be left to it if nothing were kept."""
        cells = self._ledger.tree.cells
        cell = next((cell for cell in usage if counts_gpus(cells[cell].resource)), next(iter(usage)))
        left = claim.queue.left(cell)
        return Refusal(Why.WAITING_FOR_QUOTA, "", cells[cell], usage[cell], left)

    def _earliest_s(self, claim: Claim, usage: Amounts) -> float:
        """When so many of those who have quota will have ended that the claim fits.

        At any moment, if it cannot be said: then nobody may have what is kept for it.
        """
        queue = claim.queue
        gone: list[Release] = []
        found_s = -math.inf
        for one in self._releases(queue.root):
            one.queue.remove(one.usage)
            gone.append(one)
            if queue.fits(usage):
                found_s = one.ends_s
                break
        for one in gone:
            one.queue.add(one.usage)
        return found_s


@contextmanager
def _without(kept: _Kept) -> Iterator[None]:
    """As if nothing were kept."""
    kept.claim.queue.remove(kept.amounts)
    try:
        yield
    finally:
        kept.claim.queue.add(kept.amounts)
