"""Whom a workload may preempt: the fewest that will do, the cheapest first.

Queues that borrow give back before the workload's own queue is asked; then the lowest priority goes, then who
loses the least work, then the newest. What turns out not to be needed in the end is given back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.quota import ClusterQueue, Quota, Reclaim, Within
from batuta.core.weigh import lost_work_s
from batuta.core.world import World
from batuta.quota.tree import Amounts, Node
from batuta.quota.workload import AdmittedWorkloads, Workload

if TYPE_CHECKING:
    from batuta.quota.snapshot import QuotaState


class PreemptionReason(Enum):
    """Why a workload was preempted, by Kueue's names."""

    WITHIN_QUEUE = "InClusterQueue"
    RECLAIMED = "InCohortReclamation"
    RECLAIMED_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    FAIR_SHARING = "InCohortFairSharing"


class PreemptionTarget(NamedTuple):
    """A workload that has to go."""

    workload: Workload
    reason: PreemptionReason


@dataclass(frozen=True, slots=True)
class PreemptionContext:
    """What a workload wants. `short` are the flavor resources in which others have to go."""

    workload: Workload
    usage: Amounts
    short: Amounts

    @property
    def queue(self) -> Node:
        return self.workload.queue

    def fits(self, may_borrow: bool = True) -> bool:
        queue = self.queue
        if not may_borrow and any(queue.borrows_with(fr, n) for fr, n in self.usage.items()):
            return False
        return queue.fits(self.usage)


class _Candidate(NamedTuple):
    workload: Workload
    reason: PreemptionReason
    ancestor: Node | None  # the smallest cohort that has both queues; None within one queue
    never_borrows: bool = False  # it may be preempted only by a workload that stays within its queue's own quota


def preemption_cost(workload: Workload, asker: Node) -> tuple[bool, int, float, float]:
    """Sort key of preemption targets: the one that goes first comes first."""
    return (workload.queue is asker, workload.priority, workload.lost_s, -workload.since)


def may_preempt(asker: Workload, other: Workload, rule: Within | Reclaim) -> bool:
    """Whether priorities allow it, and it is not just changing."""
    if other.stays:
        return False
    if rule is Reclaim.ANY:
        return True
    if rule is Within.LOWER_OR_NEWER_EQUAL_PRIORITY and asker.priority == other.priority:
        return asker.place < other.place
    return rule not in (Within.NEVER, Reclaim.NEVER) and asker.priority > other.priority


