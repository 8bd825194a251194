"""Who has quota now: the tree with everybody's use in it, and the claims behind that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from batuta.core.quota import Quota
from batuta.quota.claim import Claim
from batuta.quota.flavors import Assigner, Assignment, Mode, Possibility
from batuta.quota.holders import Holders
from batuta.quota.refusal import Refusal
from batuta.quota.shares import FairVictims, Shares
from batuta.quota.tree import Amounts, Node, Tree
from batuta.quota.victims import ClassicVictims, Victim, Want

_NOBODY = Possibility(Mode.NO_CANDIDATES, 0)


class Ledger:
    """Books quota in and out, and answers what a claim could have as things stand."""

    def __init__(
        self,
        quota: Quota,
        tree: Tree | None = None,
        holders: Holders | None = None,
    ) -> None:
        """`tree` is an empty one of this quota, if there is one at hand.

        `holders` knows the claims whose use is in the tree already.
        """
        self.quota, self.tree = quota, Tree(quota) if tree is None else tree
        self.holders = Holders() if holders is None else holders
        self.shares = Shares(self.tree.cells)
        self._victims: FairVictims | ClassicVictims = (
            FairVictims(quota, self.holders, self.shares)
            if quota.fair_sharing
            else ClassicVictims(quota, self.holders)
        )
        self._assigner = Assigner(quota, self.tree, self._could_push_aside)
        self.turns: dict[Node, int] = {}
        """By tree: how often something was booked there."""
        self._asks_nobody = False
        self._last: tuple[Want, list[Victim]] | None = None

    def book(self, claim: Claim, usage: Amounts, since: float | None = None) -> None:
        """From now on the claim has so much."""
        root = claim.queue.root
        turn = self.turns[root] = self.turns.get(root, 0) + 1
        claim.usage, claim.since = usage, float(turn) if since is None else since
        claim.queue.add(usage)
        self.holders[claim.queue.name][claim.key] = claim

    def admit(self, claim: Claim, found: Assignment) -> None:
        """Gives a claim what was found for it."""
        claim.flavors, claim.counts = tuple(found.flavors.items()), found.counts
        self.book(claim, found.usage)

    def release(self, claim: Claim) -> None:
        del self.holders[claim.queue.name][claim.key]
        claim.queue.remove(claim.usage)
        claim.usage = {}

    @contextmanager
    def without(self, claims: list[Claim]) -> Iterator[None]:
        """As if these had nothing."""
        for claim in claims:
            claim.queue.remove(claim.usage)
        try:
            yield
        finally:
            for claim in claims:
                claim.queue.add(claim.usage)

    def nominate(self, claim: Claim) -> tuple[Assignment, list[Victim]]:
        """Where the claim would get its quota, and who has to go for it; with fewer replicas if need be."""
        self._last = None
        whole = self._assigner.assign(claim)
        if whole.mode is Mode.FIT:
            return whole, []
        victims = self._for(claim, whole)
        if victims or all(pods.min_count is None for pods in claim.pod_sets):
            return whole, victims
        return self._fewer(claim) or (whole, [])

    def fit(self, claim: Claim) -> Assignment | None:
        """Where the claim would get its quota if nobody had to go for it; None for nowhere."""
        if claim.way is not None and claim.way.amount > claim.queue.left(claim.way.cell):
            return None
        self._asks_nobody = True
        found = self._assigner.assign(claim)
        self._asks_nobody = False
        return found if found.mode is Mode.FIT else None

    def why(self, queue: Node, cell: int, needs: int) -> Refusal:
        """What a queue is short of, in numbers."""
        return self._assigner.why(queue, cell, needs)

    def _fewer(self, claim: Claim) -> tuple[Assignment, list[Victim]] | None:
        """The largest number of replicas that would do, all pod sets reduced alike; by bisection."""
        spare = [
            0 if pods.min_count is None else max(0, pods.count - pods.min_count) for pods in claim.pod_sets
        ]
        low, high, best = 0, sum(spare) + 1, None
        while low < high:
            less = (low + high) // 2
            found = self._with_fewer(claim, spare, less) if less else None
            if found is None:
                low = less + 1
            else:
                best, high = found, less
        return best

    def _with_fewer(
        self, claim: Claim, spare: list[int], less: int
    ) -> tuple[Assignment, list[Victim]] | None:
        total = sum(spare)
        counts = tuple(
            pods.count - own * less // total for pods, own in zip(claim.pod_sets, spare, strict=True)
        )
        found = self._assigner.assign(claim, counts)
        if found.mode is Mode.FIT:
            return found, []
        victims = self._for(claim, found)
        return (found, victims) if victims else None

    def _for(self, claim: Claim, found: Assignment) -> list[Victim]:
        if found.mode in (Mode.NO_FIT, Mode.FIT):
            return []
        if found.mode is Mode.NO_CANDIDATES and len(found.short) == 1:
            # That was the whole question, and it is answered.
            return []
        return self._find(Want(claim, found.usage, found.short))

    def _find(self, want: Want) -> list[Victim]:
        """Whom to push aside. What was asked for one flavor is mostly the answer for the whole."""
        if self._last is None or self._last[0] != want:
            self._last = want, self._victims.find(want)
        return self._last[1]

    def _could_push_aside(self, claim: Claim, wanted: Amounts) -> Possibility:
        if self._asks_nobody:
            return _NOBODY
        (cell, amount), *_ = wanted.items()
        victims = self._find(Want(claim, wanted, wanted))
        if not victims:
            return Possibility(Mode.NO_CANDIDATES, claim.queue.level(cell, amount)[0])
        with self.without([victim.claim for victim in victims]):
            level, _ = claim.queue.level(cell, amount)
        own = any(victim.claim.queue is claim.queue for victim in victims)
        return Possibility(Mode.PREEMPT if own else Mode.RECLAIM, level)
