"""The tree of cohorts and queues, and what is left where.

A node keeps back what its lending limit does not let out (`local`); the rest of its quota is its parent's to
give to any child. What a node uses above `local` counts in its parent too, and so on up to the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from batuta.core.quota import MILLI, FlavorResource, Limits, Quota, flavor_resources_of

Amounts = dict[int, int]  # by the number of a flavor resource (`fr`, as in Kueue): whole thousandths
_NOTHING = Limits()


@dataclass(slots=True, eq=False)
class Node:
    """A queue or a cohort with its quota and use, flavor resource by flavor resource."""

    name: str
    is_queue: bool
    weight: float = 1.0
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    limits: dict[int, Limits] = field(default_factory=dict)
    subtree: Amounts = field(default_factory=dict)  # its own quota, and what its children may lend
    local: Amounts = field(default_factory=dict)  # the part of it that is not lent to any queue; missing for none
    usage: Amounts = field(default_factory=dict)
    height: int = 0  # steps down to the farthest queue
    _most: Amounts = field(default_factory=dict)

    def path(self) -> Iterator[Node]:
        """The cohorts above it, from the nearest to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator[Node]:
        """Itself, and all nodes in the tree below it."""
        yield self
        for child in self.children:
            yield from child.below()

    def queues(self) -> Iterator[Node]:
        """The queues in the tree below it; itself, if it is one."""
        return (node for node in self.below() if node.is_queue)

    @property
    def root(self) -> Node:
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def local_left(self, fr: int) -> int:
        return max(0, self.local.get(fr, 0) - self.usage.get(fr, 0))

    def left(self, fr: int) -> int:
        """What it could use more, without preemption; below 0 after quota was cut."""
        # Asked more often than anything else, so it is spared what most nodes do not have.
        parent = self.parent
        if parent is None:
            return self.subtree.get(fr, 0) - self.usage.get(fr, 0)
        above, usage = parent.left(fr), self.usage.get(fr, 0)
        local = self.local.get(fr, 0) if self.local else 0
        limits = self.limits.get(fr)
        if limits is not None and limits.borrowing is not None:
            own = self.subtree.get(fr, 0) - local
            above = min(above, own - max(0, usage - local) + limits.borrowing)
        return above if usage >= local else local - usage + above

    def most(self, fr: int) -> int:
        """What it could use if no other used anything. That does not change with use, so it is stored."""
        known = self._most.get(fr)
        if known is not None:
            return known
        subtree, parent = self.subtree.get(fr, 0), self.parent
        most = subtree
        if parent is not None:
            most = self.local.get(fr, 0) + parent.most(fr)
            borrowing = self.limits.get(fr, _NOTHING).borrowing
            if borrowing is not None:
                most = min(most, subtree + borrowing)
        self._most[fr] = most
        return most

    def borrows_with(self, fr: int, amount: int) -> bool:
        """Whether it would use more than its own with so much more."""
        return self.usage.get(fr, 0) + amount > self.subtree.get(fr, 0)

    @property
    def borrows(self) -> bool:
        """Whether it uses more than its own of anything."""
        usage = self.usage
        return any(usage.get(fr, 0) > own for fr, own in self.subtree.items())

    def is_within(self, frs: Mapping[int, object]) -> bool:
        """Whether it borrows nothing of these."""
        usage, subtree = self.usage, self.subtree
        return all(usage.get(fr, 0) <= subtree.get(fr, 0) for fr in frs)

    def add(self, amounts: Amounts) -> None:
        for fr, amount in amounts.items():
            self._add(fr, amount)

    def _add(self, fr: int, amount: int) -> None:
        node: Node | None = self
        while node is not None and amount:
            used = node.usage.get(fr, 0)
            node.usage[fr] = used + amount
            if node.local:
                amount = max(0, amount - max(0, node.local.get(fr, 0) - used))
            node = node.parent

    def remove(self, amounts: Amounts) -> None:
        for fr, amount in amounts.items():
            self._remove(fr, amount)

    def _remove(self, fr: int, amount: int) -> None:
        node: Node | None = self
        while node is not None and amount > 0:
            above = node.usage.get(fr, 0) - node.local.get(fr, 0)
            node.usage[fr] = node.usage.get(fr, 0) - amount
            amount = min(amount, above)
            node = node.parent

    @contextmanager
    def without(self, amounts: Amounts) -> Iterator[None]:
        """As if so much of what it uses were not used."""
        self.remove(amounts)
        try:
            yield
        finally:
            self.add(amounts)

    def fits(self, amounts: Amounts) -> bool:
        """Whether so much more is left. Nothing at all fits even where more is used than there is."""
        return all(amount <= 0 or amount <= self.left(fr) for fr, amount in amounts.items())

    def level(self, fr: int, amount: int) -> tuple[int, bool]:
        """How far up so much more has to be borrowed (0: not), and whether others beyond may use what belongs here."""
        if self.parent is None or not self.borrows_with(fr, amount):
            return 0, self.parent is not None
        rest = amount - self.local_left(fr)
        top = self.parent
        for top in self.path():
            if not top.borrows_with(fr, rest):
                return top.height, top.parent is not None
            rest -= top.local_left(fr)
        return top.height, False


