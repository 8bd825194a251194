"""Quota that was cut under jobs that hold it: who has to go so that nobody is above what it may use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from batuta.quota.claim import Claim
from batuta.quota.ledger import Ledger
from batuta.quota.tree import Node
from batuta.quota.victims import harm


def cut(ledger: Ledger, queues: Iterable[str], may_go: Callable[[Claim], bool]) -> list[Claim]:
    """Releases claims until the limits of these queues hold, least harm first; who need not go stays."""
    gone: list[Claim] = []
    for node in map(ledger.tree.queues.__getitem__, queues):
        for cell in [cell for cell, used in node.usage.items() if used]:
            if node.left(cell) < 0:
                gone.extend(_bring_down(ledger, node, cell, may_go))
    return gone


def _bring_down(ledger: Ledger, node: Node, cell: int, may_go: Callable[[Claim], bool]) -> list[Claim]:
    candidates = [
        claim
        for queue in _those_above(node, cell)
        for claim in ledger.holders[queue.name].values()
        if claim.usage.get(cell, 0) > 0 and may_go(claim)
    ]
    gone: list[Claim] = []
    for claim in sorted(candidates, key=lambda one: harm(one, node)[1:]):
        if node.left(cell) >= 0:
            break
        claim.queue.remove(claim.usage)
        gone.append(claim)
    for claim in gone[-2::-1]:
        claim.queue.add(claim.usage)
        if node.left(cell) >= 0:
            gone.remove(claim)
        else:
            claim.queue.remove(claim.usage)
    for claim in gone:
        claim.queue.add(claim.usage)
        ledger.release(claim)
    return gone


def _those_above(node: Node, cell: int) -> list[Node]:
    """The queues to take from: the queue itself if it is above its own limit, else those that borrow from
    the cohort that is short.
    """
    limits = node.limits.get(cell)
    own = node.subtree.get(cell, 0)
    if node.parent is None or (
        limits is not None and limits.borrowing is not None and node.usage[cell] > own + limits.borrowing
    ):
        return [node]
    short = [above for above in node.path() if above.left(cell) < 0]
    below = list((short[-1] if short else node.root).queues())
    borrowing = [queue for queue in below if queue.borrows_with(cell, 0)]
    return borrowing or below
