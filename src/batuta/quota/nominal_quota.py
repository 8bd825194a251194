"""Pending queues, and nominal quota first: jobs that fit within what their own queue has, queue by queue.

Nothing is borrowed or preempted here, so no queue's answer depends on another's, and what is lent
afterwards is not wanted by its owner at the same moment. Thousands of jobs are served here, so it is terse.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from batuta.quota.reasons import Refusal
from batuta.quota.reservation import Reservations
from batuta.quota.snapshot import JobWorkloads, QuotaState, Snapshot
from batuta.quota.tree import Amounts, Node
from batuta.quota.workload import QuotaRequest, Workload


def serve_own(
    queue: Node,
    rows: Sequence[int],
    requests: Mapping[int, QuotaRequest],
    priorities: Sequence[int],
    without: Set[int],
    stops: Callable[[int], bool],
    least: int | None = None,
) -> tuple[list[int], list[int]]:
    """Serves a pending queue as far as its own quota goes; returns who gets quota and who needs a closer look.

    A job that does not fit lets others of its priority pass that request something else, unless it `stops`
    the queue. With `least` a job of that priority is before them already.
    """
    room: Amounts = {}
    total: Amounts = {}
    if least is not None and not any(_free(queue, fr) > 0 for fr in queue.limits):
        return [], list(rows)
    served, left = list[int](), list[int]()
    too_large: set[QuotaRequest] = set()
    for at, row in enumerate(rows):
        request = requests[row]
        if least is not None and priorities[row] < least:
            left.extend(rows[at:])
            break
        if row not in without and request not in too_large:
            for fr, amount in request.usage.items():
                left_over = room.get(fr)
                if left_over is None:
                    left_over = room[fr] = _free(queue, fr)
                if amount > left_over:
                    break
            else:
                for fr, amount in request.usage.items():
                    room[fr] -= amount
                    total[fr] = total.get(fr, 0) + amount
                served.append(row)
                continue
            too_large.add(request)
        left.append(row)
        if stops(row):
            left.extend(rows[at + 1 :])
            break
        if least is None and row not in without:
            least = priorities[row]
    queue.add(total)
    return served, left


def _free(queue: Node, fr: int) -> int:
    """What is left of a queue's own."""
    return min(queue.subtree.get(fr, 0) - queue.usage.get(fr, 0), queue.left(fr))


class QueuePrechecks:
    """Who of one queue cannot be served now; what holds for one holds for others until usage changes."""

    def __init__(self, name: str, snapshot: Snapshot, state: QuotaState, reservations: Reservations) -> None:
        self.queue = state.tree.queues[name]
        self._cluster_queue = snapshot.cluster_queues[name]
        self._snapshot, self._state, self._reservations = snapshot, state, reservations
        self._most: dict[tuple[int, int], int] = {}
        """By priority and flavor resource: more than this no job could have now."""
        self._short: dict[int, Refusal] = {}  # by flavor resource: the message for workloads that ask for more

    def reset(self) -> None:
        """Forgets what was found: usage may have changed."""
        self._most.clear()
        self._short.clear()

    def why_inadmissible(self, priority: int, request: QuotaRequest) -> Refusal | None:
        """Why such a job cannot have quota, whichever job of its queue is preempted: it could not borrow enough."""
        if not self._cluster_queue.prechecked or len(request.kinds) != 1:
            return None
        for fr, amount in request.usage.items():
            most = self._most.get((priority, fr))
            if most is None:
                most = self._most[priority, fr] = self._could_have(priority, fr)
            if amount > most:
                return self._refusal(fr, amount)
        return None

    def _could_have(self, priority: int, fr: int) -> int:
        """What is left, to borrow or of its own, and what others of its queue would give up or reserve."""
        queue, cq = self.queue, self._cluster_queue
        own = queue.subtree.get(fr, 0) - queue.usage.get(fr, 0)
        # What is reserved for another one might still be had, by a job that is short.
        beside = self._reservations.reserved_in(queue).get(fr, 0) + self._snapshot.could_go(cq, priority).get(fr, 0)
        return max(queue.left(fr), own) + beside

    def _refusal(self, fr: int, amount: int) -> Refusal:
        known = self._short.get(fr)
        if known is not None:
            return known.for_needs(amount)
        known = self._short[fr] = self._state.why(self.queue, fr, amount)
        return known


Pending = tuple[int, int, Hashable]
"""A workload in its queue: its priority, its place (negated) and its key. The largest is at the head."""


