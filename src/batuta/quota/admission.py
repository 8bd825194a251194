"""Step 1 of a cycle: who may run by quota, in which flavor, and what each may grow to.

A job's `min` is what it holds quota for. Growth above that takes what is idle, and is given back without
anybody having to be pushed aside: it is worked out anew in each cycle, from what the `min`s leave.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from batuta.core.admission import NOBODY, Admitted
from batuta.core.arrays import IntArray
from batuta.core.job import NO_RESTART_S
from batuta.core.pools import assign_types
from batuta.core.quota import Flavors, Within
from batuta.core.reach import Wishes, within_reach
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World
from batuta.quota.claim import Claim
from batuta.quota.cuts import cut
from batuta.quota.doors import Door
from batuta.quota.flavors import Assignment, Mode
from batuta.quota.growth import Growers, grow
from batuta.quota.ledger import Ledger
from batuta.quota.lines import Lines, Pushed
from batuta.quota.loss import lost_gpu_s, predicted_ends_s
from batuta.quota.own_quota import serve_own
from batuta.quota.refusal import Refusal
from batuta.quota.reservation import Keeper, Release
from batuta.quota.roll import Memory, Part, Roll
from batuta.quota.row_line import RowLine
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
        self._world, self._now_s, self._without = world, now_s, without
        self._due_before_s = now_s - patience_s
        self._ledger = Ledger(world.quota, memory.empty_tree(world.quota), self._claims_of)
        self._keeper = Keeper(self._ledger, self._ends_s, self._releases)
        self._releases_of: dict[Node, list[Release]] = {}
        self._roll = Roll(world, now_s, self._ledger.tree, memory)
        self._cap: IntArray = world.jobs.i("max").copy()
        self._refused: dict[int, tuple[Reason, Evidence]] = {}
        self._told: dict[int, Refusal] = {}
        """Why those wait for whom something is kept."""
        self._losers: dict[int, Reason] = {}
        self._lost_in: set[Node] = set()
        self._new: dict[str, dict[int, Flavors]] = {}
        """By queue and row: those that get quota in this round, and in which flavors."""

    def admit(self) -> Admitted:
        world, roll = self._world, self._roll
        self._heed_doors()
        for claim in cut(self._ledger, self._may_be_cut):
            self._lose(claim, Reason.QUOTA_CUT)
        waiting = self._serve_own()
        lines = Lines(self._ledger, self._keeper, waiting)
        lines.settle(self._let_in, self._push)
        for line in waiting.values():
            lines.refusals.update(line.why_passed())
        left = self._refuse_the_rest(lines.refusals)
        self._keeper.forget()
        flavors = {row: own for rows in self._new.values() for row, own in rows.items()}
        wishes = self._wishes(flavors)
        gpu_type = self._types(flavors)
        # What could not be placed even if it were alone is no reason to keep quota from others.
        cap, _ = within_reach(world, self._cap, gpu_type, wishes)
        assert cap is not None
        growers = {name: Growers(self._ledger.tree.queues[name], self._holding(name)) for name in roll.parts}
        return Admitted(
            cap=cap,
            refused=self._refused,
            gpu_type=gpu_type,
            budgets=grow(world, self._ledger, growers.values(), cap),
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

    def _serve_own(self) -> dict[str, RowLine]:
        """Gives out what belongs to each queue; returns the lines of those who need more than that."""
        roll, lines = self._roll, dict[str, RowLine]()
        for name, part in roll.parts.items():
            self._new[name] = {}
            self._serve_line(name, part.waiting, self._blocks if not part.strict else _always)
        # Now it is known what is left in each cohort, and so what can be done for those who have waited long.
        glances = {
            name: partial(self._hopeless, self._ledger.tree.queues[name], part)
            for name, part in roll.parts.items()
        }
        self._serve_due(glances)
        for name, part in roll.parts.items():
            if part.waiting:
                lines[name] = RowLine(
                    part.strict, part.waiting, roll.ask_of, roll.priorities, self._claim, glances[name]
                )
            if name in self._ledger.holders:
                # Somebody has looked already, so some are missing.
                for row, claim in self._fresh(name).items():
                    self._ledger.holders[name].setdefault(row, claim)
        return lines

    def _serve_due(self, glances: Mapping[str, Callable[[int], Refusal | None]]) -> None:
        """Looks at those who have waited long, and let nobody pass, before anybody else may borrow.

        What is left of its queue's quota is kept for each of them. Who gets what it needs lets the line go
        on, and so does who can get nothing now. If others would have to give way for it, that is for later.
        """
        roll, ledger = self._roll, self._ledger
        lines = {name for name, part in roll.parts.items() if part.waiting and not part.strict}
        while lines:
            heads = [(name, first) for name in roll.parts if name in lines and (first := self._blocked(name))]
            lines = set()
            hopeful: list[tuple[str, list[int]]] = []
            for name, first in heads:
                refusal = glances[name](first[-1])
                if refusal is None:
                    hopeful.append((name, first))
                else:
                    self._pass_by(name, first, refusal)
                self._keep_for(first[-1])
            for name, first in sorted(hopeful, key=lambda head: (-roll.priorities[head[1][-1]], head[1][-1])):
                claim = self._claim(first[-1])
                self._keeper.give_up(claim.queue)
                refusal = glances[name](claim.row)
                if refusal is not None:
                    self._pass_by(name, first, refusal)
                elif (found := ledger.fit(claim)) is not None:
                    ledger.admit(claim, found)
                    self._let_in(claim)
                    self._serve_line(name, roll.parts[name].waiting[len(first) :], self._blocks, first[:-1])
                    lines.add(name)

    def _pass_by(self, name: str, first: list[int], refusal: Refusal) -> None:
        """The last of the `first` can get nothing now: what is left is kept for it, and the line goes on."""
        # In its own numbers, not in those that count what is kept for it as used.
        self._told[first[-1]] = refusal
        self._keep_for(first[-1])
        self._serve_line(name, self._roll.parts[name].waiting[len(first) :], _never, first)

    def _blocked(self, name: str) -> list[int]:
        """The rows of a line up to the first that lets nobody pass; none if there is no such row."""
        rows = self._roll.parts[name].waiting
        at = next((at for at, row in enumerate(rows) if self._blocks(row)), None)
        return [] if at is None else rows[: at + 1]

    def _keep_for(self, row: int) -> None:
        """Sets aside what is left of its queue's quota for a job, if it can ever have what it needs."""
        claim, usage = self._claim(row), self._roll.asked(row).usage
        if all(amount <= claim.queue.most(cell) for cell, amount in usage.items()):
            self._keeper.keep(claim, Assignment(Mode.NO_CANDIDATES, usage=usage))

    def _serve_line(
        self, name: str, rows: list[int], stops: Callable[[int], bool], first: list[int] | None = None
    ) -> None:
        """Serves rows of a queue that stand behind the `first` ones."""
        roll = self._roll
        least = roll.priorities[first[-1]] if first else None
        node = self._ledger.tree.queues[name]
        served = serve_own(node, rows, roll.ask_of, roll.priorities, self._without, stops, least)
        self._new[name].update((row, roll.asked(row).flavors) for row in served.rows)
        roll.parts[name].waiting = (first or []) + served.left

    def _blocks(self, row: int) -> bool:
        return row not in self._without and self._is_due(row)

    def _is_due(self, row: int) -> bool:
        return self._world.jobs.jobs[row].submit_s <= self._due_before_s

    def _ends_s(self, claim: Claim) -> float:
        return self._all_ends_s[claim.row]

    @cached_property
    def _all_ends_s(self) -> list[float]:
        ends_s: list[float] = predicted_ends_s(self._world, self._now_s).tolist()
        return ends_s

    def _releases(self, root: Node) -> list[Release]:
        """What those give back who run in a tree, the soonest first."""
        known = self._releases_of.get(root)
        if known is None:
            known = self._releases_of[root] = []
            for node in root.queues():
                part = self._roll.parts.get(node.name)
                for row, (_, usage) in part.running.items() if part is not None else ():
                    known.append(Release(self._all_ends_s[row], node, usage))
            known.sort(key=lambda one: one.ends_s)
        return known

    def _claim(self, row: int) -> Claim:
        """Somebody who waits."""
        job, ask = self._world.jobs.jobs[row], self._roll.asked(row)
        return Claim(
            row,
            self._ledger.tree.queues[ask.queue],
            ask.pod_sets,
            job.priority,
            (job.submit_s, row),
            only=ask.only,
            stuck=row in self._without,
            due=self._is_due(row),
            shape=id(ask),
        )

    def _hopeless(self, node: Node, part: Part, row: int) -> Refusal | None:
        """Why a job cannot have quota now, where that is seen at a glance.

        It would have to borrow what is not there, however many of its own queue were pushed aside for it.
        """
        ask = self._roll.asked(row)
        if not part.plain or len(ask.kinds) != 1 or row in self._without:
            return None
        # What is kept for another one might still be had, by a job that is short.
        spare = self._keeper.kept_in(node)
        if part.within is not Within.NEVER:
            equals = part.within is Within.LOWER_OR_NEWER_EQUAL_PRIORITY
            aside = self._roll.spare(part, self._roll.priorities[row] + equals)
            spare = {cell: spare.get(cell, 0) + aside.get(cell, 0) for cell in {*spare, *aside}}
        return self._ledger.refusal(node, ask.usage, spare)

    def _claims_of(self, name: str) -> dict[Hashable, Claim]:
        """Those of a queue that have quota, for who has to choose among them."""
        found: dict[Hashable, Claim] = dict(self._fresh(name))
        world, node = self._world, self._ledger.tree.queues[name]
        part = self._roll.parts.get(name)
        for row, (flavors, usage) in part.running.items() if part is not None else ():
            job = world.jobs.jobs[row]
            claim = Claim(
                row, node, (), job.priority, (job.submit_s, row), lost_gpu_s(world, row, self._now_s)
            )
            claim.flavors, claim.usage, claim.stays = flavors, usage, row in self._roll.still
            claim.since = float(np.fmax(world.jobs.f("last_start_s")[row], 0.0))
            found[row] = claim
        return found

    def _fresh(self, name: str) -> dict[Hashable, Claim]:
        found: dict[Hashable, Claim] = {}
        for row, flavors in self._new.get(name, {}).items():
            claim = self._claim(row)
            claim.flavors, claim.usage, claim.since = flavors, self._roll.asked(row).usage, self._now_s
            found[row] = claim
        return found

    def _refuse(self, row: int, reason: Reason, evidence: Evidence = ()) -> None:
        self._cap[row] = 0
        self._refused[row] = (reason, evidence)

    def _refuse_the_rest(self, refusals: Mapping[Hashable, Refusal]) -> dict[str, list[int]]:
        """Tells everybody who got nothing why; returns them by queue."""
        found: dict[str, list[int]] = {}
        denied, known = self._keeper.denied, dict[int, tuple[Reason, Evidence]]()
        for name, part in self._roll.parts.items():
            rows = [row for row in part.waiting if row not in self._new[name]]
            if not rows:
                continue
            found[name] = rows
            self._cap[rows] = 0
            for row in rows:
                if row in self._without:
                    continue
                if row in denied:
                    self._refused[row] = reason_for(denied[row], kept=True)
                elif row in self._told:
                    self._refused[row] = reason_for(self._told[row])
                elif row in refusals:
                    alike = id(refusals[row])
                    if alike not in known:
                        known[alike] = reason_for(refusals[row])
                    self._refused[row] = known[alike]
                else:
                    self._refused[row] = (Reason.BEHIND_ANOTHER, ())
        return found

    def _let_in(self, claim: Claim) -> None:
        self._new[claim.queue.name][claim.row] = claim.flavors

    def _push(self, pushed: Pushed) -> None:
        claim = pushed.claim
        if self._new[claim.queue.name].pop(claim.row, None) is not None:
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
        return found | self._new[name]

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
            row for name, rows in self._new.items() if queues[name].root in losing for row in rows
        )


def _always(row: int) -> bool:
    return True


def _never(row: int) -> bool:
    return False
