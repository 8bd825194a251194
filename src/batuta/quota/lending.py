"""Whose quota it is that others use.

Quota has no owner written on it: a borrower takes from its cohort. So that the numbers add up, what a cohort
gives comes from its own quota first, and then from those that leave theirs idle, in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from batuta.core.quota import MILLI
from batuta.quota.tree import Amounts, Node, Tree


def borrowed_by(node: Node, cell: int) -> int:
    """What a node uses above its own quota and that of the nodes below it."""
    return max(0, node.usage.get(cell, 0) - node.subtree.get(cell, 0)) if node.parent is not None else 0


def idle_of(node: Node, cell: int) -> int:
    """What a node may lend and does not use itself."""
    kept = max(node.usage.get(cell, 0), node.local.get(cell, 0))
    return max(0, node.subtree.get(cell, 0) - kept)


def lent_in(tree: Tree) -> dict[Node, Amounts]:
    """By node: what those outside of it use of its quota and that of the nodes below it."""
    lent: dict[Node, Amounts] = {node: {} for node in chain(tree.cohorts.values(), tree.queues.values())}
    for root in tree.cohorts.values():
        if root.parent is None:
            for cell in root.subtree:
                _hand_out(root, cell, 0, lent)
    return lent


def _hand_out(node: Node, cell: int, outside: int, lent: dict[Node, Amounts]) -> None:
    """Finds who gives what is borrowed within a cohort, and what those outside of it have."""
    if outside:
        lent[node][cell] = outside
    if node.is_queue:
        return
    own = node.limits[cell].nominal if cell in node.limits else 0
    wanted = outside + sum(borrowed_by(child, cell) for child in node.children)
    idle = [idle_of(child, cell) for child in node.children]
    for child, part in zip(node.children, split(max(0, wanted - own), idle), strict=True):
        _hand_out(child, cell, part, lent)


def split(amount: int, idle: Sequence[int]) -> list[int]:
    """Divides an amount in proportion to what each has, and never gives more than that.

    Whole GPUs stay whole. What does not come out even goes to those that come closest to one more, the
    first of equals.
    """
    total = sum(idle)
    if amount >= total:
        return list(idle)
    unit = 1 if any(number % MILLI for number in (amount, *idle)) else MILLI
    parts = [amount * own // (total * unit) * unit for own in idle]
    rest = (amount - sum(parts)) // unit
    closest = sorted(range(len(idle)), key=lambda k: (parts[k] * total - amount * idle[k], k))
    for k in closest[:rest]:
        parts[k] += unit
    return parts
