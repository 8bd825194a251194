"""Step 1 of a cycle: who may run by quota, in which flavor, and what each may grow to.

A job's `min` is what it holds quota for. Growth above that takes what is idle, and is given back without
anybody having to be pushed aside: it is worked out anew in each cycle, from what the `min`s leave.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from batuta.core.admission import NOBODY, Admitted
from batuta.core.arrays import IntArray
from batuta.core.job import NO_RESTART_S
from batuta.core.pools import assign_types
from batuta.core.quota import Flavors
from batuta.core.reach import Wishes, within_reach
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World
from batuta.quota.claim import Claim
from batuta.quota.cuts import cut
from batuta.quota.doors import Door
from batuta.quota.growth import Growers, grow
from batuta.quota.ledger import Ledger
from batuta.quota.lines import Lines, Pushed
from batuta.quota.refusal import Refusal
from batuta.quota.reservation import Keeper
from batuta.quota.roll import Memory, Roll
from batuta.quota.row_claims import RowClaims
from batuta.quota.serving import Serving
from batuta.quota.tree import Node
from batuta.quota.victims import Cause
from batuta.quota.world_reasons import reason_for

_LOSES = {
    Cause.WITHIN_QUEUE: Reason.PUSHED_ASIDE,
    Cause.RECLAIMED: Reason.RECLAIMED,
    Cause.RECLAIMED_WHILE_BORROWING: Reason.RECLAIMED,
    Cause.FAIR_SHARING: Reason.SHARED_OUT,
}


@dataclass(frozen=True, slots=True)
class QuotaAdmission:
    """Gives out quota by Kueue's rules, with elasticity."""

    patience_s: float = 600.0
    """Who has waited so long is not overtaken any more by jobs that would delay it."""
    _memory: Memory = field(default_factory=Memory, init=False, repr=False, compare=False)
    """What was worked out before and still holds: it makes answers faster and changes none."""

    def admit(self, world: World, now_s: float, without: Set[int] = NOBODY) -> Admitted:
        if not world.quota:
            return Admitted()
        return _Round(world, now_s, without, self.patience_s, self._memory).admit()