@dataclass(slots=True)
class PendingQueue:
    """The workloads of one cluster queue that wait. Each is made of its key only when it is nominated."""

    queue: Node
    strict: bool
    make: Callable[[Any], Workload]  # makes a workload of its key
    shape_of: Callable[[Any], Hashable]  # by key: workloads of equal shape are answered alike
    waiting: list[Pending] = field(default_factory=list)
    unplaceable: Set[Hashable] = frozenset()
    """There is no place for these now, so they get no quota. In a strict queue no other overtakes them yet."""
    prechecks: QueuePrechecks | None = None
    inadmissible: list[Pending] = field(default_factory=list)
    refused: dict[Hashable, tuple[int, Refusal]] = field(default_factory=dict)
    """By shape: the priority that was refused since something was given back, and why."""
    asked: dict[QuotaRequest, tuple[int, Refusal]] = field(default_factory=dict)
    """The same by request, of the nominated workloads."""
    nominated: set[Hashable] = field(default_factory=set)
    """The workloads that have been at the head of the queue: prechecks are for the others."""
    made: dict[Hashable, Workload] = field(default_factory=dict)
    """By key: a workload knows how far the search for its flavors has come."""
    first: Workload | None = None
    """The workload for which others were just preempted: it goes first, before a third one takes that."""

    def put(self, workload: Workload) -> None:
        self.made[workload.key] = workload
        insort(self.waiting, _pending(workload))

    def set_aside(self, workload: Workload) -> None:
        """Until quota is released."""
        self.inadmissible.append(_pending(workload))

    def workload(self, key: Hashable) -> Workload:
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = self.make(key)
        return found

    def refuse(self, workload: Workload, refusal: Refusal) -> None:
        """Remembers what was said to this one, for others just like it."""
        self.refused[workload.shape] = (workload.priority, refusal)
        if workload.request is not None:
            self.asked[workload.request] = workload.priority, refusal

    def why_inadmissible(self, priority: int, key: Hashable) -> Refusal | None:
        """Why a workload need not be nominated: one like it, or one that asks for less, was refused."""
        shape = self.shape_of(key)
        known = self.refused.get(shape)
        if known is None:
            if self.prechecks is None or key in self.nominated:
                return None
            known = self._precheck(self.prechecks, priority, key, shape)
            if known is None:
                return None
            self.refused[shape] = known
        return known[1] if priority <= known[0] else None

    def _precheck(
        self, prechecks: QueuePrechecks, priority: int, key: Hashable, request: Hashable
    ) -> tuple[int, Refusal] | None:
        assert isinstance(request, QuotaRequest)
        if key not in self.unplaceable and (found := prechecks.why_inadmissible(priority, request)) is not None:
            return priority, found
        for other, (least, refusal) in self.asked.items():
            if priority <= least and request.requests_no_less_than(other):
                return least, request.as_its_own(refusal)
        return None

    def wake(self) -> None:
        """Quota was released: every workload is looked at again."""
        for _, _, key in self.waiting:
            if key in self.made:
                # A flavor that its search has passed may be free now.
                self.made[key].tried = ()
        self.waiting += self.inadmissible
        self.waiting.sort()
        self.inadmissible.clear()
        self.refused.clear()
        self.asked.clear()


def _pending(workload: Workload) -> Pending:
    return workload.priority, -workload.place, workload.key


