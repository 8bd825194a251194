"""What is seen of the jobs of a queue at a glance, before anybody searches for quota for them."""

from __future__ import annotations

from batuta.quota.ledger import Ledger
from batuta.quota.refusal import Refusal
from batuta.quota.reservation import Keeper
from batuta.quota.roll import Roll
from batuta.quota.row_claims import RowClaims


class Glance:
    """Who of one queue cannot be served now.

    Most jobs that wait are answered here, so what is found out for one is kept for the others until something
    changes in the books.
    """

    def __init__(self, name: str, roll: Roll, ledger: Ledger, keeper: Keeper, claims: RowClaims) -> None:
        self.queue = ledger.tree.queues[name]
        self._part = roll.parts[name]
        self._roll, self._ledger, self._keeper, self._claims = roll, ledger, keeper, claims
        self._most: dict[tuple[int, int], int] = {}
        """By priority and cell: more than this nobody could have now."""
        self._short: dict[int, Refusal] = {}
        """By cell: what is said to those who ask for more."""

    def renew(self) -> None:
        """Something may have changed in the books."""
        self._most.clear()
        self._short.clear()

    def hopeless(self, row: int) -> Refusal | None:
        """Why a job cannot have quota now, where that is seen at a glance.

        It would have to borrow what is not there, however many of its own queue were pushed aside for it.
        """
        ask = self._roll.ask_of[row]
        if not self._part.plain or len(ask.kinds) != 1 or row in self._claims.without:
            return None
        priority = self._roll.priorities[row]
        for cell, amount in ask.usage.items():
            most = self._most.get((priority, cell))
            if most is None:
                most = self._most[priority, cell] = self._could_have(priority, cell)
            if amount > most:
                return self._refusal(cell, amount)
        return None

    def delays(self, row: int) -> bool:
        """Whether it is known already that a job would delay one for which quota is kept."""
        if row in self._claims.without:
            return False
        return self._keeper.denies(self.queue, id(self._roll.ask_of[row]), row)

    def _could_have(self, priority: int, cell: int) -> int:
        """What is left to borrow or of its own, and what others of its queue would give up or have kept."""
        queue, part = self.queue, self._part
        own = queue.subtree.get(cell, 0) - queue.usage.get(cell, 0)
        # What is kept for another one might still be had, by a job that is short.
        aside = self._keeper.kept_in(queue).get(cell, 0) + self._roll.could_go(part, priority).get(cell, 0)
        return max(queue.left(cell), own) + aside

    def _refusal(self, cell: int, amount: int) -> Refusal:
        known = self._short.get(cell)
        if known is not None:
            return known.for_needs(amount)
        known = self._short[cell] = self._ledger.why(self.queue, cell, amount)
        return known
