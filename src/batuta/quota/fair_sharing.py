"""Fair sharing: how much a queue or cohort borrows for its weight, and whom that lets preempt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from batuta.core.quota import FlavorResource, Quota, Reclaim, Within
from batuta.quota.preemption import (
    PreemptionContext,
    PreemptionReason,
    PreemptionTarget,
    fill_back,
    may_preempt,
    preemption_cost,
)
from batuta.quota.tree import Amounts, Node
from batuta.quota.workload import AdmittedWorkloads, Workload

_PER_MILLE = 1000


class Share(NamedTuple):
    """The largest part of what its cohort could lend that a node borrows, of any resource, by its weight.

    Without weight a node that borrows stands behind all that have some. In thousandths, as Kueue has it, so
    that what is a tie there is one here.
    """

    weightless: bool = False
    part: float = 0.0


_NONE = Share()


class Shares:
    """Works out shares. What a cohort could lend does not depend on use, so it is kept."""

    def __init__(self, frs: list[FlavorResource]) -> None:
        self._frs = frs
        self._lendable: dict[int, dict[str, int]] = {}

    def of(self, node: Node) -> Share:
        parent = node.parent
        if parent is None:
            return _NONE
        borrowed: dict[str, int] = {}
        usage = node.usage
        for fr, own in node.subtree.items():
            over = usage.get(fr, 0) - own
            if over > 0:
                resource = self._frs[fr].resource
                borrowed[resource] = borrowed.get(resource, 0) + over
        if not borrowed:
            return _NONE
        lendable = self._lent_by(parent)
        parts = (_PER_MILLE * over / lendable[name] for name, over in borrowed.items() if lendable.get(name))
        part = max(parts, default=0.0)
        if not node.weight:
            return Share(weightless=part > 0, part=part)
        return Share(part=part / node.weight)

    def _lent_by(self, cohort: Node) -> dict[str, int]:
        found = self._lendable.get(id(cohort))
        if found is None:
            found = self._lendable[id(cohort)] = {}
            for fr in cohort.root.subtree:
                resource = self._frs[fr].resource
                found[resource] = found.get(resource, 0) + cohort.most(fr)
        return found


class FairSharingPreemption:
    """Pushes aside borrowers whose share is larger than the workload's own would become.

    A workload that stays within its queue's own quota takes that back from any borrower. For others there are
    two rules, one after the other: the workload's share with what it wants is at most the other's share
    without the preemption target; and, if that does not suffice, below the other's share as it is.
    """

    def __init__(self, quota: Quota, admitted: AdmittedWorkloads, shares: Shares) -> None:
        self._quota, self._admitted, self._shares = quota, admitted, shares

    def find(self, context: PreemptionContext) -> list[PreemptionTarget]:
        candidates = self._candidates(context)
        if not candidates:
            return []
        gone: list[PreemptionTarget] = []
        context.queue.add(context.usage)
        later: list[Workload] = []
        found = self._by_final_share(context, candidates, gone, later)
        if not found:
            found = self._by_initial_share(context, later, gone)
        context.queue.remove(context.usage)
        if found:
            fill_back(gone, context.fits)
        for target in gone:
            target.workload.queue.add(target.workload.usage)
        return gone if found else []

    def _candidates(self, context: PreemptionContext) -> list[Workload]:
        rules, own = self._quota.queue_of[context.queue.name].preemption, context.queue
        found: list[Workload] = []
        if rules.within is not Within.NEVER:
            found.extend(self._allowed(context, own, rules.within))
        if own.parent is not None and rules.reclaim is not Reclaim.NEVER:
            for queue in own.root.queues():
                if queue is not own and not queue.is_within(context.short):
                    found.extend(self._allowed(context, queue, rules.reclaim))
        return sorted(found, key=lambda workload: preemption_cost(workload, own))

    def _allowed(self, context: PreemptionContext, queue: Node, rule: Within | Reclaim) -> Iterator[Workload]:
        for one in self._admitted[queue.name].values():
            if one.uses(context.short) and may_preempt(context.workload, one, rule):
                yield one

    def _by_final_share(
        self,
        context: PreemptionContext,
        candidates: list[Workload],
        gone: list[PreemptionTarget],
        later: list[Workload],
    ) -> bool:
        targets = _TargetQueues(context.queue, candidates, self._shares)
        takes_back = context.queue.is_within(context.short)
        while (queue := targets.next()) is not None:
            if queue is context.queue or takes_back:
                reason = PreemptionReason.WITHIN_QUEUE if queue is context.queue else PreemptionReason.RECLAIMED
                if self._push(context, targets.pop(queue), reason, gone):
                    return True
                continue
            ours, theirs = _below_common(context.queue, queue)
            share = self._shares.of(ours)
            while targets.has(queue):
                workload = targets.pop(queue)
                workload.queue.remove(workload.usage)
                after = self._shares.of(theirs)
                workload.queue.add(workload.usage)
                if share <= after:
                    if self._push(context, workload, PreemptionReason.FAIR_SHARING, gone):
                        return True
                    # Shares have changed, so another queue may be next.
                    break
                later.append(workload)
        return False

    def _by_initial_share(
        self, context: PreemptionContext, candidates: list[Workload], gone: list[PreemptionTarget]
    ) -> bool:
        targets = _TargetQueues(context.queue, candidates, self._shares)
        while (queue := targets.next()) is not None:
            ours, theirs = _below_common(context.queue, queue)
            below = self._shares.of(ours) < self._shares.of(theirs)
            if below and self._push(context, targets.pop(queue), PreemptionReason.FAIR_SHARING, gone):
                return True
            targets.drop(queue)
        return False

    def _push(
        self, context: PreemptionContext, workload: Workload, reason: PreemptionReason, gone: list[PreemptionTarget]
    ) -> bool:
        """Takes one away; whether the workload fits now, without what was added for the comparison."""
        workload.queue.remove(workload.usage)
        gone.append(PreemptionTarget(workload, reason))
        context.queue.remove(context.usage)
        fits = context.fits()
        context.queue.add(context.usage)
        return fits


class _TargetQueues:
    """The queues that have candidates, the one with the largest share first, level by level of the tree."""

    def __init__(self, own: Node, candidates: list[Workload], shares: Shares) -> None:
        self._own, self._shares = own, shares
        self._path = set(map(id, own.path()))
        self._waiting: dict[int, list[Workload]] = {}
        for workload in reversed(candidates):
            self._waiting.setdefault(id(workload.queue), []).append(workload)
        self._pruned: set[int] = set()

    def has(self, queue: Node) -> bool:
        return bool(self._waiting.get(id(queue)))

    def pop(self, queue: Node) -> Workload:
        return self._waiting[id(queue)].pop()

    def drop(self, queue: Node) -> None:
        self._waiting.pop(id(queue), None)

    def next(self) -> Node | None:
        if self._own.parent is None:
            return self._own if self.has(self._own) else None
        root = self._own.root
        while id(root) not in self._pruned:
            found = self._below(root)
            if found is not None:
                return found
        return None

    def _below(self, cohort: Node) -> Node | None:
        best_queue: Node | None = None
        best_cohort: Node | None = None
        queue_share = cohort_share = Share(part=-1.0)
        for child in cohort.children:
            if id(child) in self._pruned:
                continue
            share = self._shares.of(child)
            if child.is_queue:
                if not self.has(child) or (not child.borrows and child is not self._own):
                    self._pruned.add(id(child))
                elif share > queue_share or (share == queue_share and self._first(child, best_queue)):
                    best_queue, queue_share = child, share
            elif not child.borrows and id(child) not in self._path:
                self._pruned.add(id(child))
            elif share >= cohort_share:
                best_cohort, cohort_share = child, share
        if best_queue is None and best_cohort is None:
            self._pruned.add(id(cohort))
            return None
        if best_cohort is not None and cohort_share >= queue_share:
            return self._below(best_cohort)
        return best_queue

    def _first(self, one: Node, other: Node | None) -> bool:
        if other is None:
            return True
        ours, theirs = self._waiting[id(one)][-1], self._waiting[id(other)][-1]
        return preemption_cost(ours, self._own) < preemption_cost(theirs, self._own)


def _below_common(one: Node, other: Node) -> tuple[Node, Node]:
    """The two ancestors, or the queues themselves, right below the smallest cohort that has both."""
    above = {id(node) for node in one.path()}
    theirs = other
    while theirs.parent is not None and id(theirs.parent) not in above:
        theirs = theirs.parent
    ours = one
    while ours.parent is not theirs.parent and ours.parent is not None:
        ours = ours.parent
    return ours, theirs


def with_added(node: Node, amounts: Amounts, shares: Shares) -> list[tuple[bool, Share]]:
    """By node from a queue to the root, with so much more in use: whether it would borrow, and its share."""
    node.add(amounts)
    found = [
        (
            one.parent is not None and any(amount > 0 and one.borrows_with(fr, 0) for fr, amount in amounts.items()),
            shares.of(one),
        )
        for one in (node, *node.path())
    ]
    node.remove(amounts)
    return found
