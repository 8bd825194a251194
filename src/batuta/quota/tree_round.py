"""One look at the jobs of some trees of cohorts, in the light of quota.

No tree's answers depend on another's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from itertools import chain

import numpy as np

from batuta.core.admission import Budget
from batuta.core.arrays import IntArray
from batuta.core.job import NO_RESTART_S
from batuta.core.quota import Flavors
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World
from batuta.quota.answers import Answers, New
from batuta.quota.census import Census
from batuta.quota.claim import Claim
from batuta.quota.cuts import cut
from batuta.quota.doors import Door
from batuta.quota.growth import Growers, grow
from batuta.quota.ledger import Ledger
from batuta.quota.lines import Lines, Pushed
from batuta.quota.memory import Memory
from batuta.quota.past import Past, Timing
from batuta.quota.refusal import Refusal
from batuta.quota.reservation import Asked, Keeper
from batuta.quota.roll import Called, Roll
from batuta.quota.row_claims import RowClaims, RowHolders
from batuta.quota.row_line import RowLine
from batuta.quota.serving import Serving
from batuta.quota.standstill import Standstill, Stuck
from batuta.quota.tree import Tree
from batuta.quota.victims import Cause
from batuta.quota.world_reasons import Words, reason_for

_LOSES = {
    Cause.WITHIN_QUEUE: Reason.PUSHED_ASIDE,
    Cause.RECLAIMED: Reason.RECLAIMED,
    Cause.RECLAIMED_WHILE_BORROWING: Reason.RECLAIMED,
    Cause.FAIR_SHARING: Reason.SHARED_OUT,
}


class TreeRound:
    """Gives out quota in some trees."""

    def __init__(
        self,
        world: World,
        now_s: float,
        trees: Sequence[int],
        census: Census,
        tree: Tree,
        memory: Memory,
    ) -> None:
        self.trees = trees
        self._world, self._now_s, self._census, self._number_of = world, now_s, census, memory.number_of
        chosen = set(trees)
        queues = {name for name, number in memory.number_of.items() if number in chosen}
        called = Called(queues, np.isin(census.tree_of, trees))
        self._roll = Roll(world, now_s, tree, memory, called)
        self._claims = RowClaims(world, now_s, tree, self._roll, census.without, census.patience_s)
        self._ledger = Ledger(world.effective_quota, tree, RowHolders(self._claims))
        self._keeper = Keeper(self._ledger, self._claims.ends_s, self._claims.releases)
        self._serving = Serving(self._roll, self._ledger, self._keeper, self._claims)
        self._standstill = Standstill(world, self._roll, self._ledger, self._keeper, self._claims)
        self._cap: IntArray = world.jobs.max.copy()
        self._refused: dict[int, tuple[Reason, Evidence]] = {}
        self._losers: dict[int, Reason] = {}
        self._contested: set[int] = set()
        """Trees in which some lost quota or wait."""

    def serve(self) -> dict[int, Answers]:
        """Who gets quota and who waits, by tree."""
        self._heed_doors()
        # Of the queues of these trees only: others may have been served before, and stand above their limits.
        for claim in cut(self._ledger, self._roll.parts, self._may_be_cut):
            self._lose(claim, Reason.QUOTA_CUT)
        self._serving.serve()
        stuck = self._standstill.find(self._number_of)
        self._tell(stuck)
        refusals: dict[Hashable, Refusal] = {}
        for waiting in self._lines(stuck.trees):
            lines = Lines(self._ledger, self._keeper, waiting)
            lines.settle(self._serving.let_in, self._push)
            refusals.update(lines.refusals)
            for line in waiting.values():
                refusals.update(line.why_passed())
        self._refuse_the_rest(refusals, stuck.trees)
        self._keeper.forget()
        return self._answers()

    def grow(self, cap: IntArray, answers: Mapping[int, Answers]) -> None:
        """Works out what those who have quota may grow to, given the largest size that each may have."""
        tree, place = self._ledger.tree, self._census.place
        growers = [Growers(tree.queues[name], self._holding(name)) for name in self._roll.parts]
        for number in self.trees:
            answers[number].grown_from = cap[self._census.rows[number]]
            answers[number].budgets = {}
        for queue, budget in grow(self._world, self._ledger, growers, cap):
            own = answers[self._number_of[queue.name]].budgets.setdefault(queue.name, [])
            own.append(Budget(place[budget.rows], budget.gpus, budget.beside))

    def as_past(self, answers: Mapping[int, Answers]) -> dict[int, Past]:
        """What is worth remembering of each tree: not where work that would be lost was weighed."""
        weighed = {self._number_of[name] for name in self._claims.weighed}
        # Who came last is found by turns and by seconds: that is settled only once there are more seconds.
        queues = self._ledger.tree.queues
        early = {
            number
            for name, number in self._number_of.items()
            if self._ledger.turns.get(queues[name].root, 0) >= self._now_s
        }
        asked: dict[int, list[Asked]] = {}
        for one in self._keeper.asked:
            asked.setdefault(self._number_of[one.queue.name], []).append(one)
        census = self._census
        return {
            number: Past(
                census.seen[number],
                census.things(number),
                self._timing(asked[number]) if number in asked else None,
                answers[number],
            )
            for number in self.trees
            if number >= 0 and number not in weighed and number not in early
        }

    def _timing(self, asked: list[Asked]) -> Timing:
        """Whose ends were compared in a tree."""
        root, place = asked[0].queue.root, self._census.place
        parts = (self._roll.parts[queue.name] for queue in root.queues())
        listed = [row for part in parts for row in part.running]
        number_of: dict[Hashable, int] = {row: number for number, row in enumerate(listed)}
        count = 1 + max(one.number for one in asked)
        first = [number_of[one.key] for one in self._claims.releases(root)[:count]]
        keys = [one.key for one in asked]
        return Timing(
            place[listed],
            np.array(first, dtype=np.int64),
            place[np.array(keys, dtype=np.int64)],
            np.array([one.number for one in asked], dtype=np.int64),
            np.array([one.later for one in asked], dtype=bool),
        )

    def _lines(self, stuck: Set[int]) -> list[dict[str, RowLine]]:
        """Those who wait in all trees but the ones where nothing moves, tree by tree."""
        found: dict[int, dict[str, RowLine]] = {}
        for name, part in self._roll.parts.items():
            number = self._number_of[name]
            if part.waiting and number not in stuck:
                found.setdefault(number, {})[name] = self._serving.line(name)
        return list(found.values())

    def _may_be_cut(self, claim: Claim) -> bool:
        """Whether less quota than before may cost a job its GPUs: not if it could not come back from that."""
        return not claim.stays and float(self._world.jobs.restart_s[claim.row]) < NO_RESTART_S

    def _heed_doors(self) -> None:
        """What keeps jobs out, or sends them away, before quota is looked at."""
        jobs, quota = self._world.jobs, self._world.effective_quota
        self._cap[self._roll.quiet] = 0
        for row, most in self._roll.still.items():
            # Also where a policy may change what is in motion, it gets no more than it has.
            self._cap[row] = min(int(self._cap[row]), most)
        for row in self._roll.no_flavor:
            self._refuse(row, Reason.NO_MATCHING_FLAVOR)
        for door, rows in self._roll.shut:
            reason, evidence = reason_for(door.refusal, leaving=door.queue in quota.leaving)
            for row in rows:
                if not jobs.held[row]:
                    self._refuse(row, reason, evidence)
                elif door.drains and row not in self._roll.still:
                    claim = self._ledger.holders[door.queue][row]
                    self._ledger.release(claim)
                    self._lose(claim, Reason.QUEUE_DRAINED)
                else:
                    self._keep_size(row, door, reason, evidence)

    def _keep_size(self, row: int, door: Door, reason: Reason, evidence: Evidence) -> None:
        """A held queue starts nothing; what runs goes on at its size, also when it has to be repaired."""
        jobs = self._world.jobs
        job, has = jobs.jobs[row], int(jobs.held[row])
        own = min(int(self._cap[row]), has + int(jobs.lost_gpus[row]))
        self._cap[row] = own if own >= job.min else 0
        self._refused[row] = (reason, evidence)
        if own > job.min and door.queue in self._roll.parts and row not in self._roll.still:
            claim = self._ledger.holders[door.queue][row]
            self._ledger.release(claim)
            usage = self._roll.asks.usage(job, claim.flavors, own)
            self._ledger.book(claim, usage, claim.since)
            self._roll.still[row] = own

    def _refuse(self, row: int, reason: Reason, evidence: Evidence = ()) -> None:
        self._cap[row] = 0
        self._refused[row] = (reason, evidence)

    def _tell(self, stuck: Stuck) -> None:
        """Tells everybody of trees in which nothing moves why that is so."""
        self._cap[stuck.rows] = 0
        rows = stuck.rows.tolist()
        self._refused.update(zip(rows, stuck.reasons, strict=True))
        self._contested |= stuck.trees
        for row in set(self._serving.told).intersection(stuck.rows[~stuck.kept].tolist()):
            self._refused[row] = reason_for(self._serving.told[row])

    def _refuse_the_rest(self, refusals: Mapping[Hashable, Refusal], stuck: Set[int]) -> None:
        """Tells everybody else who got nothing why."""
        found: list[list[int]] = []
        for name, part in self._roll.parts.items():
            number = self._number_of[name]
            if number in stuck:
                continue
            new = self._claims.new[name]
            rows = [row for row in part.waiting if row not in new]
            if rows:
                found.append(rows)
                self._contested.add(number)
        everybody = list(chain.from_iterable(found))
        self._cap[everybody] = 0
        denied, told, words = self._keeper.denied, self._serving.told, Words()
        for row in everybody:
            if row in self._claims.without:
                continue
            kept = denied.get(row)
            if kept is not None:
                self._refused[row] = words.of(kept, kept=True)
            else:
                self._refused[row] = words.of(told.get(row) or refusals.get(row))

    def _push(self, pushed: Pushed) -> None:
        claim = pushed.claim
        if self._claims.new[claim.queue.name].pop(claim.row, None) is not None:
            # Somebody who got quota a moment ago had not started yet: it waits on. If it were looked at again
            # in this cycle, the two could go on pushing each other aside.
            self._cap[claim.row] = 0
            self._refused[claim.row] = (Reason.BEHIND_ANOTHER, ())
            return
        self._lose(claim, _LOSES[pushed.cause])

    def _lose(self, claim: Claim, reason: Reason) -> None:
        """A job has to give all its GPUs up. It is not looked at again in this cycle."""
        row = claim.row
        self._contested.add(self._number_of[claim.queue.name])
        self._losers[row] = reason
        self._refuse(row, reason, (("before", int(self._world.jobs.held[row])),))

    def _holding(self, name: str) -> dict[int, Flavors]:
        """Those of a queue that have quota and may have another size."""
        still, losers = self._roll.still, self._losers
        running = self._roll.parts[name].running.items()
        found = {row: own for row, (own, _) in running if row not in still and row not in losers}
        return found | self._claims.new[name]

    def _answers(self) -> dict[int, Answers]:
        census, place = self._census, self._census.place.tolist()
        found = {
            number: Answers(self._cap[census.rows[number]], [], [], {}, [], {}, number in self._contested)
            for number in self.trees
        }
        numbers = census.tree_of.tolist()
        for row, why in self._refused.items():
            own = found[numbers[row]]
            own.refused.append(place[row])
            own.reasons.append(why)
        for row, reason in self._losers.items():
            found[numbers[row]].losers[place[row]] = reason
        everybody = [place[row] for new in self._claims.new.values() for row in new]
        end = 0
        for name, new in self._claims.new.items():
            own = found[self._number_of[name]]
            if new:
                start, end = end, end + len(new)
                asks = list(map(self._roll.ask_of.__getitem__, new))
                own.new[name] = New(everybody[start:end], list(new.values()), asks)
            running = self._roll.parts[name].running.items()
            own.holding.extend((place[row], flavors) for row, (flavors, _) in running)
        return found
