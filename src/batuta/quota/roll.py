"""The jobs of a World by queue: who has quota and how much, who waits and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field

from batuta.core.job import Job, JobId
from batuta.core.quota import ClusterQueue, Flavors, Quota, Strategy, Within
from batuta.core.withhold import in_motion_or_left_alone, withheld
from batuta.core.world import World
from batuta.quota.asks import Ask, Asks
from batuta.quota.doors import Door, open_door
from batuta.quota.tree import Amounts, Tree

DEFAULT_QUEUE = "default"


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
    """What has been worked out of `Roll.spare`."""


class Memory:
    """What can be kept from cycle to cycle for as long as quota stays the same.

    It belongs to one loop: two cycles at the same time would write into the same tree. Whoever decides beside
    the engine takes rules of its own.
    """

    def __init__(self) -> None:
        self._tree: tuple[Quota, Tree] | None = None
        self.asks: dict[JobId, tuple[Job, list[int], Ask]] = {}
        """By job: what it asks for, given this request and what nodes could give to it."""

    def empty_tree(self, quota: Quota) -> Tree:
        if self._tree is None or self._tree[0] is not quota:
            self._tree = quota, Tree(quota)
            self.asks = {}
        self._tree[1].clear()
        return self._tree[1]


class Roll:
    """Calls all jobs, and enters what they use into the tree. One pass over all of them, so it is terse."""

    def __init__(self, world: World, now_s: float, tree: Tree, memory: Memory) -> None:
        jobs = world.jobs
        self._world, self._tree = world, tree
        self._before, memory.asks = memory.asks, {}
        self._memory = memory
        self.asks = Asks(world, tree)
        self.parts = {queue.name: self._part(queue) for queue in world.quota.cluster_queues}
        self.priorities: list[int] = jobs.i("priority").tolist()
        self.ask_of: list[Ask | None] = [None] * jobs.n
        self.quiet: list[int] = []
        """Rows of jobs that shall not run now, whatever quota says."""
        self.still: dict[int, int] = {}
        """Rows of jobs that are not to be changed now, and the size that they keep."""
        self.no_flavor: list[int] = []
        """Rows for whose jobs there are nodes, but none that their queue has quota for."""
        self.shut: list[tuple[Door, list[int]]] = []
        """Doors through which nothing goes now, and the rows of those before and behind them."""
        self._call(now_s)
        for name, part in self.parts.items():
            self._enter(name, part)

    def _part(self, queue: ClusterQueue) -> Part:
        parent, rules = self._tree.queues[queue.name].parent, queue.preemption
        flat = parent is None or parent.parent is None
        plain = flat and not rules.while_borrowing and not self._world.quota.fair_sharing
        return Part(queue.strategy is Strategy.STRICT_FIFO, rules.within, plain)

    def asked(self, row: int) -> Ask:
        found = self.ask_of[row]
        assert found is not None
        return found

    def _call(self, now_s: float) -> None:
        jobs = self._world.jobs
        hushed = withheld(jobs, now_s).tolist() if jobs.held_back else None
        moving = in_motion_or_left_alone(jobs, now_s)
        rows_of: list[tuple[Door, list[int], list[int]] | None] = (
            [
                None if door is None else (door, [], [])
                for door in map(self._door, *zip(*jobs.queues, strict=True))
            ]
            if jobs.queues
            else []
        )
        has = jobs.i("gpus").tolist()
        for row, number in enumerate(jobs.i("queue").tolist()):
            way = rows_of[number]
            if way is None:
                continue
            if has[row]:
                way[1].append(row)
            elif hushed is not None and hushed[row]:
                self.quiet.append(row)
            else:
                way[2].append(row)
        still: list[bool] = [] if moving is None else moving.tolist()
        for way in rows_of:
            if way is not None:
                self._sort_in(*way, has, still)

    def _door(self, namespace: str, name: str) -> Door | None:
        """None for jobs that quota does not concern: they name no queue, and there is no default one."""
        way = self._world.quota.way(namespace, name)
        return None if way is None and name == DEFAULT_QUEUE else open_door(self._world.quota, way, name)

    def _sort_in(
        self, door: Door, running: list[int], waiting: list[int], has: list[int], still: list[bool]
    ) -> None:
        part, jobs = self.parts.get(door.queue), self._world.jobs.jobs
        if door.refusal is not None:
            self.shut.append((door, running + waiting))
        elif part is not None:
            part.waiting.extend(waiting)
        if part is None:
            return
        flavors_of, asks = self._world.flavors, self.asks
        for row in running:
            job = jobs[row]
            flavors = flavors_of.get(job.id) or asks.found(row, door.queue)
            size = job.min
            if still and still[row]:
                size = self.still[row] = max(has[row], job.min)
            part.running[row] = flavors, asks.usage(job, door.queue, flavors, size)

    def _enter(self, name: str, part: Part) -> None:
        """Books what runs in a queue, and puts what waits in order."""
        total: Amounts = {}
        for _, usage in part.running.values():
            for cell, amount in usage.items():
                total[cell] = total.get(cell, 0) + amount
        self._tree.queues[name].add(total)
        kept = list[int]()
        for row in part.waiting:
            ask = self._ask(row, name)
            if ask.kinds:
                self.ask_of[row] = ask
                kept.append(row)
            elif ask.ever:
                self.no_flavor.append(row)
            # Without nodes for it at all the next step says why, in its own words.
        priorities = self.priorities
        # Rows are numbered by age, and sorting keeps the order of equals.
        part.waiting = sorted(kept, key=lambda row: -priorities[row])

    def _ask(self, row: int, queue: str) -> Ask:
        world = self._world
        job, most = world.jobs.jobs[row], world.most_for(row)
        known = self._before.get(job.id)
        if known is None or known[0] is not job or known[1] is not most or known[2].queue != queue:
            known = job, most, self.asks.of(row, queue)
        self._memory.asks[job.id] = known
        return known[2]

    def spare(self, part: Part, below: int) -> Amounts:
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