class ClassicPreemption:
    """Reclaims what is lent and pushes aside lower priorities, whatever each queue's share is."""

    def __init__(self, quota: Quota, admitted: AdmittedWorkloads) -> None:
        self._quota, self._admitted = quota, admitted

    def find(self, context: PreemptionContext) -> list[PreemptionTarget]:
        queue = self._quota.queue_of[context.queue.name]
        own = self._in_queue(context, queue)
        near, far = self._in_cohorts(
            context, queue, queue.preemption.while_borrowing or _could_stay_within(context, own)
        )
        if not (own or near or far):
            return []
        candidates = [
            one
            for group in (near, far, own)
            for one in sorted(group, key=lambda one: preemption_cost(one.workload, context.queue))
        ]
        for may_borrow in self._attempts(context, queue, bool(near), bool(far)):
            found = self._try(context, candidates, may_borrow)
            if found:
                return found
        return []

    def _attempts(self, context: PreemptionContext, queue: ClusterQueue, near: bool, far: bool) -> tuple[bool, ...]:
        """Whether the workload may borrow afterwards: what is tried first, and then."""
        forbidden = not queue.preemption.while_borrowing
        if not (near or far) or (forbidden and not _below_nominal(context)):
            return (True,)
        if forbidden and not near:
            return (False, True)
        return (True, False)

    def _try(
        self, context: PreemptionContext, candidates: list[_Candidate], may_borrow: bool
    ) -> list[PreemptionTarget]:
        gone: list[PreemptionTarget] = []
        found = False
        for one in candidates:
            if not _can_go(one, context, may_borrow):
                continue
            one.workload.queue.remove(one.workload.usage)
            gone.append(PreemptionTarget(one.workload, one.reason))
            if context.fits(may_borrow):
                fill_back(gone, lambda: context.fits(may_borrow))
                found = True
                break
        for target in gone:
            target.workload.queue.add(target.workload.usage)
        return gone if found else []

    def _in_queue(self, context: PreemptionContext, queue: ClusterQueue) -> list[_Candidate]:
        rule, asker, short = queue.preemption.within, context.workload, context.short
        if rule is Within.NEVER:
            return []
        equals = rule is Within.LOWER_OR_NEWER_EQUAL_PRIORITY
        if self._admitted.lowest(queue.name) >= asker.priority + equals:
            return []
        # Most have a priority that is too high, so that is looked at first.
        return [
            _Candidate(one, PreemptionReason.WITHIN_QUEUE, None)
            for one in self._admitted[queue.name].values()
            if one.priority <= asker.priority and not one.stays and may_preempt(asker, one, rule) and one.uses(short)
        ]

    def _in_cohorts(
        self, context: PreemptionContext, queue: ClusterQueue, look_far: bool
    ) -> tuple[list[_Candidate], list[_Candidate]]:
        """Those in queues that borrow: first where the workload only takes what a cohort around it owns.

        The others have to go only for a workload that stays within its queue's quota, or may borrow all the
        same; where it can do neither, there is none to look for.
        """
        near: list[_Candidate] = []
        far: list[_Candidate] = []
        if queue.preemption.reclaim is Reclaim.NEVER:
            return near, far
        fits, rest = _fit_in(context.queue, context.usage)
        skip: Node = context.queue
        for cohort in context.queue.path():
            if fits or look_far:
                found = near if fits else far
                for node in _borrowers(cohort, skip, context.short):
                    found.extend(self._of(context, queue, node, cohort, fits))
            here, rest = _fit_in(cohort, rest)
            fits = fits or here
            skip = cohort
        return near, far

    def _of(
        self, context: PreemptionContext, queue: ClusterQueue, node: Node, ancestor: Node, owns: bool
    ) -> Iterator[_Candidate]:
        rules = queue.preemption
        for one in self._admitted[node.name].values():
            if not one.uses(context.short) or not may_preempt(context.workload, one, rules.reclaim):
                continue
            if owns:
                yield _Candidate(one, PreemptionReason.RECLAIMED, ancestor)
            elif (
                not rules.while_borrowing
                or one.priority >= context.workload.priority
                or (rules.max_priority is not None and one.priority > rules.max_priority)
            ):
                yield _Candidate(one, PreemptionReason.RECLAIMED, ancestor, never_borrows=True)
            else:
                yield _Candidate(one, PreemptionReason.RECLAIMED_WHILE_BORROWING, ancestor)


def fill_back(gone: list[PreemptionTarget], fits: Callable[[], bool]) -> None:
    """Lets those stay that need not go, the ones that were taken last but one first."""
    for i in range(len(gone) - 2, -1, -1):
        workload = gone[i].workload
        workload.queue.add(workload.usage)
        if fits():
            gone[i] = gone[-1]
            gone.pop()
        else:
            workload.queue.remove(workload.usage)


def _could_stay_within(context: PreemptionContext, own: list[_Candidate]) -> bool:
    """Whether the workload would stay within its queue's quota if all went that may go from there."""
    queue = context.queue
    return all(
        queue.usage.get(fr, 0) - sum(one.workload.usage.get(fr, 0) for one in own) + amount <= queue.subtree.get(fr, 0)
        for fr, amount in context.usage.items()
    )


def _below_nominal(context: PreemptionContext) -> bool:
    node = context.queue
    return all(node.usage.get(fr, 0) < (node.limits[fr].nominal if fr in node.limits else 0) for fr in context.short)


