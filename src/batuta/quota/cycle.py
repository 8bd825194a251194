"""A scheduling cycle over the heads of all queues: nominate, order, admit or preempt; run until all wait."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from batuta.core.quota import Reclaim
from batuta.quota.fair_sharing import Share, with_added
from batuta.quota.flavors import Assignment, Mode
from batuta.quota.nominal_quota import PendingQueue
from batuta.quota.preemption import PreemptionTarget
from batuta.quota.reasons import Refusal, Why
from batuta.quota.reservation import Reservations
from batuta.quota.snapshot import QuotaState
from batuta.quota.tree import Amounts, Node
from batuta.quota.workload import Workload


class Outcome(Enum):
    """What becomes of a head in one cycle."""

    ADMITTED = "admitted"
    PREEMPTING = "preempts others"
    WAITS = "waits"
    LATER = "was overtaken in this cycle and is looked at again in the next"


@dataclass(slots=True)
class Entry:
    """The head of a queue, and what becomes of it."""

    workload: Workload
    assignment: Assignment
    targets: list[PreemptionTarget]
    outcome: Outcome = Outcome.WAITS

    @property
    def refusal(self) -> Refusal:
        if self.outcome is Outcome.PREEMPTING:
            return Refusal(Why.WAITING_FOR_PREEMPTED, f"waits for {len(self.targets)} that give way to it")
        if self.outcome is Outcome.LATER:
            return Refusal(Why.WAITING_FOR_QUOTA, "others of its cohort went first")
        return self.assignment.refusal or Refusal(Why.WAITING_FOR_QUOTA)


def run_cycle(state: QuotaState, heads: Iterable[Workload]) -> list[Entry]:
    """Looks at every head in the light of what is used now, then serves them one by one.

    Each workload that is served changes what the next one finds. Admitted ones count as usage afterwards;
    what others reserved does not.
    """
    # 1. Nominate: what would each get, if it were alone?
    entries = [Entry(workload, *state.nominate(workload)) for workload in heads]
    # 2. In order, one by one: admit or preempt.
    preempted: dict[int, Workload] = {}
    held: list[tuple[Node, Amounts]] = []
    for entry in _in_fair_order(state, entries) if state.quota.fair_sharing else _in_order(entries):
        _serve(state, entry, preempted, held)
    for node, amounts in held:
        node.remove(amounts)
    for entry in entries:
        entry.workload.tried = entry.assignment.tried if entry.outcome is Outcome.WAITS else ()
    return entries


def _serve(state: QuotaState, entry: Entry, preempted: dict[int, Workload], held: list[tuple[Node, Amounts]]) -> None:
    found, queue = entry.assignment, entry.workload.queue
    if found.mode is Mode.NO_FIT:
        return
    if found.mode is not Mode.FIT and not entry.targets:
        # It may preempt none. What it could have is reserved against the borrowers of this cycle,
        # unless it can take that back at any time.
        if state.quota.queue_of[queue.name].preemption.reclaim is not Reclaim.ANY:
            _hold(held, queue, _to_keep_free(entry))
        return
    if any(id(target.workload) in preempted for target in entry.targets):
        entry.outcome = Outcome.LATER
        return
    if not _fits(state, entry, preempted):
        entry.outcome = Outcome.LATER
        return
    if entry.targets:
        preempted.update((id(target.workload), target.workload) for target in entry.targets)
        _hold(held, queue, found.usage)
        entry.outcome = Outcome.PREEMPTING
    else:
        state.admit(entry.workload, found)
        entry.outcome = Outcome.ADMITTED


def _fits(state: QuotaState, entry: Entry, preempted: dict[int, Workload]) -> bool:
    """Whether there is still room, with all gone that have to go."""
    queue, usage = entry.workload.queue, entry.assignment.usage
    if not preempted and not entry.targets:
        return queue.fits(usage)
    with state.without([*preempted.values(), *(target.workload for target in entry.targets)]):
        return queue.fits(usage)


def _hold(held: list[tuple[Node, Amounts]], queue: Node, amounts: Amounts) -> None:
    queue.add(amounts)
    held.append((queue, amounts))


def _to_keep_free(entry: Entry) -> Amounts:
    """What a head that has to wait could use: up to its own quota, or to its limit if it borrows."""
    queue, reserved = entry.workload.queue, {}
    for fr, amount in entry.assignment.usage.items():
        limits = queue.limits.get(fr)
        nominal, limit = (limits.nominal, limits.borrowing) if limits is not None else (0, None)
        own = nominal - queue.usage.get(fr, 0)
        if not entry.assignment.level:
            reserved[fr] = max(0, min(amount, own))
        else:
            reserved[fr] = amount if limit is None else min(amount, own + limit)
    return reserved


def _in_order(entries: list[Entry]) -> list[Entry]:
    """Those that borrow less go first, then the more important, then the older."""
    return sorted(entries, key=lambda entry: (entry.assignment.level, *entry.workload.order))


def _in_fair_order(state: QuotaState, entries: list[Entry]) -> Iterator[Entry]:
    """Those that don't borrow first, then the smallest share at each level; anew after each that was served."""
    by_root: dict[Node, dict[Node, Entry]] = {}
    for entry in entries:
        by_root.setdefault(entry.workload.queue.root, {})[entry.workload.queue] = entry
    for root, waiting in by_root.items():
        while waiting:
            yield waiting.pop(_winner(state, root, waiting).workload.queue)