class QuotaTree:
    """All queues and cohorts. Cells are numbered, because numbers are cheap to look up."""

    __slots__ = ("broken", "cohorts", "fr_number", "frs", "queues")

    def __init__(self, quota: Quota) -> None:
        self.frs: list[FlavorResource] = []
        self.fr_number: dict[FlavorResource, int] = {}
        self.queues: dict[str, Node] = {}
        self.cohorts: dict[str, Node] = {}
        self.broken: set[str] = set()  # cohorts that are their own ancestors; their queues start nothing
        self._plant(quota)
        for node in (*self.cohorts.values(), *self.queues.values()):
            if node.parent is None:
                self._sum_up(node)

    def _plant(self, quota: Quota) -> None:
        for cohort in quota.cohorts:
            node = self.cohorts[cohort.name] = Node(cohort.name, is_queue=False, weight=cohort.weight)
            node.limits = {self.number(fr): limits for fr, limits in flavor_resources_of(cohort.groups)}
        for queue in quota.cluster_queues:
            node = self.queues[queue.name] = Node(queue.name, is_queue=True, weight=queue.weight)
            node.limits = {self.number(fr): limits for fr, limits in flavor_resources_of(queue.groups)}
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
        subtree = {fr: limits.nominal for fr, limits in node.limits.items()}
        for child in node.children:
            self._sum_up(child)
            node.height = max(node.height, child.height + 1)
            for fr, amount in child.subtree.items():
                lent = amount - child.local.get(fr, 0)
                subtree[fr] = subtree.get(fr, 0) + lent
        node.subtree = subtree
        for fr, limits in node.limits.items():
            if limits.lending is not None and node.parent is not None:
                node.local[fr] = max(0, subtree[fr] - limits.lending)

    def clear(self) -> None:
        """Sets all usage to nothing."""
        for node in (*self.cohorts.values(), *self.queues.values()):
            node.usage.clear()

    def number(self, fr: FlavorResource) -> int:
        found = self.fr_number.get(fr)
        if found is None:
            found = self.fr_number[fr] = len(self.frs)
            self.frs.append(fr)
        return found


def borrowed_by(node: Node, fr: int) -> int:
    """What a node uses above its own quota and that of the nodes below it."""
    return max(0, node.usage.get(fr, 0) - node.subtree.get(fr, 0)) if node.parent is not None else 0


def idle_of(node: Node, fr: int) -> int:
    """What a node may lend and does not use itself."""
    kept = max(node.usage.get(fr, 0), node.local.get(fr, 0))
    return max(0, node.subtree.get(fr, 0) - kept)


def lent_in(tree: QuotaTree) -> dict[Node, Amounts]:
    """By node: what those outside of it use of its quota and that of the nodes below it."""
    lent: dict[Node, Amounts] = {node: {} for node in chain(tree.cohorts.values(), tree.queues.values())}
    for root in tree.cohorts.values():
        if root.parent is None:
            for fr in root.subtree:
                _hand_out(root, fr, 0, lent)
    return lent


def _hand_out(node: Node, fr: int, outside: int, lent: dict[Node, Amounts]) -> None:
    """Finds who gives what is borrowed within a cohort, and what those outside of it have."""
    if outside:
        lent[node][fr] = outside
    if node.is_queue:
        return
    own = node.limits[fr].nominal if fr in node.limits else 0
    wanted = outside + sum(borrowed_by(child, fr) for child in node.children)
    idle = [idle_of(child, fr) for child in node.children]
    for child, part in zip(node.children, split(max(0, wanted - own), idle), strict=True):
        _hand_out(child, fr, part, lent)


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
