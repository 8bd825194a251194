"""Step 1 of a cycle: who may run by quota, in which flavor, and what each may grow to.

A job's `min` is what it holds quota for. Growth above that takes what is idle, and is given back without
anybody having to be pushed aside: it is worked out anew in each cycle, from what the `min`s leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from batuta.core.admission import NOBODY, Admitted, Budget
from batuta.core.allocate import assign_types
from batuta.core.arrays import IntArray
from batuta.core.node_table import NodeRequirements, within_reach
from batuta.core.quota import DEFAULT_QUEUE, Flavors, rest_of
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World
from batuta.quota.answers import Answers, New
from batuta.quota.asks import Asks
from batuta.quota.census import Census
from batuta.quota.doors import doors_of
from batuta.quota.memory import Memory
from batuta.quota.plain_round import PlainRound
from batuta.quota.tree_round import TreeRound
from batuta.quota.world_reasons import about_rest


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
    """One look at all jobs: closely where something has changed, and else at what was said before."""

    def __init__(
        self, world: World, now_s: float, without: Set[int], patience_s: float, memory: Memory
    ) -> None:
        self._world, self._now_s = world, now_s
        self._memory, self._tree = memory, memory.empty_tree(world.effective_quota)
        memory.heed_nodes(world)
        doors = doors_of(world, memory.doors)
        self._census = Census(world, now_s, doors, memory.number_of, without, patience_s)
        self._rows = {tree: rows.tolist() for tree, rows in self._census.rows.items()}
        self._answers: dict[int, Answers] = {}
        """By tree."""
        self._rounds: list[PlainRound | TreeRound] = []

    def admit(self) -> Admitted:
        changed = self._recall()
        self._look_at(changed)
        served = self._served()
        flavors: dict[int, Flavors] = {}
        for rows, new, _ in served:
            flavors.update(zip(rows, new.flavors, strict=True))
        wishes = self._wishes(flavors)
        allowed = self._caps()
        gpu_type = self._types(allowed)
        # What could not be placed even if it were alone is no reason to keep quota from others.
        cap, _ = within_reach(self._world, allowed, gpu_type, wishes)
        assert cap is not None
        # Where nodes limit jobs otherwise than before, those who grow have to be looked at again.
        self._look_at([tree for tree in self._census.rows if not self._grew_from(cap, tree)])
        for one in self._rounds:
            one.grow(cap, self._answers)
        self._remember()
        return Admitted(
            cap=cap,
            refused=self._refused(),
            gpu_type=gpu_type,
            budgets=self._budgets(),
            wishes=wishes,
            flavors=flavors,
            losers=self._losers(),
            # Others of their tree lost some or wait.
            contested=frozenset(chain.from_iterable(rows for rows, _, contested in served if contested)),
        )

    def _recall(self) -> list[int]:
        """Finds the answers that still hold; returns the trees where something has changed."""
        census, past = self._census, self._memory.past
        for tree in census.rows:
            if tree in past and past[tree].holds(census, tree):
                self._answers[tree] = past[tree].answers
        return [tree for tree in census.rows if tree not in self._answers]

    def _look_at(self, trees: list[int]) -> None:
        """Gives out quota in these trees: in plain ones at once, if nothing else has to be done there."""
        given = self._census, self._tree, self._memory
        if plain := [tree for tree in trees if tree in self._memory.plain.place_of]:
            at_once = PlainRound(self._world, self._now_s, plain, *given)
            self._answers.update(at_once.serve())
            self._rounds.append(at_once)
            trees = sorted(set(trees) - set(at_once.trees))
        if trees:
            one_by_one = TreeRound(self._world, self._now_s, trees, *given)
            self._answers.update(one_by_one.serve())
            self._rounds.append(one_by_one)

    def _grew_from(self, cap: IntArray, tree: int) -> bool:
        """Whether it is known what the jobs of a tree grow to, or will be."""
        before = self._answers[tree].grown_from
        return before is None or np.array_equal(before, cap[self._census.rows[tree]])

    def _remember(self) -> None:
        memory = self._memory
        fresh = {tree for one in self._rounds for tree in one.trees}
        memory.past = {
            tree: past
            for tree, past in memory.past.items()
            if tree in self._census.rows and tree not in fresh
        }
        for one in self._rounds:
            memory.past.update(one.as_past(self._answers))
        memory.forget_the_gone(self._world)

    def _served(self) -> list[tuple[list[int], New, bool]]:
        """Those who get quota, queue by queue: their rows, what they get, and whether that is contested."""
        found: list[tuple[list[int], New, bool]] = []
        for name, tree in self._memory.number_of.items():
            answers = self._answers.get(tree)
            if answers is not None and name in answers.new:
                new = answers.new[name]
                found.append(([*map(self._rows[tree].__getitem__, new.places)], new, answers.contested))
        return found

    def _caps(self) -> IntArray:
        cap: IntArray = self._world.jobs.max.copy()
        for tree, answers in self._answers.items():
            cap[self._census.rows[tree]] = answers.cap
        return cap

    def _wishes(self, new: Mapping[int, Flavors]) -> dict[int, NodeRequirements]:
        """What those want of nodes whose flavors are good for some only."""
        jobs, found = self._world.jobs.jobs, dict[int, NodeRequirements]()
        if any(flavor.node_labels or flavor.tolerations for flavor in self._world.effective_quota.flavors):
            holding = {
                self._rows[tree][place]: flavors
                for tree, answers in self._answers.items()
                for place, flavors in answers.holding
            }
            asks = Asks(self._world, self._tree)
            for row, flavors in (holding | dict(new)).items():
                wishes = asks.where(jobs[row], flavors)
                if wishes is not None:
                    found[row] = wishes
        return found

    def _types(self, cap: IntArray) -> IntArray | None:
        """The GPU type of each row, where there is a choice."""
        world = self._world
        if len(world.nodes.types) == 1 and not world.jobs.picky:
            return None
        possible: dict[int, Set[int]] = {}
        for tree, answers in self._answers.items():
            for new in answers.new.values():
                for place, flavors, ask in zip(*new, strict=True):
                    accepted = [ask.kinds[flavor] for _, flavor in flavors if flavor in ask.kinds]
                    own = frozenset.intersection(*accepted) if accepted else frozenset()
                    possible[self._rows[tree][place]] = own
        return assign_types(world, world.capacity(), possible, set(np.flatnonzero(cap == 0).tolist()))

    def _refused(self) -> dict[int, tuple[Reason, Evidence]]:
        found: dict[int, tuple[Reason, Evidence]] = {}
        quota = self._world.effective_quota
        default = self._memory.number_of[DEFAULT_QUEUE] if rest_of(quota) else None
        for tree, answers in self._answers.items():
            rows = map(self._rows[tree].__getitem__, answers.refused)
            reasons = answers.reasons
            if tree == default:
                reasons = [about_rest(quota, reason, evidence) for reason, evidence in reasons]
            found.update(zip(rows, reasons, strict=True))
        return found

    def _budgets(self) -> tuple[Budget, ...]:
        found: list[Budget] = []
        for name, tree in self._memory.number_of.items():
            if tree in self._answers:
                rows = self._census.rows[tree]
                for places, gpus, beside in self._answers[tree].budgets.get(name, ()):
                    found.append(Budget(rows[places], gpus, beside))
        return tuple(found)

    def _losers(self) -> dict[int, Reason]:
        return {
            self._rows[tree][place]: reason
            for tree, answers in self._answers.items()
            for place, reason in answers.losers.items()
        }
