"""One cycle over the heads of all queues: who gets quota, who pushes others aside, who waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from batuta.core.quota import Reclaim
from batuta.quota.claim import Claim
from batuta.quota.flavors import Assignment, Mode
from batuta.quota.ledger import Ledger
from batuta.quota.refusal import Refusal, Why
from batuta.quota.shares import Share, with_added
from batuta.quota.tree import Amounts, Node
from batuta.quota.victims import Victim


class Outcome(Enum):
    """What becomes of a head in one cycle."""

    ADMITTED = "admitted"
    PUSHES = "pushes others aside"
    WAITS = "waits"
    LATER = "was overtaken in this cycle and is looked at again in the next"


@dataclass(slots=True)
class Entry:
    """The head of a queue, and what becomes of it."""

    claim: Claim
    assignment: Assignment
    victims: list[Victim]
    outcome: Outcome = Outcome.WAITS

    @property
    def refusal(self) -> Refusal:
        if self.outcome is Outcome.PUSHES:
            return Refusal(Why.WAITING_FOR_PREEMPTED, f"waits for {len(self.victims)} that give way to it")
        if self.outcome is Outcome.LATER:
            return Refusal(Why.WAITING_FOR_QUOTA, "others of its cohort went first")
        return self.assignment.refusal or Refusal(Why.WAITING_FOR_QUOTA)


def run_cycle(ledger: Ledger, heads: Iterable[Claim]) -> list[Entry]:
    """Looks at every head in the light of what is used now, then serves them one by one.

    Whoever is served changes what the next one finds. Those admitted are in the books afterwards; what others
    reserved is not.
    """
    # 1. What would each get, if it were alone?
    entries = [Entry(claim, *ledger.nominate(claim)) for claim in heads]
    # 2. One by one: the books say what is left.
    aside: dict[int, Claim] = {}
    held: list[tuple[Node, Amounts]] = []
    for entry in _in_fair_order(ledger, entries) if ledger.quota.fair_sharing else _in_order(entries):
        _serve(ledger, entry, aside, held)
    for node, amounts in held:
        node.remove(amounts)
    for entry in entries:
        entry.claim.tried = entry.assignment.tried if entry.outcome is Outcome.WAITS else ()
    return entries


def _serve(ledger: Ledger, entry: Entry, aside: dict[int, Claim], held: list[tuple[Node, Amounts]]) -> None:
    found, queue = entry.assignment, entry.claim.queue
    if found.mode is Mode.NO_FIT:
        return
    if found.mode is not Mode.FIT and not entry.victims:
        # Nobody may be pushed aside for it. What it could have is kept from the borrowers of this cycle,
        # unless it can take that back at any time.
        if ledger.quota.queue_of[queue.name].preemption.reclaim is not Reclaim.ANY:
            _hold(held, queue, _to_keep_free(entry))
        return
    if any(id(victim.claim) in aside for victim in entry.victims):
        entry.outcome = Outcome.LATER
        return
    if not _fits(ledger, entry, aside):
        entry.outcome = Outcome.LATER
        return
    if entry.victims:
        aside.update((id(victim.claim), victim.claim) for victim in entry.victims)
        _hold(held, queue, found.usage)
        entry.outcome = Outcome.PUSHES
    else:
        ledger.admit(entry.claim, found)
        entry.outcome = Outcome.ADMITTED


def _fits(ledger: Ledger, entry: Entry, aside: dict[int, Claim]) -> bool:
    """Whether there is still room, with all gone that have to go."""
    queue, usage = entry.claim.queue, entry.assignment.usage
    if not aside and not entry.victims:
        return queue.fits(usage)
    with ledger.without([*aside.values(), *(victim.claim for victim in entry.victims)]):
        return queue.fits(usage)


def _hold(held: list[tuple[Node, Amounts]], queue: Node, amounts: Amounts) -> None:
    queue.add(amounts)
    held.append((queue, amounts))


def _to_keep_free(entry: Entry) -> Amounts:
    """What a head that has to wait could use: up to its own quota, or to its limit if it borrows."""
    queue, kept = entry.claim.queue, {}
    for cell, amount in entry.assignment.usage.items():
        limits = queue.limits.get(cell)
        nominal, limit = (limits.nominal, limits.borrowing) if limits is not None else (0, None)
        own = nominal - queue.usage.get(cell, 0)
        if not entry.assignment.level:
            kept[cell] = max(0, min(amount, own))
        else:
            kept[cell] = amount if limit is None else min(amount, own + limit)
    return kept


def _in_order(entries: list[Entry]) -> list[Entry]:
    """Those that borrow less go first, then the more important, then the older."""
    return sorted(entries, key=lambda entry: (entry.assignment.level, *entry.claim.order))


def _in_fair_order(ledger: Ledger, entries: list[Entry]) -> Iterator[Entry]:
    """Those that don't borrow first, then the smallest share: at each level of the tree, and anew after each
    that was served.
    """
    by_root: dict[Node, dict[Node, Entry]] = {}
    for entry in entries:
        by_root.setdefault(entry.claim.queue.root, {})[entry.claim.queue] = entry
    for root, waiting in by_root.items():
        while waiting:
            yield waiting.pop(_winner(ledger, root, waiting).claim.queue)


def _winner(ledger: Ledger, root: Node, waiting: dict[Node, Entry]) -> Entry:
    shares = {
        queue: dict(
            zip((queue, *queue.path()), with_added(queue, entry.assignment.usage, ledger.shares), strict=True)
        )
        for queue, entry in waiting.items()
    }

    def best(node: Node) -> tuple[tuple[bool, Share], Entry] | None:
        """The winner below a node, with whether the node would borrow for it and its share then."""
        if node.is_queue:
            entry = waiting.get(node)
        else:
            found = [one for child in node.children if (one := best(child)) is not None]
            entry = min(found, key=lambda one: (one[0], *one[1].claim.order))[1] if found else None
        return (shares[entry.claim.queue][node], entry) if entry is not None else None

    first = best(root)
    assert first is not None
    return first[1]
