"""Whom a claim may push aside: the fewest that will do, least harm first.

Queues that borrow give back before the claim's own queue is asked; then the lowest priority goes, then who
loses the least work, then the newest. What turns out not to be needed in the end is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from batuta.core.quota import ClusterQueue, Quota, Reclaim, Within
from batuta.quota.claim import Claim
from batuta.quota.holders import Holders
from batuta.quota.tree import Amounts, Node


class Cause(Enum):
    """Why somebody had to go, by Kueue's names."""

    WITHIN_QUEUE = "InClusterQueue"
    RECLAIMED = "InCohortReclamation"
    RECLAIMED_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    FAIR_SHARING = "InCohortFairSharing"


class Victim(NamedTuple):
    """Somebody who has to go."""

    claim: Claim
    cause: Cause


@dataclass(frozen=True, slots=True)
class Want:
    """Who wants what. `short` are the cells in which others have to go."""

    claim: Claim
    usage: Amounts
    short: Amounts

    @property
    def queue(self) -> Node:
        return self.claim.queue

    def fits(self, may_borrow: bool = True) -> bool:
        queue = self.queue
        if not may_borrow and any(queue.borrows_with(cell, n) for cell, n in self.usage.items()):
            return False
        return queue.fits(self.usage)


class _Candidate(NamedTuple):
    claim: Claim
    cause: Cause
    ancestor: Node | None
    """The smallest cohort that has both queues; None within one queue."""
    never_borrows: bool = False
    """It may be pushed aside only by a claim that stays within its queue's own quota."""


def harm(claim: Claim, asker: Node) -> tuple[bool, int, float, float]:
    """Sorts those that could go: who goes first comes first."""
    return (claim.queue is asker, claim.priority, claim.lost_s, -claim.since)


def may_push_aside(asker: Claim, other: Claim, rule: Within | Reclaim) -> bool:
    """Whether priorities allow it, and it is not just changing."""
    if other.stays:
        return False
    if rule is Reclaim.ANY:
        return True
    if rule is Within.LOWER_OR_NEWER_EQUAL_PRIORITY and asker.priority == other.priority:
        return asker.place < other.place
    return rule not in (Within.NEVER, Reclaim.NEVER) and asker.priority > other.priority