class _Round:
    """One look at all jobs in the light of quota."""

    def __init__(
        self, world: World, now_s: float, without: Set[int], patience_s: float, memory: Memory
    ) -> None:
        tree = memory.empty_tree(world.quota)
        self._world = world
        self._roll = Roll(world, now_s, tree, memory)
        self._claims = RowClaims(world, now_s, tree, self._roll, without, patience_s)
        self._ledger = Ledger(world.quota, tree, self._claims.holders)
        self._keeper = Keeper(self._ledger, self._claims.ends_s, self._claims.releases)
        self._serving = Serving(self._roll, self._ledger, self._keeper, self._claims)
        self._cap: IntArray = world.jobs.i("max").copy()
        self._refused: dict[int, tuple[Reason, Evidence]] = {}
        self._losers: dict[int, Reason] = {}
        self._lost_in: set[Node] = set()

    def admit(self) -> Admitted:
        world = self._world
        self._heed_doors()
        for claim in cut(self._ledger, self._may_be_cut):
            self._lose(claim, Reason.QUOTA_CUT)
        waiting = self._serving.serve()
        lines = Lines(self._ledger, self._keeper, waiting)
        lines.settle(self._serving.let_in, self._push)
        for line in waiting.values():
            lines.refusals.update(line.why_passed())
        left = self._refuse_the_rest(lines.refusals)
        self._keeper.forget()
        flavors = {row: own for rows in self._claims.new.values() for row, own in rows.items()}
        wishes = self._wishes(flavors)
        gpu_type = self._types(flavors)
        # What could not be placed even if it were alone is no reason to keep quota from others.
        cap, _ = within_reach(world, self._cap, gpu_type, wishes)
        assert cap is not None
        growers = [Growers(self._ledger.tree.queues[name], self._holding(name)) for name in self._roll.parts]
        return Admitted(
            cap=cap,
            refused=self._refused,
            gpu_type=gpu_type,
            budgets=grow(world, self._ledger, growers, cap),
            wishes=wishes,
            flavors=flavors,
            losers=self._losers,
            contested=self._contested(left),
        )

    def _may_be_cut(self, claim: Claim) -> bool:
        """Whether less quota than before may cost a job its GPUs: not if it could not come back from that."""
        return not claim.stays and float(self._world.jobs.f("restart_s")[claim.row]) < NO_RESTART_S

    def _heed_doors(self) -> None:
        """What keeps jobs out, or sends them away, before quota is looked at."""
        jobs, quota = self._world.jobs, self._world.quota
        self._cap[self._roll.quiet] = 0
        for row, most in self._roll.still.items():
            # Also where a policy may change what is in motion, it gets no more than it has.
            self._cap[row] = min(int(self._cap[row]), most)
        for row in self._roll.no_flavor:
            self._refuse(row, Reason.NO_MATCHING_FLAVOR)
        for door, rows in self._roll.shut:
            reason, evidence = reason_for(door.refusal, leaving=door.queue in quota.leaving)
            for row in rows:
                if not jobs.i("gpus")[row]:
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
        job, has = jobs.jobs[row], int(jobs.i("gpus")[row])
        own = min(int(self._cap[row]), has + int(jobs.i("lost_gpus")[row]))
        self._cap[row] = own if own >= job.min else 0
        self._refused[row] = (reason, evidence)
        if own > job.min and door.queue in self._roll.parts and row not in self._roll.still:
            claim = self._ledger.holders[door.queue][row]
            self._ledger.release(claim)
            usage = self._roll.asks.usage(job, door.queue, claim.flavors, own)
            self._ledger.book(claim, usage, claim.since)
            self._roll.still[row] = own

    def _refuse(self, row: int, reason: Reason, evidence: Evidence = ()) -> None:
        self._cap[row] = 0
        self._refused[row] = (reason, evidence)

    def _refuse_the_rest(self, refusals: Mapping[Hashable, Refusal]) -> dict[str, list[int]]:
        """Tells everybody who got nothing why; returns them by queue."""
        found: dict[str, list[int]] = {}
        denied, known = self._keeper.denied, dict[int, tuple[Reason, Evidence]]()
        for name, part in self._roll.parts.items():
            rows = [row for row in part.waiting if row not in self._claims.new[name]]
            if not rows:
                continue
            found[name] = rows
            self._cap[rows] = 0
            for row in rows:
                if row in self._claims.without:
                    continue
                if row in denied:
                    self._refused[row] = reason_for(denied[row], kept=True)
                elif row in self._serving.told:
                    self._refused[row] = reason_for(self._serving.told[row])
                elif row in refusals:
                    alike = id(refusals[row])
                    if alike not in known:
                        known[alike] = reason_for(refusals[row])
                    self._refused[row] = known[alike]
                else:
                    self._refused[row] = (Reason.BEHIND_ANOTHER, ())
        return found

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
        self._lost_in.add(claim.queue.root)
        self._losers[row] = reason
        self._refuse(row, reason, (("before", int(self._world.jobs.i("gpus")[row])),))

    def _holding(self, name: str) -> dict[int, Flavors]:
        """Those of a queue that have quota and may have another size."""
        still, losers = self._roll.still, self._losers
        running = self._roll.parts[name].running.items()
        found = {row: own for row, (own, _) in running if row not in still and row not in losers}
        return found | self._claims.new[name]

    def _wishes(self, new: Mapping[int, Flavors]) -> dict[int, Wishes]:
        jobs, found = self._world.jobs.jobs, dict[int, Wishes]()
        if any(flavor.node_labels or flavor.tolerations for flavor in self._world.quota.flavors):
            running = {
                row: own for part in self._roll.parts.values() for row, (own, _) in part.running.items()
            }
            for row, flavors in (running | dict(new)).items():
                wishes = self._roll.asks.where(jobs[row], flavors)
                if wishes is not None:
                    found[row] = wishes
        return found

    def _types(self, new: Mapping[int, Flavors]) -> IntArray | None:
        """The GPU type of each row, where there is a choice."""
        world = self._world
        if len(world.nodes.types) == 1 and not world.jobs.picky:
            return None
        possible: dict[int, Set[int]] = {}
        for row, flavors in new.items():
            kinds = self._roll.asked(row).kinds
            accepted = [kinds[flavor] for _, flavor in flavors if flavor in kinds]
            possible[row] = frozenset.intersection(*accepted) if accepted else frozenset()
        idle = set(np.flatnonzero(self._cap == 0).tolist())
        return assign_types(world, world.capacity(), possible, idle)

    def _contested(self, left: Mapping[str, list[int]]) -> frozenset[int]:
        """Those that got quota while others of their tree lost some or wait."""
        queues = self._ledger.tree.queues
        losing = self._lost_in | {queues[name].root for name in left}
        return frozenset(
            row for name, rows in self._claims.new.items() if queues[name].root in losing for row in rows
        )
