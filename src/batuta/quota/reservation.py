"""Quota that is reserved for jobs that have waited long, so that smaller ones do not pass them for ever.

What is left of its queue's quota is reserved for the first such workload. Another one may still have it if
it will have ended by the time at which the workload could start at the earliest (backfill).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from batuta.core.quota import counts_gpus
from batuta.quota.reasons import Refusal, Why
from batuta.quota.snapshot import QuotaRelease, QuotaState
from batuta.quota.tree import Amounts, Node
from batuta.quota.workload import Workload


class EndComparison(NamedTuple):
    """A workload that wanted what is reserved for another, and whether it would end too late for that."""

    queue: Node
    key: Hashable
    number: int  # of the one by whose end it would have to be done, in the order in which quota is given back
    later: bool


class ReleaseTime(NamedTuple):
    """When enough will have been given back, and by the how manieth; -1 if it cannot be said."""

    from_s: float
    number: int


UNKNOWN = ReleaseTime(-math.inf, -1)


class Reservation(NamedTuple):
    """What is set aside for the first of a queue, and from when on it is needed."""

    queue: Node
    amounts: Amounts
    needed: ReleaseTime


class Reservations:
    """Reserves quota, for one workload per queue at most, and only what belongs to its queue."""

    def __init__(
        self, state: QuotaState, ends_s: Callable[[Hashable], float], releases: Callable[[Node], Sequence[QuotaRelease]]
    ) -> None:
        """`ends_s`: when a workload, by key, will have ended; `releases`: what a tree gets back, the soonest first."""
        self._state, self._ends_s, self._releases = state, ends_s, releases
        self.reserved: dict[Node, Reservation | None] = {}  # by queue; None where nothing is left to keep
        self._delaying_shapes: dict[tuple[Node, Hashable], tuple[ReleaseTime, Hashable]] = {}
        """By queue and shape: a workload that ends later than this would delay others, and one that did."""
        self.delaying: dict[Hashable, Refusal] = {}
        """Workloads that would have quota if none were reserved for others, by key."""
        self.asked: list[EndComparison] = []  # whatever an answer owed to when jobs will end

    def reserve(self, queue: Node, needs: Amounts) -> None:
        """Reserves what is left of what a workload needs, unless its queue has a reservation already."""
        if queue in self.reserved:
            return
        subtree, usage = queue.subtree, queue.usage
        amounts = {
            fr: max(0, min(amount, subtree.get(fr, 0) - usage.get(fr, 0), queue.left(fr)))
            for fr, amount in needs.items()
        }
        self.reserved[queue] = None
        if any(amounts.values()):
            self.reserved[queue] = Reservation(queue, amounts, self._earliest(queue, needs))
            queue.add(amounts)

    def cancel(self, queue: Node) -> None:
        """Drops the reservation of this queue."""
        reserved = self.reserved.pop(queue, None)
        if reserved is not None:
            queue.remove(reserved.amounts)

    def reserved_in(self, queue: Node) -> Amounts:
        """What is reserved of a queue's quota."""
        reserved = self.reserved.get(queue)
        return {} if reserved is None else reserved.amounts

    def backfill(self, workload: Workload) -> bool:
        """Admits a workload with quota reserved for another of its queue, if it does not delay that one."""
        reserved = self.reserved.get(workload.queue)
        if reserved is None:
            return False
        with reserved.queue.without(reserved.amounts):
            found = self._state.fit(workload)
            if found is None:
                return False
            if self._ends_later(workload.queue, workload.key, reserved.needed):
                self.delaying[workload.key] = self._in_numbers(workload, found.usage)
                self._delaying_shapes[workload.queue, workload.shape] = reserved.needed, workload.key
                return False
            self._state.admit(workload, found)
            return True

    def would_delay(self, queue: Node, shape: Hashable, key: Hashable) -> bool:
        """Whether it is known already, from another just like it, that this one would delay another."""
        known = self._delaying_shapes.get((queue, shape)) if self._delaying_shapes else None
        if known is None or not self._ends_later(queue, key, known[0]):
            return False
        self.delaying[key] = self.delaying[known[1]]
        return True

    def forget_delays(self, root: Node) -> None:
        """Something was given back in a tree: what was known there may be so no more."""
        self._delaying_shapes = {key: known for key, known in self._delaying_shapes.items() if key[0].root is not root}

    def forget(self) -> None:
        """Drops all reservations: growth may have that quota, for that can be taken back at any time."""
        for reserved in self.reserved.values():
            if reserved is not None:
                reserved.queue.remove(reserved.amounts)
        self.reserved.clear()

    def _ends_later(self, queue: Node, key: Hashable, moment: ReleaseTime) -> bool:
        later = self._ends_s(key) > moment.from_s
        if moment.number >= 0:
            self.asked.append(EndComparison(queue, key, moment.number, later))
        return later

    def _in_numbers(self, workload: Workload, usage: Amounts) -> Refusal:
        """What a workload needs, and what would be left to it if nothing were reserved."""
        frs = self._state.tree.frs
        fr = next((fr for fr in usage if counts_gpus(frs[fr].resource)), next(iter(usage)))
        left = workload.queue.left(fr)
        return Refusal(Why.WAITING_FOR_QUOTA, "", frs[fr], usage[fr], left)

    def _earliest(self, queue: Node, needs: Amounts) -> ReleaseTime:
        """When enough of the workloads with quota will have ended; UNKNOWN keeps all others from the reservation."""
        gone: list[QuotaRelease] = []
        found = UNKNOWN
        for one in self._releases(queue.root):
            one.queue.remove(one.usage)
            gone.append(one)
            if queue.fits(needs):
                found = ReleaseTime(one.ends_s, len(gone) - 1)
                break
        for one in gone:
            one.queue.add(one.usage)
        return found