def _winner(state: QuotaState, root: Node, waiting: dict[Node, Entry]) -> Entry:
    shares = {
        queue: dict(zip((queue, *queue.path()), with_added(queue, entry.assignment.usage, state.shares), strict=True))
        for queue, entry in waiting.items()
    }

    def best(node: Node) -> tuple[tuple[bool, Share], Entry] | None:
        """The winner below a node, with whether the node would borrow for it and its share then."""
        if node.is_queue:
            entry = waiting.get(node)
        else:
            found = [one for child in node.children if (one := best(child)) is not None]
            entry = min(found, key=lambda one: (one[0], *one[1].workload.order))[1] if found else None
        return (shares[entry.workload.queue][node], entry) if entry is not None else None

    first = best(root)
    assert first is not None
    return first[1]


MOST_CYCLES = 100_000
MOST_RESUMED = 64
"""So often a search for flavors goes on where it ended, in case it never comes to the end of all at once."""
_SERVED = (Outcome.ADMITTED, Outcome.PREEMPTING)
OnAdmit = Callable[[Workload], None]
OnPreempt = Callable[[PreemptionTarget, Workload], None]  # is told who was preempted, and for which other workload


class Scheduler:
    """Runs scheduling cycles over the heads of pending queues until none of them can be served."""

    def __init__(
        self, state: QuotaState, pending_queues: Mapping[str, PendingQueue], reservations: Reservations | None = None
    ) -> None:
        self.state, self._pending_queues, self._reservations = state, pending_queues, reservations
        self.refusals: dict[Hashable, Refusal] = {}
        """Why each waiting workload waits, by key. One that may not overtake another is never nominated, and absent."""

    def put(self, workload: Workload) -> None:
        self._pending_queues[workload.queue.name].put(workload)

    def wake(self, node: Node) -> None:
        """Quota was released: workloads that share a cohort with it are looked at again."""
        if self._reservations is not None:
            self._reservations.forget_delays(node.root)
        for queue in node.root.queues():
            if queue.name in self._pending_queues:
                self._pending_queues[queue.name].wake()

    def settle(self, on_admit: OnAdmit, on_preempt: OnPreempt) -> None:
        """Runs cycles until no workload can be served; `on_preempt` may make one pending again."""
        again = True
        for _ in range(MOST_CYCLES):
            busy = [pending for pending in self._pending_queues.values() if pending.first or pending.waiting]
            heads = [workload for pending in busy if (workload := self._head(pending)) is not None]
            if not heads:
                return
            resumes = any(workload.resumes for workload in heads)
            entries = run_cycle(self.state, heads)
            if self._act(entries, on_admit, on_preempt):
                again = again or any(entry.outcome in _SERVED for entry in entries)
                continue
            # One that stays at the head begins its search anew and keeps other flavors free then: who was
            # overtaken meanwhile may fit beside it.
            again = again and resumes and any(entry.outcome is Outcome.LATER for entry in entries)
            if not again:
                return
            again = False

    def _head(self, pending: PendingQueue) -> Workload | None:
        """Return the first workload that is not known to be inadmissible by another just like it."""
        if pending.first is not None:
            first, pending.first = pending.first, None
            return first
        if pending.prechecks is not None:
            pending.prechecks.reset()
        if pending.strict:
            return self._strict_head(pending)
        waiting, why_inadmissible, set_aside = pending.waiting, pending.why_inadmissible, pending.inadmissible.append
        while waiting:
            one = waiting.pop()
            priority, _, key = one
            refusal = why_inadmissible(priority, key)
            if refusal is not None:
                self.refusals[key] = refusal
            else:
                pending.nominated.add(key)
                if key not in pending.unplaceable and not self._would_delay(pending, key):
                    return pending.workload(key)
            set_aside(one)
        return None

    def _strict_head(self, pending: PendingQueue) -> Workload | None:
        if not pending.waiting or pending.waiting[-1][2] in pending.unplaceable:
            return None
        return pending.workload(pending.waiting.pop()[2])

    def _would_delay(self, pending: PendingQueue, key: Hashable) -> bool:
        return self._reservations is not None and self._reservations.would_delay(
            pending.queue, pending.shape_of(key), key
        )

    def _act(self, entries: Iterable[Entry], on_admit: OnAdmit, on_preempt: OnPreempt) -> bool:
        """Carries a cycle's outcome out; whether anything came of it."""
        progress = False
        # Whatever is given back comes last, so that it also wakes the workloads that became inadmissible in this cycle.
        for entry in sorted(entries, key=lambda one: one.outcome is Outcome.PREEMPTING):
            workload = entry.workload
            pending = self._pending_queues[workload.queue.name]
            if _goes_on(entry):
                pending.put(workload)
                progress = True
                continue
            if entry.outcome is Outcome.ADMITTED or self._backfills(entry):
                self.refusals.pop(workload.key, None)
                on_admit(workload)
                progress = True
                continue
            self.refusals[workload.key] = entry.refusal
            if entry.outcome is Outcome.WAITS and not pending.strict:
                pending.set_aside(workload)
                if self._reservations is None or workload.key not in self._reservations.delaying:
                    # Another one just like it fares no better, unless it is a question of how long it runs.
                    pending.refuse(workload, entry.refusal)
                progress = True
                continue
            if entry.outcome is not Outcome.PREEMPTING:
                pending.put(workload)
            else:
                pending.first, progress = workload, True
                for target in entry.targets:
                    self.state.release(target.workload)
                    self.wake(target.workload.queue)
                    on_preempt(target, workload)
                if workload.has_preempted:
                    # What was freed for it went to others, whom it preempted again: now it has it at once.
                    pending.first = None
                    self.refusals.pop(workload.key, None)
                    self.state.admit(workload, entry.assignment)
                    on_admit(workload)
                workload.has_preempted = True
        return progress

    def _backfills(self, entry: Entry) -> bool:
        """Whether one that has to wait may have reserved quota, because it delays no other."""
        reservations, workload = self._reservations, entry.workload
        if reservations is None or entry.outcome is not Outcome.WAITS:
            return False
        if reservations.backfill(workload):
            return True
        if workload.due and entry.assignment.mode is not Mode.NO_FIT:
            reservations.reserve(workload.queue, entry.assignment.usage)
        return False


def _goes_on(entry: Entry) -> bool:
    """Whether one that has to wait has not looked at all its flavors: then it is its turn again."""
    workload = entry.workload
    if entry.outcome is not Outcome.WAITS or not entry.assignment.has_more or workload.resumed >= MOST_RESUMED:
        workload.resumed = 0
        return False
    workload.resumed += 1
    return True
