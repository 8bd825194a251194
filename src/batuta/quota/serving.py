"""Quota for those who wait, as far as no search is needed: own quota first, then those who waited long."""

from __future__ import annotations

from collections.abc import Callable

from batuta.quota.claim import Claim
from batuta.quota.glance import Glance
from batuta.quota.ledger import Ledger
from batuta.quota.own_quota import NOBODY, Filled, fill, serve_own
from batuta.quota.refusal import Refusal
from batuta.quota.reservation import Keeper
from batuta.quota.roll import Roll
from batuta.quota.row_claims import RowClaims
from batuta.quota.row_line import RowLine


class Serving:
    """Serves the lines of all queues, and hands on those who need more than their queue's own quota."""

    def __init__(self, roll: Roll, ledger: Ledger, keeper: Keeper, claims: RowClaims) -> None:
        self._roll, self._ledger, self._keeper, self._claims = roll, ledger, keeper, claims
        self._glances: dict[str, Glance] = {}
        self.told: dict[int, Refusal] = {}
        """Why those wait for whom something is kept."""

    def serve(self) -> None:
        """Gives out what belongs to each queue, and what those get who have waited long."""
        self._serve_own()
        # Now it is known what is left in each cohort, and so what can be done for those who have waited long.
        self._serve_due()
        for name in self._roll.parts:
            if name in self._ledger.holders:
                # Somebody has looked already, so some are missing.
                for row, claim in self._claims.fresh(name).items():
                    self._ledger.holders[name].setdefault(row, claim)

    def line(self, name: str) -> RowLine:
        """Those of a queue who need a closer look."""
        roll, part = self._roll, self._roll.parts[name]
        glance, claim = self._glance(name), self._claims.waiting
        return RowLine(part.strict, part.waiting, roll.ask_of, roll.priorities, claim, glance)

    def let_in(self, claim: Claim) -> None:
        """Notes that a claim has got its quota."""
        self._claims.new[claim.queue.name][claim.row] = claim.flavors

    def _serve_own(self) -> None:
        """Serves each line from what belongs to its queue."""
        roll, queues, stuck = self._roll, self._ledger.tree.queues, self._claims.without
        parts = {name: part for name, part in roll.parts.items() if part.waiting}
        lines = [part.waiting for part in parts.values()]
        filled = [NOBODY] * len(parts)
        if not stuck:
            filled = fill([queues[name] for name in parts], lines, roll.cell, roll.amount)
        for (name, part), own in zip(parts.items(), filled, strict=True):
            stops = self._claims.blocks if not part.strict else _always
            self._serve_line(name, part.waiting, stops, filled=own)

    def _serve_due(self) -> None:
        """Looks at those who have waited long, and let nobody pass, before anybody else may borrow.

        What is left of its queue's quota is kept for each of them. Who gets what it needs lets the line go
        on, and so does who can get nothing now. If others would have to give way for it, that is for later.
        """
        roll, ledger = self._roll, self._ledger
        lines = {name for name, part in roll.parts.items() if part.waiting and not part.strict}
        while lines:
            heads = [(name, first) for name in roll.parts if name in lines and (first := self._blocked(name))]
            hopeful: list[tuple[str, list[int]]] = []
            for name, first in heads:
                if not self._passes_by(name, first):
                    self._keep_for(first[-1], name)
                    hopeful.append((name, first))
            lines = set()
            for name, first in sorted(hopeful, key=lambda head: (-roll.priorities[head[1][-1]], head[1][-1])):
                queue = ledger.tree.queues[name]
                self._keeper.give_up(queue)
                if self._passes_by(name, first):
                    continue
                claim = self._claims.waiting(first[-1], queue)
                if (found := ledger.fit(claim)) is not None:
                    ledger.admit(claim, found)
                    self.let_in(claim)
                    rest = roll.parts[name].waiting[len(first) :]
                    self._serve_line(name, rest, self._claims.blocks, first[:-1])
                    lines.add(name)

    def _passes_by(self, name: str, first: list[int]) -> bool:
        """Whether the last of the `first` can get nothing now.

        Then what is left is kept for it, and the line goes on.
        """
        glance = self._glance(name)
        glance.renew()
        refusal = glance.hopeless(first[-1])
        if refusal is None:
            return False
        # In its own numbers, not in those that count what is kept for it as used.
        self.told[first[-1]] = refusal
        self._keep_for(first[-1], name)
        self._serve_line(name, self._roll.parts[name].waiting[len(first) :], _never, first)
        return True

    def _blocked(self, name: str) -> list[int]:
        """The rows of a line up to the first that lets nobody pass; none if there is no such row."""
        rows = self._roll.parts[name].waiting
        at = next((at for at, row in enumerate(rows) if self._claims.blocks(row)), None)
        return [] if at is None else rows[: at + 1]

    def _keep_for(self, row: int, name: str) -> None:
        """Sets aside what is left of its queue's quota for a job, if it can ever have what it needs."""
        ask = self._roll.ask_of[row]
        queue = self._ledger.tree.queues[name]
        if all(amount <= queue.most(cell) for cell, amount in ask.usage.items()):
            self._keeper.keep(queue, ask.usage)

    def _serve_line(
        self,
        name: str,
        rows: list[int],
        stops: Callable[[int], bool],
        first: list[int] | None = None,
        filled: Filled = NOBODY,
    ) -> None:
        """Serves rows of a queue that stand behind the `first` ones."""
        roll, node = self._roll, self._ledger.tree.queues[name]
        least = roll.priorities[first[-1]] if first else None
        without = self._claims.without
        served = serve_own(node, rows, roll.ask_of, roll.priorities, without, stops, least, filled)
        if served.rows:
            self._claims.new[name].update({row: roll.ask_of[row].flavors for row in served.rows})
        roll.parts[name].waiting = (first or []) + served.left

    def _glance(self, name: str) -> Glance:
        found = self._glances.get(name)
        if found is None:
            found = Glance(name, self._roll, self._ledger, self._keeper, self._claims)
            self._glances[name] = found
        return found


def _always(row: int) -> bool:
    return True


def _never(row: int) -> bool:
    return False