class ClassicVictims:
    """Reclaims what is lent and pushes aside lower priorities, whatever each queue's share is."""

    def __init__(self, quota: Quota, holders: Holders) -> None:
        self._quota, self._holders = quota, holders

    def find(self, want: Want) -> list[Victim]:
        queue = self._quota.queue_of[want.queue.name]
        own = self._in_queue(want, queue)
        near, far = self._in_cohorts(
            want, queue, queue.preemption.while_borrowing or _could_stay_within(want, own)
        )
        if not (own or near or far):
            return []
        candidates = [
            *sorted(near, key=lambda one: harm(one.claim, want.queue)),
            *sorted(far, key=lambda one: harm(one.claim, want.queue)),
            *sorted(own, key=lambda one: harm(one.claim, want.queue)),
        ]
        for may_borrow in self._attempts(want, queue, bool(near), bool(far)):
            found = self._try(want, candidates, may_borrow)
            if found:
                return found
        return []

    def _attempts(self, want: Want, queue: ClusterQueue, near: bool, far: bool) -> tuple[bool, ...]:
        """Whether the claim may borrow afterwards: what is tried first, and then."""
        forbidden = not queue.preemption.while_borrowing
        if not (near or far) or (forbidden and not _below_nominal(want)):
            return (True,)
        if forbidden and not near:
            return (False, True)
        return (True, False)

    def _try(self, want: Want, candidates: list[_Candidate], may_borrow: bool) -> list[Victim]:
        gone: list[Victim] = []
        found = False
        for one in candidates:
            if not _can_go(one, want, may_borrow):
                continue
            one.claim.queue.remove(one.claim.usage)
            gone.append(Victim(one.claim, one.cause))
            if want.fits(may_borrow):
                give_back(want, gone, lambda: want.fits(may_borrow))
                found = True
                break
        for victim in gone:
            victim.claim.queue.add(victim.claim.usage)
        return gone if found else []

    def _in_queue(self, want: Want, queue: ClusterQueue) -> list[_Candidate]:
        rule, asker, short = queue.preemption.within, want.claim, want.short
        if rule is Within.NEVER:
            return []
        equals = rule is Within.LOWER_OR_NEWER_EQUAL_PRIORITY
        if self._holders.lowest(queue.name) >= asker.priority + equals:
            return []
        # Most have a priority that is too high, so that is looked at first.
        return [
            _Candidate(one, Cause.WITHIN_QUEUE, None)
            for one in self._holders[queue.name].values()
            if one.priority <= asker.priority
            and not one.stays
            and may_push_aside(asker, one, rule)
            and one.uses(short)
        ]

    def _in_cohorts(
        self, want: Want, queue: ClusterQueue, look_far: bool
    ) -> tuple[list[_Candidate], list[_Candidate]]:
        """Those in queues that borrow: first where the claim only takes what a cohort around it owns.

        The others have to go only for a claim that stays within its queue's quota, or may borrow all the
        same; where it can do neither, nobody has to be looked for.
        """
        near: list[_Candidate] = []
        far: list[_Candidate] = []
        if queue.preemption.reclaim is Reclaim.NEVER:
            return near, far
        fits, rest = _fit_in(want.queue, want.usage)
        skip: Node = want.queue
        for cohort in want.queue.path():
            if fits or look_far:
                found = near if fits else far
                for node in _borrowers(cohort, skip, want.short):
                    found.extend(self._of(want, queue, node, cohort, fits))
            here, rest = _fit_in(cohort, rest)
            fits = fits or here
            skip = cohort
        return near, far

    def _of(
        self, want: Want, queue: ClusterQueue, node: Node, ancestor: Node, owns: bool
    ) -> Iterator[_Candidate]:
        rules = queue.preemption
        for one in self._holders[node.name].values():
            if not one.uses(want.short) or not may_push_aside(want.claim, one, rules.reclaim):
                continue
            if owns:
                yield _Candidate(one, Cause.RECLAIMED, ancestor)
            elif (
                not rules.while_borrowing
                or one.priority >= want.claim.priority
                or (rules.max_priority is not None and one.priority > rules.max_priority)
            ):
                yield _Candidate(one, Cause.RECLAIMED, ancestor, never_borrows=True)
            else:
                yield _Candidate(one, Cause.RECLAIMED_WHILE_BORROWING, ancestor)


def give_back(want: Want, gone: list[Victim], fits: Callable[[], bool]) -> None:
    """Lets those stay that need not go, the ones that were taken last but one first."""
    for i in range(len(gone) - 2, -1, -1):
        claim = gone[i].claim
        claim.queue.add(claim.usage)
        if fits():
            gone[i] = gone[-1]
            gone.pop()
        else:
            claim.queue.remove(claim.usage)


def _could_stay_within(want: Want, own: list[_Candidate]) -> bool:
    """Whether the claim would stay within its queue's quota if all went that may go from there."""
    queue = want.queue
    return all(
        queue.usage.get(cell, 0) - sum(one.claim.usage.get(cell, 0) for one in own) + amount
        <= queue.subtree.get(cell, 0)
        for cell, amount in want.usage.items()
    )


def _below_nominal(want: Want) -> bool:
    node = want.queue
    return all(
        node.usage.get(cell, 0) < (node.limits[cell].nominal if cell in node.limits else 0)
        for cell in want.short
    )


def _fit_in(node: Node, amounts: Amounts) -> tuple[bool, Amounts]:
    """Whether so much more fits in what a node owns, and what it would have to ask its parent for."""
    fits = not any(node.borrows_with(cell, amount) for cell, amount in amounts.items())
    return fits, {cell: max(0, amount - node.local_left(cell)) for cell, amount in amounts.items()}


def _borrowers(cohort: Node, skip: Node, cells: Amounts) -> Iterable[Node]:
    """The queues below that borrow; within a cohort that does not borrow as a whole there are none."""
    for child in cohort.children:
        if child is skip or child.is_within(cells):
            continue
        if child.is_queue:
            yield child
        else:
            yield from _borrowers(child, skip, cells)


def _can_go(one: _Candidate, want: Want, may_borrow: bool) -> bool:
    """Whether it still borrows, now that others are gone."""
    if one.ancestor is None:
        return True
    if may_borrow and one.never_borrows:
        return False
    node: Node | None = one.claim.queue
    while node is not None and node is not one.ancestor:
        if node.is_within(want.short):
            return False
        node = node.parent
    return True