def _fit_in(node: Node, amounts: Amounts) -> tuple[bool, Amounts]:
    """Whether so much more fits in what a node owns, and what it would have to ask its parent for."""
    fits = not any(node.borrows_with(fr, amount) for fr, amount in amounts.items())
    return fits, {fr: max(0, amount - node.local_left(fr)) for fr, amount in amounts.items()}


def _borrowers(cohort: Node, skip: Node, frs: Amounts) -> Iterable[Node]:
    """The queues below that borrow; within a cohort that does not borrow as a whole there are none."""
    for child in cohort.children:
        if child is skip or child.is_within(frs):
            continue
        if child.is_queue:
            yield child
        else:
            yield from _borrowers(child, skip, frs)


def _can_go(one: _Candidate, context: PreemptionContext, may_borrow: bool) -> bool:
    """Whether it still borrows, now that others are gone."""
    if one.ancestor is None:
        return True
    if may_borrow and one.never_borrows:
        return False
    node: Node | None = one.workload.queue
    while node is not None and node is not one.ancestor:
        if node.is_within(context.short):
            return False
        node = node.parent
    return True


def evict_over_quota(state: QuotaState, queues: Iterable[str], may_go: Callable[[Workload], bool]) -> list[Workload]:
    """Releases workloads until the limits of these queues hold, the cheapest first; who need not go stays."""
    gone: list[Workload] = []
    for node in map(state.tree.queues.__getitem__, queues):
        for fr in [fr for fr, used in node.usage.items() if used]:
            if node.left(fr) < 0:
                gone.extend(_evict_from(state, node, fr, may_go))
    return gone


def _evict_from(state: QuotaState, node: Node, fr: int, may_go: Callable[[Workload], bool]) -> list[Workload]:
    candidates = [
        workload
        for queue in _over_quota_queues(node, fr)
        for workload in state.admitted[queue.name].values()
        if workload.usage.get(fr, 0) > 0 and may_go(workload)
    ]
    gone: list[Workload] = []
    for workload in sorted(candidates, key=lambda one: preemption_cost(one, node)[1:]):
        if node.left(fr) >= 0:
            break
        workload.queue.remove(workload.usage)
        gone.append(workload)
    for workload in gone[-2::-1]:
        workload.queue.add(workload.usage)
        if node.left(fr) >= 0:
            gone.remove(workload)
        else:
            workload.queue.remove(workload.usage)
    for workload in gone:
        workload.queue.add(workload.usage)
        state.release(workload)
    return gone


def _over_quota_queues(node: Node, fr: int) -> list[Node]:
    """The queue itself if it is above its own limit, else those that borrow from the cohort that is short."""
    limits = node.limits.get(fr)
    own = node.subtree.get(fr, 0)
    if node.parent is None or (
        limits is not None and limits.borrowing is not None and node.usage[fr] > own + limits.borrowing
    ):
        return [node]
    short = [above for above in node.path() if above.left(fr) < 0]
    below = list((short[-1] if short else node.root).queues())
    borrowing = [queue for queue in below if queue.borrows_with(fr, 0)]
    return borrowing or below


def lost_gpu_s(world: World, row: int, now_s: float) -> float:
    """GPU seconds that are lost if a job has to stop: work since its last checkpoint, and the restart."""
    jobs = world.jobs
    gpus = int(jobs.held[row])  # replicas of a CPU-only job: its seconds are weighed alike
    curve = jobs.jobs[row].curve
    speed = curve.at(gpus) or 1.0
    return gpus * (lost_work_s(world, row, now_s) / speed + float(jobs.restart_s[row]))


def predicted_ends_s(world: World, now_s: float) -> FloatArray:
    """When each job would end if it had its `min` from now on, by what is known of its work."""
    jobs = world.jobs
    left_s = np.maximum(jobs.remaining_s - jobs.rate * (now_s - jobs.anchor_s), 0.0)
    speed = jobs.speed().at(jobs.min)
    starts_s = np.where(jobs.held > 0, 0.0, jobs.restart_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends_s: FloatArray = np.where(speed > 0, now_s + starts_s + left_s / speed, math.inf)
    return ends_s
