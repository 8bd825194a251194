"""The tree of cohorts and queues, and what is left where.

A node keeps back what its lending limit does not let out (`local`); the rest of its quota is its parent's to
give to any child. What a node uses above `local` counts in its parent too, and so on up to the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from batuta.core.quota import Cell, Limits, Quota, cells_of

Amounts = dict[int, int]
"""By the number of a cell: whole thousandths."""
_NOTHING = Limits()


@dataclass(slots=True, eq=False)
class Node:
    """A queue or a cohort with its quota and use, cell by cell."""

    name: str
    is_queue: bool
    weight: float = 1.0
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    limits: dict[int, Limits] = field(default_factory=dict)
    subtree: Amounts = field(default_factory=dict)
    """Its own quota, and what its children may lend."""
    local: Amounts = field(default_factory=dict)
    """The part of it that is not lent to anybody; missing for none."""
    usage: Amounts = field(default_factory=dict)
    height: int = 0
    """Steps down to the farthest queue."""
    _most: Amounts = field(default_factory=dict)

    def path(self) -> Iterator[Node]:
        """The cohorts above it, from the nearest to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def queues(self) -> Iterator[Node]:
        """The queues in the tree below it; itself, if it is one."""
        if self.is_queue:
            yield self
        for child in self.children:
            yield from child.queues()

    @property
    def root(self) -> Node:
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def local_left(self, cell: int) -> int:
        return max(0, self.local.get(cell, 0) - self.usage.get(cell, 0))

    def left(self, cell: int) -> int:
        """What it could use more, without taking anything from anybody; below 0 after quota was cut."""
        # Asked more often than anything else, so it is spared what most nodes do not have.
        parent = self.parent
        if parent is None:
            return self.subtree.get(cell, 0) - self.usage.get(cell, 0)
        above, usage = parent.left(cell), self.usage.get(cell, 0)
        local = self.local.get(cell, 0) if self.local else 0
        limits = self.limits.get(cell)
        if limits is not None and limits.borrowing is not None:
            own = self.subtree.get(cell, 0) - local
            above = min(above, own - max(0, usage - local) + limits.borrowing)
        return above if usage >= local else local - usage + above

    def most(self, cell: int) -> int:
        """What it could use if nobody else used anything. That does not change with use, so it is kept."""
        known = self._most.get(cell)
        if known is not None:
            return known
        subtree, parent = self.subtree.get(cell, 0), self.parent
        most = subtree
        if parent is not None:
            most = self.local.get(cell, 0) + parent.most(cell)
            borrowing = self.limits.get(cell, _NOTHING).borrowing
            if borrowing is not None:
                most = min(most, subtree + borrowing)
        self._most[cell] = most
        return most

    def borrows_with(self, cell: int, amount: int) -> bool:
        """Whether it would use more than its own with so much more."""
        return self.usage.get(cell, 0) + amount > self.subtree.get(cell, 0)

    @property
    def borrows(self) -> bool:
        """Whether it uses more than its own of anything."""
        usage = self.usage
        return any(usage.get(cell, 0) > own for cell, own in self.subtree.items())

    def is_within(self, cells: Mapping[int, object]) -> bool:
        """Whether it borrows nothing of these."""
        usage, subtree = self.usage, self.subtree
        return all(usage.get(cell, 0) <= subtree.get(cell, 0) for cell in cells)

    def add(self, amounts: Amounts) -> None:
        for cell, amount in amounts.items():
            self._add(cell, amount)

    def _add(self, cell: int, amount: int) -> None:
        node: Node | None = self
        while node is not None and amount:
            used = node.usage.get(cell, 0)
            node.usage[cell] = used + amount
            if node.local:
                amount = max(0, amount - max(0, node.local.get(cell, 0) - used))
            node = node.parent

    def remove(self, amounts: Amounts) -> None:
        for cell, amount in amounts.items():
            self._remove(cell, amount)

    def _remove(self, cell: int, amount: int) -> None:
        node: Node | None = self
        while node is not None and amount > 0:
            above = node.usage.get(cell, 0) - node.local.get(cell, 0)
            node.usage[cell] = node.usage.get(cell, 0) - amount
            amount = min(amount, above)
            node = node.parent

    def fits(self, amounts: Amounts) -> bool:
        """Whether so much more is left. Nothing at all fits even where more is used than there is."""
        return all(amount <= 0 or amount <= self.left(cell) for cell, amount in amounts.items())

    def level(self, cell: int, amount: int) -> tuple[int, bool]:
        """How far up the tree so much more has to be borrowed (0: not at all), and whether that leaves
        a larger cohort around it, in which others may use what belongs here.
        """
        if self.parent is None or not self.borrows_with(cell, amount):
            return 0, self.parent is not None
        rest = amount - self.local_left(cell)
        top = self.parent
        for top in self.path():
            if not top.borrows_with(cell, rest):
                return top.height, top.parent is not None
            rest -= top.local_left(cell)
        return top.height, False


