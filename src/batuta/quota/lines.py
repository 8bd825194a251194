"""Those who wait for quota, one line per queue, and how they are served until nobody can be."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from batuta.core.quota import Strategy
from batuta.quota.claim import Claim
from batuta.quota.cycle import Entry, Outcome, run_cycle
from batuta.quota.flavors import Mode
from batuta.quota.ledger import Ledger
from batuta.quota.refusal import Refusal
from batuta.quota.reservation import Keeper
from batuta.quota.tree import Node
from batuta.quota.victims import Cause

MOST_CYCLES = 100_000
MOST_RESUMED = 64
"""So often a search for flavors goes on where it ended, in case it never comes to the end of all at once."""
_SERVED = (Outcome.ADMITTED, Outcome.PUSHES)


@dataclass(slots=True)
class Line:
    """One queue's line. Those that cannot be served now stand aside until something is given back."""

    strict: bool
    waiting: list[tuple[tuple[int, float, int], int, Claim]] = field(default_factory=list)
    aside: dict[Hashable, Claim] = field(default_factory=dict)
    refused: dict[Hashable, tuple[int, Refusal]] = field(default_factory=dict)
    """By shape: the priority that was refused since something was given back, and why."""

    first: Claim | None = None
    """Somebody for whom others have just given way: it goes first, or they did so for a third one's sake."""

    def put(self, claim: Claim) -> None:
        heapq.heappush(self.waiting, (claim.order, id(claim), claim))

    def __len__(self) -> int:
        return len(self.waiting)

    def pop(self) -> Claim | None:
        return heapq.heappop(self.waiting)[2] if self.waiting else None

    def refuse(self, claim: Claim, refusal: Refusal) -> None:
        """Remembers what was said to this one, for others just like it."""
        self.refused[claim.shape] = (claim.priority, refusal)

    def wake(self) -> None:
        for _, _, claim in self.waiting:
            # A flavor that its search has passed may be free now.
            claim.tried = ()
        for claim in self.aside.values():
            self.put(claim)
        self.aside.clear()
        self.refused.clear()


@dataclass(frozen=True, slots=True)
class Pushed:
    """Somebody who had to go, for whom, and why."""

    claim: Claim
    by: Claim
    cause: Cause


class Lines:
    """All lines of a ledger."""

    def __init__(
        self, ledger: Ledger, keeper: Keeper | None = None, lines: Mapping[str, Line] | None = None
    ) -> None:
        self.ledger, self._keeper = ledger, keeper
        self._lines: Mapping[str, Line] = lines or {
            queue.name: Line(queue.strategy is Strategy.STRICT_FIFO) for queue in ledger.quota.cluster_queues
        }
        self.refusals: dict[Hashable, Refusal] = {}
        """Why those who wait do, by key. Who may not overtake another is never looked at, and not in here."""

    def put(self, claim: Claim) -> None:
        self._lines[claim.queue.name].put(claim)

    def wake(self, node: Node) -> None:
        """Something was given back: whoever shares a cohort with it is looked at again."""
        if self._keeper is not None:
            self._keeper.look_again(node.root)
        below = [node.root]
        while below:
            one = below.pop()
            below.extend(one.children)
            if one.is_queue and one.name in self._lines:
                self._lines[one.name].wake()

    def settle(
        self,
        on_admit: Callable[[Claim], None],
        on_push: Callable[[Pushed], None],
    ) -> None:
        """Runs cycles until nobody can be served.

        Who is pushed aside is told to `on_push`, which may put it in line again.
        """
        again = True
        for _ in range(MOST_CYCLES):
            busy = [line for line in self._lines.values() if line.first or len(line)]
            heads = [claim for line in busy if (claim := self._head(line)) is not None]
            if not heads:
                return
            resumes = any(claim.resumes for claim in heads)
            entries = run_cycle(self.ledger, heads)
            if self._act(entries, on_admit, on_push):
                again = again or any(entry.outcome in _SERVED for entry in entries)
                continue
            # One that stays at the head begins its search anew and keeps other flavors free then: who was
            # overtaken meanwhile may fit beside it.
            again = again and resumes and any(entry.outcome is Outcome.LATER for entry in entries)
            if not again:
                return
            again = False

    def _head(self, line: Line) -> Claim | None:
        """The first one that has not been answered already by way of another just like it."""
        if line.first is not None:
            first, line.first = line.first, None
            return first
        while (claim := line.pop()) is not None:
            if claim.stuck:
                if line.strict:
                    line.put(claim)
                    return None
                line.aside[claim.key] = claim
                continue
            if not line.strict and self._denies(claim):
                line.aside[claim.key] = claim
                continue
            known = None if line.strict else line.refused.get(claim.shape)
            if known is None or claim.priority > known[0]:
                return claim
            line.aside[claim.key] = claim
            self.refusals[claim.key] = known[1]
        return None

    def _denies(self, claim: Claim) -> bool:
        return self._keeper is not None and self._keeper.denies(claim.queue, claim.shape, claim.key)

    def _act(
        self,
        entries: Iterable[Entry],
        on_admit: Callable[[Claim], None],
        on_push: Callable[[Pushed], None],
    ) -> bool:
        """Carries a cycle's outcome out; whether anything came of it."""
        progress = False
        # Whatever is given back comes last, so that it wakes also those who stand aside since this cycle.
        for entry in sorted(entries, key=lambda one: one.outcome is Outcome.PUSHES):
            claim = entry.claim
            line = self._lines[claim.queue.name]
            if _goes_on(entry):
                line.put(claim)
                progress = True
                continue
            if entry.outcome is Outcome.ADMITTED or self._slips_in(entry):
                self.refusals.pop(claim.key, None)
                on_admit(claim)
                progress = True
                continue
            self.refusals[claim.key] = entry.refusal
            if entry.outcome is Outcome.WAITS and not line.strict:
                line.aside[claim.key] = claim
                if self._keeper is None or claim.key not in self._keeper.denied:
                    # Another one just like it fares no better, unless it is a question of how long it runs.
                    line.refuse(claim, entry.refusal)
                progress = True
                continue
            if entry.outcome is not Outcome.PUSHES:
                line.put(claim)
            else:
                line.first, progress = claim, True
                for victim in entry.victims:
                    self.ledger.release(victim.claim)
                    self.wake(victim.claim.queue)
                    on_push(Pushed(victim.claim, claim, victim.cause))
                if claim.has_pushed:
                    # What was freed for it went to others, whom it pushed aside again: now it has it at once.
                    line.first = None
                    self.refusals.pop(claim.key, None)
                    self.ledger.admit(claim, entry.assignment)
                    on_admit(claim)
                claim.has_pushed = True
        return progress

    def _slips_in(self, entry: Entry) -> bool:
        """Whether one that has to wait may have what is kept for others, because it does not delay them."""
        keeper, claim = self._keeper, entry.claim
        if keeper is None or entry.outcome is not Outcome.WAITS:
            return False
        if keeper.lets_in(claim):
            return True
        if claim.due and entry.assignment.mode is not Mode.NO_FIT:
            keeper.keep(claim.queue, entry.assignment.usage)
        return False


def _goes_on(entry: Entry) -> bool:
    """Whether one that has to wait has not looked at all its flavors: then it is its turn again."""
    claim = entry.claim
    if entry.outcome is not Outcome.WAITS or not entry.assignment.has_more or claim.resumed >= MOST_RESUMED:
        claim.resumed = 0
        return False
    claim.resumed += 1
    return True
