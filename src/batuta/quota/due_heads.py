"""What is kept for those who have waited long, in trees of cohorts where none of them can be served.

It is what `serving.py` comes to one by one, in plain numbers of one cell. Nothing is booked before it is
known that nobody gets anything; where somebody does, the tree is left as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from batuta.quota.ledger import Ledger
from batuta.quota.refusal import Refusal, Why
from batuta.quota.reservation import UNKNOWN, Keeper, Moment, Release
from batuta.quota.roll import Roll
from batuta.quota.row_claims import RowClaims
from batuta.quota.tree import Node

_NO_LIMIT = 1 << 62


@dataclass(slots=True, eq=False)
class Head:
    """The first of a queue that lets nobody pass, the numbers of its queue, and what becomes of it."""

    queue: Node
    row: int
    priority: int
    needs: int
    spare: int
    """What those of its queue have whom it could push aside."""
    own: int
    """What the queue does not use of its own quota, …"""
    borrows: int
    """… and what it may use beyond that."""
    kept: int = 0
    needed: Moment = UNKNOWN
    """From when on that is needed."""
    looked_after: bool = True
    """Whether something is to be kept for it, were there anything; else others might give way to it."""
    refused: tuple[int, int] | None = None
    """What was left of its queue's own, and to borrow, when it was seen that this is not enough."""


class DueTree:
    """One tree: a cohort whose queues lend all that they have, or a queue alone."""

    def __init__(self, heads: Sequence[Head], releases: Sequence[Release]) -> None:
        """The heads come in the order of their queues, and there is one cell only."""
        self._heads, self._releases = heads, releases
        root = heads[0].queue.root
        [self._cell] = root.subtree
        self._rest = root.left(self._cell)

    def keep(self) -> bool:
        """Finds what is kept for each head; False if one of them can be served."""
        hopeful: list[Head] = []
        for head in self._heads:
            if not self._passes_by(head):
                self._keep_for(head)
                hopeful.append(head)
        for head in sorted(hopeful, key=lambda one: (-one.priority, one.row)):
            self._rest += head.kept
            head.own += head.kept
            head.kept = 0
            if self._passes_by(head):
                continue
            if head.needs <= self._left(head):
                return False
            head.looked_after = False
        return True

    def _passes_by(self, head: Head) -> bool:
        """Whether a head can get nothing now, whoever of its queue were pushed aside."""
        left = self._left(head)
        if head.needs <= max(left, head.own) + head.spare:
            return False
        # What is kept for it is not there any more afterwards, but it is not used either.
        head.refused = max(0, head.own), max(0, left - max(0, head.own))
        self._keep_for(head)
        return True

    def _left(self, head: Head) -> int:
        return min(self._rest, head.own + head.borrows)

    def _keep_for(self, head: Head) -> None:
        kept = min(head.needs, head.own, self._left(head))
        if kept > 0:
            head.needed = self._earliest(head)
            head.kept = kept
            head.own -= kept
            self._rest -= kept

    def _earliest(self, head: Head) -> Moment:
        """When so much will have been given back that the head fits."""
        needs, queue, rest, own = head.needs, head.queue, self._rest, head.own + head.borrows
        for number, one in enumerate(self._releases):
            amount = one.usage.get(self._cell, 0)
            rest += amount
            if one.queue is queue:
                own += amount
            if needs <= rest and needs <= own:
                return Moment(one.ends_s, number)
        return UNKNOWN


class DueHeads:
    """Finds the trees in which a few numbers say it all, and books what is kept there."""

    def __init__(self, roll: Roll, ledger: Ledger, keeper: Keeper, claims: RowClaims) -> None:
        self._roll, self._ledger, self._keeper, self._claims = roll, ledger, keeper, claims

    def keep(self, lines: Set[str]) -> tuple[set[str], dict[int, Refusal]]:
        """Those of these lines for which all is done, and why their heads wait, by row."""
        by_root: dict[Node, list[str]] = {}
        for name in self._roll.parts:
            if name in lines:
                by_root.setdefault(self._ledger.tree.queues[name].root, []).append(name)
        done, told = set[str](), dict[int, Refusal]()
        for root, names in by_root.items():
            heads = self._heads(names) if self._is_simple(root, names) else None
            if heads is None or (heads and not DueTree(heads, self._claims.releases(root)).keep()):
                continue
            done.update(names)
            for head in heads:
                self._book(head)
                if head.refused is not None:
                    told[head.row] = self._why(head)
        return done, told

    def _is_simple(self, root: Node, names: Iterable[str]) -> bool:
        """Whether there is one cell only, all of it is lent, and nobody had to go so far in this round."""
        if self._claims.without or len(root.subtree) != 1 or root.height > 1:
            return False
        if not all(self._roll.parts[name].plain for name in names):
            return False
        return not any(queue.local or queue.name in self._ledger.holders for queue in root.queues())

    def _heads(self, names: Iterable[str]) -> list[Head] | None:
        """The heads of these lines; None if one of them needs more than its queue could ever have."""
        roll, found = self._roll, list[Head]()
        for name in names:
            part, queue = roll.parts[name], self._ledger.tree.queues[name]
            row = next(filter(self._claims.blocks, part.waiting), None)
            if row is None:
                continue
            [(cell, needs)] = roll.ask_of[row].usage.items()
            if needs > queue.most(cell):
                return None
            limits, priority = queue.limits[cell], roll.priorities[row]
            limit = limits.borrowing if queue.parent is not None else None
            found.append(
                Head(
                    queue,
                    row,
                    priority,
                    needs,
                    roll.could_go(part, priority).get(cell, 0),
                    limits.nominal - queue.usage.get(cell, 0),
                    _NO_LIMIT if limit is None else limit,
                )
            )
        return found

    def _book(self, head: Head) -> None:
        if head.looked_after:
            [cell] = head.queue.root.subtree
            self._keeper.set_aside(head.queue, {cell: head.kept} if head.kept else {}, head.needed)

    def _why(self, head: Head) -> Refusal:
        [cell] = head.queue.root.subtree
        assert head.refused is not None
        own, lends = head.refused
        nominal, most = head.queue.limits[cell].nominal, head.queue.most(cell)
        kind = self._ledger.tree.cells[cell]
        return Refusal(Why.WAITING_FOR_QUOTA, "", kind, head.needs, own, nominal, lends, most)
