"""The jobs of a World by queue: who has quota and how much, who waits and in which order."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.eligibility import in_motion_or_left_alone, withheld
from batuta.core.quota import ClusterQueue, Flavors, Strategy, Within
from batuta.core.world import World
from batuta.quota.asks import Ask, Asks
from batuta.quota.doors import Door, doors_of
from batuta.quota.memory import Memory
from batuta.quota.tree import Amounts, Tree


@dataclass(slots=True)
class Part:
    """The jobs of one cluster queue."""

    strict: bool
    within: Within
    plain: bool
    """Whether it takes nothing from others while it borrows, and has one cohort above it at most."""
    running: dict[int, tuple[Flavors, Amounts]] = field(default_factory=dict)
    """By row: what it uses, counted with its `min`; a job that must not be touched now with all it has."""
    waiting: list[int] = field(default_factory=list)
    """Rows, the one whose turn it is first."""
    spare: dict[int, Amounts] = field(default_factory=dict)
    """What has been worked out of who could go, by priority."""


class Called(NamedTuple):
    """Some queues, and the rows of their jobs."""

    queues: Set[str]
    rows: BoolArray


class Roll:
    """Calls all jobs, and enters what they use into the tree. One pass over all of them, so it is terse."""

    def __init__(
        self, world: World, now_s: float, tree: Tree, memory: Memory, called: Called | None = None
    ) -> None:
        """Only those who are `called`, if not all are."""
        jobs = world.jobs
        self._world, self._tree, self._memory, self._called = world, tree, memory, called
        self.asks = Asks(world, tree, memory.alike)
        self.parts = {
            queue.name: self._part(queue)
            for queue in world.effective_quota.cluster_queues
            if called is None or queue.name in called.queues
        }
        self.priorities: list[int] = jobs.priority.tolist()
        self.ask_of: dict[int, Ask] = {}
        """By row of those who came to stand in line."""
        self.cell = np.full(jobs.n, -1, dtype=np.int64)
        """By row of these: the one cell that it asks for; -1 if it has a choice or asks for several, …"""
        self.amount = np.zeros(jobs.n, dtype=np.int64)
        """… and how much of it."""
        self.quiet: list[int] = []
        """Rows of jobs that shall not run now, whatever quota says."""
        self.still: dict[int, int] = {}
        """Rows of jobs that are not to be changed now, and the size that they keep."""
        self.no_flavor: list[int] = []
        """Rows for whose jobs there are nodes, but none that their queue has quota for."""
        self.shut: list[tuple[Door, list[int]]] = []
        """Doors through which nothing goes now, and the rows of those before and behind them."""
        self._call(now_s)
        self._ask()
        for name, part in self.parts.items():
            self._enter(name, part)

    def _part(self, queue: ClusterQueue) -> Part:
        parent, rules = self._tree.queues[queue.name].parent, queue.preemption
        flat = parent is None or parent.parent is None
        plain = flat and not rules.while_borrowing and not self._world.effective_quota.fair_sharing
        return Part(queue.strategy is Strategy.STRICT_FIFO, rules.within, plain)

    def _call(self, now_s: float) -> None:
        """Finds those that run and those that wait, by the door through which they come."""
        jobs, doors = self._world.jobs, doors_of(self._world, self._memory.doors)
        if not doors:
            return
        concerned = np.array([door is not None for door in doors])[jobs.queue]
        if self._called is not None:
            concerned &= self._called.rows
        has = jobs.held
        waits = concerned & (has == 0)
        if jobs.held_back:
            hushed = withheld(jobs, now_s)
            self.quiet = np.flatnonzero(waits & hushed).tolist()
            waits &= ~hushed
        running = self._by_door(np.flatnonzero(concerned & (has > 0)))
        waiting = self._by_door(np.flatnonzero(waits))
        moving = in_motion_or_left_alone(jobs, now_s)
        still: list[bool] = [] if moving is None else moving.tolist()
        for number in sorted(running.keys() | waiting.keys()):
            door = doors[number]
            assert door is not None
            self._sort_in(door, running.get(number, []), waiting.get(number, []), still)

    def _by_door(self, rows: IntArray) -> dict[int, list[int]]:
        """These rows by the number of their door, the most important first, then the oldest.

        Rows are numbered by age.
        """
        jobs = self._world.jobs
        number = jobs.queue[rows]
        order = np.lexsort((-jobs.priority[rows], number))
        listed: list[int] = rows[order].tolist()
        number = number[order]
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        doors = number[starts]
        bounds = pairwise([*starts.tolist(), len(listed)])
        return {door: listed[start:end] for door, (start, end) in zip(doors.tolist(), bounds, strict=True)}

    def _sort_in(self, door: Door, running: list[int], waiting: list[int], still: list[bool]) -> None:
        part, jobs = self.parts.get(door.queue), self._world.jobs
        if door.refusal is not None:
            self.shut.append((door, running + waiting))
        elif part is not None:
            part.waiting = self._merged(part.waiting, waiting)
        if part is None:
            return
        flavors_of, uses = self._world.flavors, self._memory.uses
        for row in sorted(running):
            job = jobs.jobs[row]
            flavors = flavors_of.get(job.id) or self.asks.found(row, door.queue)
            size = job.min
            if still and still[row]:
                size = self.still[row] = max(int(jobs.held[row]), job.min)
            known = uses.get(job.id)
            if known is None or known[0] is not job or known[1] != flavors or known[2] != size:
                known = uses[job.id] = job, flavors, size, self.asks.usage(job, flavors, size)
            part.running[row] = flavors, known[3]

    def _merged(self, line: list[int], more: list[int]) -> list[int]:
        """One line of those who come to a cluster queue by several doors."""
        if not line or not more:
            return line or more
        priorities = self.priorities
        return sorted(line + more, key=lambda row: (-priorities[row], row))

    def _ask(self) -> None:
        """Notes what everybody in line asks for. Those leave it who can have nothing, whatever is free."""
        lines = [part.waiting for part in self.parts.values()]
        rows = np.fromiter(chain.from_iterable(lines), np.int64)
        if not rows.size:
            return
        menu = np.repeat([self._memory.menu_of[name] for name in self.parts], [len(line) for line in lines])
        asks, which = self.asks.of_all(rows, self._memory.menus, menu)
        self.ask_of = dict(zip(rows.tolist(), map(asks.__getitem__, which.tolist()), strict=True))
        ways = np.array([(-1, 0) if ask.way is None else (ask.way.cell, ask.way.amount) for ask in asks])
        self.cell[rows], self.amount[rows] = ways[which].T
        if all(ask.kinds and not ask.needs_no_quota for ask in asks):
            return
        for part in self.parts.values():
            # Who needs no quota waits for none, nor for its turn behind those who do.
            own = [(row, ask) for row in part.waiting if not (ask := self.ask_of[row]).needs_no_quota]
            # Without nodes for it at all the next step says why, in its own words.
            self.no_flavor += [row for row, ask in own if not ask.kinds and ask.ever]
            part.waiting = [row for row, ask in own if ask.kinds]

    def _enter(self, name: str, part: Part) -> None:
        """Books what runs in a queue."""
        total: Amounts = {}
        for _, usage in part.running.values():
            for cell, amount in usage.items():
                total[cell] = total.get(cell, 0) + amount
        self._tree.queues[name].add(total)

    def could_go(self, part: Part, priority: int) -> Amounts:
        """What those of a queue have whom a job of this priority could push aside there."""
        if part.within is Within.NEVER:
            return {}
        return self._spare(part, priority + (part.within is Within.LOWER_OR_NEWER_EQUAL_PRIORITY))

    def _spare(self, part: Part, below: int) -> Amounts:
        """What jobs of a queue with a lower priority than this have, as far as they could be pushed aside.

        Those that are just being served count for nothing: they are served in the order of their priority.
        """
        found = part.spare.get(below)
        if found is None:
            found = part.spare[below] = {}
            for row, (_, usage) in part.running.items():
                if self.priorities[row] < below and row not in self.still:
                    for cell, amount in usage.items():
                        found[cell] = found.get(cell, 0) + amount
        return found
