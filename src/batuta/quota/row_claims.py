"""Jobs of a World as claims: made of rows when somebody has to look at them, and not before."""

from __future__ import annotations

import math
from collections.abc import Hashable, Set
from functools import cached_property
from itertools import chain

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray
from batuta.core.quota import Flavors
from batuta.core.world import World
from batuta.quota.claim import Claim
from batuta.quota.holders import Holders
from batuta.quota.loss import lost_gpu_s, predicted_ends_s
from batuta.quota.reservation import Release
from batuta.quota.roll import Roll
from batuta.quota.tree import Node, Tree


class RowClaims:
    """Knows who has quota in this round, from before or since it began."""

    def __init__(
        self, world: World, now_s: float, tree: Tree, roll: Roll, without: Set[int], patience_s: float
    ) -> None:
        self._world, self._now_s, self._tree, self._roll = world, now_s, tree, roll
        self.due: BoolArray = world.jobs.submit_s <= now_s - patience_s
        """By row: who has waited so long that nobody may delay it any more."""
        self._due: list[bool] = self.due.tolist()
        self._releases_of: dict[Node, list[Release]] = {}
        self.without = without
        """Rows for which there is no place now: they get no quota."""
        self.new: dict[str, dict[int, Flavors]] = {name: {} for name in roll.parts}
        """By queue and row: those that get quota in this round, and in which flavors."""
        self.weighed: set[str] = set()
        """Queues in which somebody had to choose who goes: that is never twice the same, for work goes on."""

    def is_due(self, row: int) -> bool:
        """Whether a job has waited so long that nobody may delay it any more."""
        return self._due[row]

    def blocks(self, row: int) -> bool:
        """Whether a job lets nobody of its queue pass who would delay it."""
        return self._due[row] and row not in self.without

    def waiting(self, row: int, queue: Node) -> Claim:
        """Somebody who waits for quota of a queue."""
        job, ask = self._world.jobs.jobs[row], self._roll.ask_of[row]
        return Claim(
            row,
            queue,
            ask.pod_sets,
            job.priority,
            (job.submit_s, row),
            only=ask.only,
            stuck=row in self.without,
            due=self.is_due(row),
            way=ask.way,
            shape=id(ask),
        )

    def holders(self, name: str) -> dict[Hashable, Claim]:
        """Those of a queue that have quota, for who has to choose among them."""
        found = self.fresh(name)
        world, node = self._world, self._tree.queues[name]
        if self._roll.parts[name].running:
            self.weighed.add(name)
        for row, (flavors, usage) in self._roll.parts[name].running.items():
            job = world.jobs.jobs[row]
            lost_s = lost_gpu_s(world, row, self._now_s)
            claim = Claim(row, node, (), job.priority, (job.submit_s, row), lost_s)
            claim.flavors, claim.usage, claim.stays = flavors, usage, row in self._roll.still
            claim.since = float(np.fmax(world.jobs.last_start_s[row], 0.0))
            found[row] = claim
        return found

    def lowest(self, name: str) -> float:
        """The lowest priority among those of a queue that have quota; infinite if nobody has."""
        rows = chain(self._roll.parts[name].running, self.new[name])
        return min(map(self._roll.priorities.__getitem__, rows), default=math.inf)

    def fresh(self, name: str) -> dict[Hashable, Claim]:
        """Those of a queue that got their quota in this round."""
        found: dict[Hashable, Claim] = {}
        queue = self._tree.queues[name]
        for row, flavors in self.new[name].items():
            claim = found[row] = self.waiting(row, queue)
            claim.flavors, claim.usage, claim.since = flavors, self._roll.ask_of[row].usage, self._now_s
        return found

    def ends_s(self, row: Hashable) -> float:
        """When a job will have ended, if it had its `min` from now on."""
        assert isinstance(row, int)
        return self._listed_ends_s[row]

    @cached_property
    def ends_by_row_s(self) -> FloatArray:
        """The same for all rows."""
        return predicted_ends_s(self._world, self._now_s)

    @cached_property
    def _listed_ends_s(self) -> list[float]:
        ends_s: list[float] = self.ends_by_row_s.tolist()
        return ends_s

    def releases(self, root: Node) -> list[Release]:
        """What those give back who run in a tree, the soonest first."""
        known = self._releases_of.get(root)
        if known is None:
            known = self._releases_of[root] = [
                Release(self._listed_ends_s[row], node, usage, row)
                for node in root.queues()
                for row, (_, usage) in self._roll.parts[node.name].running.items()
            ]
            known.sort(key=lambda one: one.ends_s)
        return known


class RowHolders(Holders):
    """Those who have quota, as rows for as long as nobody has to choose among them."""

    def __init__(self, claims: RowClaims) -> None:
        super().__init__()
        self._claims = claims

    def make(self, queue: str) -> dict[Hashable, Claim]:
        return self._claims.holders(queue)

    def lowest_unseen(self, queue: str) -> float:
        return self._claims.lowest(queue)
