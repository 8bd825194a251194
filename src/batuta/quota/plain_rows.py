"""The jobs of plain trees as columns: who has quota, and who waits in which line."""

from __future__ import annotations

from collections.abc import Sequence
from operator import ne
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, IntArray, Partitions
from batuta.core.eligibility import in_motion_or_left_alone, withheld
from batuta.core.quota import MILLI, Flavors
from batuta.core.world import World
from batuta.quota.asks import Ask, Asks
from batuta.quota.census import Census
from batuta.quota.doors import doors_of
from batuta.quota.memory import Memory
from batuta.quota.tree import Tree


class Running(NamedTuple):
    """Those who have quota: queue by queue, and by the door through which they came."""

    row: IntArray
    queue: IntArray
    priority: IntArray
    size: IntArray
    """GPUs that they hold quota for."""
    still: BoolArray
    """Whether they are not to be changed now."""
    flavors: list[Flavors]


class Waiting(NamedTuple):
    """Those who wait: queue by queue, the one whose turn it is first."""

    row: IntArray
    queue: IntArray
    priority: IntArray
    needs: IntArray
    """In thousandths."""
    due: BoolArray
    """Whether they have waited so long that they let nobody pass."""
    ask: IntArray
    """What they ask for, by its number in a list."""


class PlainRows:
    """The rows of some plain trees."""

    def __init__(
        self, world: World, now_s: float, tree: Tree, trees: Sequence[int], census: Census, memory: Memory
    ) -> None:
        self._world, self._now_s, self._census, self._memory = world, now_s, census, memory
        self._quota = quota = memory.plain
        self.settled = np.zeros(len(quota.trees), dtype=bool)
        """By place of a plain tree: whether all of it can be said in columns, as far as is known."""
        self.settled[[quota.place_of[number] for number in trees]] = True
        self.quiet = np.zeros(0, dtype=np.int64)
        """Rows of jobs that shall not run now, whatever quota says."""
        self.no_flavor = self.quiet
        """Rows for whose jobs there are nodes, but none that their queue has quota for; queue by queue."""
        self.asks: list[Ask] = []
        queue, self._lists = self._queues()
        cpu_only = world.jobs.without_gpus()
        if cpu_only is not None:
            # Plain quota is in GPUs alone, so it does not limit jobs that take none.
            queue = np.where(cpu_only, -1, queue)
        rows = np.flatnonzero(queue >= 0)
        has = world.jobs.held[rows] > 0
        self.running = self._running(rows[has], queue[rows[has]])
        self.waiting = self._waiting(rows[~has], queue[rows[~has]], tree)
        self.lines = Partitions(np.bincount(self.waiting.queue, minlength=len(quota.names)), quota.nominal)

    def leave(self, queues: IntArray) -> None:
        """The trees of these queues have to be looked at in another way."""
        self.settled[self._quota.at[queues]] = False

    def _queues(self) -> tuple[IntArray, IntArray]:
        """By row: the number of its plain queue, -1 for others; and the number of the queue that it names."""
        jobs, quota = self._world.jobs, self._quota
        doors = doors_of(self._world, self._memory.doors)
        known = [-1 if door is None else quota.number_of.get(door.queue, -1) for door in doors] or [-1]
        by_door = np.array(known, dtype=np.int64)
        named = jobs.queue
        shut = [at for at, door in enumerate(doors) if door is not None and door.refusal is not None]
        closed = by_door[np.intersect1d(shut, named).astype(np.int64)] if shut else by_door[:0]
        self.leave(closed[closed >= 0])
        by_door = np.where((by_door >= 0) & self.settled[quota.at[by_door]], by_door, -1)
        stuck = by_door[named[list(self._census.without)]]
        self.leave(stuck[stuck >= 0])
        return by_door[named], named

    def _running(self, rows: IntArray, queue: IntArray) -> Running:
        world, jobs = self._world, self._world.jobs
        order = np.lexsort((self._lists[rows], queue))
        rows, queue = rows[order], queue[order]
        flavors = list(map(world.flavors.get, map(jobs.ids.__getitem__, rows.tolist())))
        usual = map(self._quota.flavors.__getitem__, queue.tolist())
        self.leave(queue[np.fromiter(map(ne, flavors, usual), bool, len(rows))])
        moving = in_motion_or_left_alone(jobs, self._now_s)
        still = np.zeros(len(rows), dtype=bool) if moving is None else moving[rows]
        low = jobs.min[rows]
        size = np.where(still, np.maximum(jobs.held[rows], low), low)
        return Running(rows, queue, jobs.priority[rows], size, still, [own or () for own in flavors])

    def _waiting(self, rows: IntArray, queue: IntArray, tree: Tree) -> Waiting:
        world, jobs, memory = self._world, self._world.jobs, self._memory
        if jobs.held_back:
            hushed = withheld(jobs, self._now_s)[rows]
            self.quiet = rows[hushed]
            rows, queue = rows[~hushed], queue[~hushed]
        order = np.lexsort((-jobs.priority[rows], queue))
        rows, queue = rows[order], queue[order]
        menu_of = np.array([memory.menu_of[name] for name in self._quota.names], dtype=np.int64)
        self.asks, which = Asks(world, tree, memory.alike).of_all(rows, memory.menus, menu_of[queue])
        if not all(ask.kinds for ask in self.asks):
            # Without nodes for it at all the next step says why, in its own words.
            refused, stays = np.array([(not ask.kinds and ask.ever, bool(ask.kinds)) for ask in self.asks]).T
            self.no_flavor = rows[refused[which]]
            rows, queue, which = (column[stays[which]] for column in (rows, queue, which))
        return Waiting(
            rows,
            queue,
            jobs.priority[rows],
            jobs.min[rows] * MILLI,
            jobs.submit_s[rows] <= self._now_s - self._census.patience_s,
            which,
        )