class Tree:
    """All queues and cohorts. Cells are numbered, because numbers are cheap to look up."""

    __slots__ = ("broken", "cell_of", "cells", "cohorts", "queues")

    def __init__(self, quota: Quota) -> None:
        self.cells: list[Cell] = []
        self.cell_of: dict[Cell, int] = {}
        self.queues: dict[str, Node] = {}
        self.cohorts: dict[str, Node] = {}
        self.broken: set[str] = set()
        """Cohorts that are their own ancestors; their queues start nothing."""
        self._plant(quota)
        for node in (*self.cohorts.values(), *self.queues.values()):
            if node.parent is None:
                self._sum_up(node)

    def _plant(self, quota: Quota) -> None:
        for cohort in quota.cohorts:
            node = self.cohorts[cohort.name] = Node(cohort.name, is_queue=False, weight=cohort.weight)
            node.limits = {self.number(cell): limits for cell, limits in cells_of(cohort.groups)}
        for queue in quota.cluster_queues:
            node = self.queues[queue.name] = Node(queue.name, is_queue=True, weight=queue.weight)
            node.limits = {self.number(cell): limits for cell, limits in cells_of(queue.groups)}
        for cohort in quota.cohorts:
            if cohort.parent:
                self._hang(self.cohorts[cohort.name], cohort.parent)
        for queue in quota.cluster_queues:
            if queue.cohort:
                self._hang(self.queues[queue.name], queue.cohort)

    def _hang(self, node: Node, parent: str) -> None:
        """Puts a node under a cohort, which may be there by this name alone."""
        above = self.cohorts.get(parent)
        if above is None:
            above = self.cohorts[parent] = Node(parent, is_queue=False)
        if not node.is_queue and (above is node or node in above.path()):
            self.broken.update((node.name, above.name))
            return
        node.parent = above
        above.children.append(node)

    def _sum_up(self, node: Node) -> None:
        subtree = {cell: limits.nominal for cell, limits in node.limits.items()}
        for child in node.children:
            self._sum_up(child)
            node.height = max(node.height, child.height + 1)
            for cell, amount in child.subtree.items():
                lent = amount - child.local.get(cell, 0)
                subtree[cell] = subtree.get(cell, 0) + lent
        node.subtree = subtree
        for cell, limits in node.limits.items():
            if limits.lending is not None and node.parent is not None:
                node.local[cell] = max(0, subtree[cell] - limits.lending)

    def clear(self) -> None:
        """Nobody uses anything any more."""
        for node in (*self.cohorts.values(), *self.queues.values()):
            node.usage.clear()

    def number(self, cell: Cell) -> int:
        found = self.cell_of.get(cell)
        if found is None:
            found = self.cell_of[cell] = len(self.cells)
            self.cells.append(cell)
        return found