class NominalQuotaAdmission:
    """Admits what fits in the nominal quota of each queue, and leaves the rest to the scheduling cycles."""

    def __init__(
        self, snapshot: Snapshot, state: QuotaState, reservations: Reservations, workloads: JobWorkloads
    ) -> None:
        self._snapshot, self._state, self._reservations, self._workloads = (snapshot, state, reservations, workloads)
        self._prechecks = {
            name: QueuePrechecks(name, snapshot, state, reservations) for name in snapshot.cluster_queues
        }
        self.told: dict[int, Refusal] = {}  # why jobs wait for which quota is reserved

    def serve(self) -> None:
        """Gives out what belongs to each queue, and what those get who have waited long."""
        self._serve_own()
        # Now it is known what is left in each cohort, and so what can be done for workloads that have waited long.
        self._serve_due()
        for name in self._snapshot.cluster_queues:
            if name in self._state.admitted:
                # They were made before, so some are missing.
                for row, workload in self._workloads.fresh(name).items():
                    self._state.admitted[name].setdefault(row, workload)

    def pending(self, name: str) -> PendingQueue:
        """Those of a queue who need a closer look."""
        cq, priorities = self._snapshot.cluster_queues[name], self._snapshot.priorities
        queue = self._state.tree.queues[name]
        return PendingQueue(
            queue,
            cq.strict,
            partial(self._workloads.waiting, queue),
            self._snapshot.request_of.__getitem__,
            [(priorities[row], -row, row) for row in reversed(cq.waiting)],
            self._workloads.without,
            None if cq.strict else self._prechecks[name],
        )

    def let_in(self, workload: Workload) -> None:
        """Notes that a workload has got its quota."""
        self._workloads.new[workload.queue.name][workload.row] = workload.flavors

    def _serve_own(self) -> None:
        """Serves each pending queue from what belongs to its queue."""
        for name, cq in self._snapshot.cluster_queues.items():
            if cq.waiting:
                self._serve_pending(name, cq.waiting, (lambda row: True) if cq.strict else self._workloads.blocks)

    def _serve_due(self) -> None:
        """Looks at jobs that have waited long, and let no other pass, before any job may borrow.

        What is left of its queue's quota is reserved for each of them. A job that gets what it needs lets the
        queue go on, and so does one that can get nothing now. Preemption is for the cycles that follow.
        """
        snapshot, state = self._snapshot, self._state
        pending_queues = {name for name, cq in snapshot.cluster_queues.items() if cq.waiting and not cq.strict}
        while pending_queues:
            heads = [
                (name, first)
                for name in snapshot.cluster_queues
                if name in pending_queues and (first := self._blocked(name))
            ]
            hopeful: list[tuple[str, list[int]]] = []
            for name, first in heads:
                if not self._passes_by(name, first):
                    self._keep_for(first[-1], name)
                    hopeful.append((name, first))
            pending_queues = set()
            for name, first in sorted(hopeful, key=lambda head: (-snapshot.priorities[head[1][-1]], head[1][-1])):
                queue = state.tree.queues[name]
                self._reservations.cancel(queue)
                if self._passes_by(name, first):
                    continue
                workload = self._workloads.waiting(queue, first[-1])
                if (found := state.fit(workload)) is not None:
                    state.admit(workload, found)
                    self.let_in(workload)
                    rest = snapshot.cluster_queues[name].waiting[len(first) :]
                    self._serve_pending(name, rest, self._workloads.blocks, first[:-1])
                    pending_queues.add(name)

    def _passes_by(self, name: str, first: list[int]) -> bool:
        """Whether the last of the `first` can get nothing now: it gets a reservation, and the queue goes on."""
        prechecks, row = self._prechecks[name], first[-1]
        prechecks.reset()
        refusal = prechecks.why_inadmissible(self._snapshot.priorities[row], self._snapshot.request_of[row])
        if refusal is None:
            return False
        # In its own numbers, not in those that count what is reserved for it as used.
        self.told[first[-1]] = refusal
        self._keep_for(first[-1], name)
        self._serve_pending(name, self._snapshot.cluster_queues[name].waiting[len(first) :], lambda row: False, first)
        return True

    def _blocked(self, name: str) -> list[int]:
        """The pending rows up to the first that lets no other pass; none if there is no such row."""
        rows = self._snapshot.cluster_queues[name].waiting
        at = next((at for at, row in enumerate(rows) if self._workloads.blocks(row)), None)
        return [] if at is None else rows[: at + 1]

    def _keep_for(self, row: int, name: str) -> None:
        """Sets aside what is left of its queue's quota for a job, if it can ever have what it needs."""
        request = self._snapshot.request_of[row]
        queue = self._state.tree.queues[name]
        if all(amount <= queue.most(fr) for fr, amount in request.usage.items()):
            self._reservations.reserve(queue, request.usage)

    def _serve_pending(
        self, name: str, rows: list[int], stops: Callable[[int], bool], first: list[int] | None = None
    ) -> None:
        """Serves rows of a queue that stand behind the `first` ones."""
        snapshot, node = self._snapshot, self._state.tree.queues[name]
        least = snapshot.priorities[first[-1]] if first else None
        without = self._workloads.without
        served, left = serve_own(node, rows, snapshot.request_of, snapshot.priorities, without, stops, least)
        self._workloads.new[name].update({row: snapshot.request_of[row].flavors for row in served})
        snapshot.cluster_queues[name].waiting = (first or []) + left
