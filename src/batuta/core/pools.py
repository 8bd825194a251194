"""Which GPU type each job competes for, and which shares go together on one card."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.job import Job
from batuta.core.layout import Card
from batuta.core.reach import wishes_of
from batuta.core.world import World

NO_TYPE = -1
ALL_TYPES = -1
"""Stands for the number of a GPU type in a limit on all of them together."""

Limits = Mapping[tuple[int, int], int]
"""How many GPUs of a type the jobs of a queue may have, by the numbers of both."""


def assign_types(world: World, capacity: list[int], limits: Limits | None = None) -> IntArray:
    """One GPU type per row: what a job has, else the fastest accepted one with room for its `min`.

    Policies that see one type at a time need this. Room is counted in row order: an early job has its choice.
    """
    jobs, types = world.jobs, world.nodes.types
    result = jobs.i("gpu_type").copy()
    held: list[int] = result.tolist()
    low: list[int] = jobs.i("min").tolist()
    quota = _QuotaUse(world, limits or {})
    room = list(capacity)
    for row, (kind, need) in enumerate(zip(held, low, strict=True)):
        if kind >= 0:
            room[kind] -= need
            quota.claim(row, kind, need)
    # What those before have or wait for. It does not change when somebody behind is started or stopped for a
    # job that waits: if it did, the job would be sent to another type, and all would go round in circles.
    ahead = [0] * len(types)
    order = sorted(range(len(types)), key=lambda kind: (-capacity[kind], kind))
    for row, need in enumerate(low):
        kind = held[row]
        if kind < 0:
            accepted = _accepted(jobs.jobs[row], types, order)
            if not accepted:
                continue
            if jobs.narrow or limits:
                possible = _possible(world, row, need, accepted, quota)
                if not possible:
                    # It cannot run, so it takes no room from others.
                    result[row] = accepted[0]
                    continue
                accepted = possible
            # With no room anywhere the job queues where the queue is shortest for the size of the pool.
            kind = next(
                (k for k in accepted if room[k] >= need),
                next(
                    (k for k in accepted if capacity[k] - ahead[k] >= need),
                    min(accepted, key=lambda k: (ahead[k] / max(capacity[k], 1), k)),
                ),
            )
            result[row] = kind
            if limits and not quota.claim(row, kind, need):
                # Its queue has used up its quota, so it takes no room now. If it did, others would be sent to
                # other types whenever the room for a job that does not start comes and goes.
                continue
            room[kind] -= need
        ahead[kind] += need
    return result


def _possible(world: World, row: int, need: int, accepted: list[int], quota: _QuotaUse) -> list[int]:
    """The types that can ever have enough for a job, and of which its queue may use as much."""
    most = world.reach[wishes_of(world.jobs.jobs[row])]
    return [kind for kind in accepted if most[kind] >= need and quota.allows(row, kind, need)]


class _QuotaUse:
    """What the jobs of each queue that has a quota need of it, by priority."""

    __slots__ = ("_claims", "_limits", "_priority", "_queue")

    def __init__(self, world: World, limits: Limits) -> None:
        self._limits = limits
        self._queue: list[int] = world.jobs.i("queue").tolist() if limits else []
        self._priority: list[int] = world.jobs.i("priority").tolist() if limits else []
        self._claims: dict[tuple[int, int], Counter[int]] = {}

    def allows(self, row: int, kind: int, need: int) -> bool:
        """Whether a job could have so much if nobody else used the quota of its queue."""
        if not self._limits:
            return True
        queue = self._queue[row]
        return all(self._limits.get((queue, k), need) >= need for k in (kind, ALL_TYPES))

    def claim(self, row: int, kind: int, need: int) -> bool:
        """Notes what a job needs, unless those that go first have left less: its queue refuses it then.

        A higher priority goes first, then what was claimed before.
        """
        if not self._limits:
            return True
        queue, priority = self._queue[row], self._priority[row]
        limited = [(queue, k) for k in (kind, ALL_TYPES) if (queue, k) in self._limits]
        for key in limited:
            claims = self._claims.setdefault(key, Counter())
            first = sum(gpus for level, gpus in claims.items() if level >= priority)
            if first + need > self._limits[key]:
                return False
        for key in limited:
            self._claims[key][priority] += need
        return True


def _accepted(job: Job, types: list[str], order: list[int]) -> list[int]:
    if not job.gpu_types:
        return order
    speeds = dict(job.gpu_types)
    known = [kind for kind in order if types[kind] in speeds]
    return sorted(known, key=lambda kind: -speeds[types[kind]])


@dataclass(slots=True)
class _Bundle:
    """Shares that will lie on one card."""

    card: Card
    memory_mib: int
    rows: list[int]

    def fits(self, job: Job) -> bool:
        share = job.share
        return share is not None and (
            self.card.compute_percent + share.compute_percent <= 100
            and self.card.memory_mib + share.memory_mib <= self.memory_mib
        )

    def add(self, row: int, job: Job) -> None:
        share = job.share
        if share is not None:
            self.card = Card(
                self.card.compute_percent + share.compute_percent,
                self.card.memory_mib + share.memory_mib,
                self.card.shares + 1,
            )
        self.rows.append(row)


class Bundles:
    """Shares grouped by card. A policy sees the first of a bundle as a job of one GPU, the others not at all.

    A card with a job on it that is in transition stays in use whatever the policy says, so the policy is not
    asked: the other jobs of the bundle have their share for nothing.
    """

    __slots__ = ("_asked", "_kept", "_stays", "_world", "hidden")

    def __init__(self, world: World, bundles: list[_Bundle], eligible: BoolArray, fixed: BoolArray) -> None:
        self._world = world
        self._stays = eligible | fixed
        self._kept = [bundle for bundle in bundles if fixed[bundle.rows].any()]
        self._asked = [bundle for bundle in bundles if not fixed[bundle.rows].any()]
        self.hidden: BoolArray = np.zeros(world.jobs.n, dtype=bool)
        """Rows that the policy is not shown."""
        for bundle in self._kept:
            self.hidden[bundle.rows] = True
        for bundle in self._asked:
            self.hidden[bundle.rows[1:]] = True

    def put_best_first(self, among: BoolArray, winner: Callable[[IntArray], int]) -> None:
        """Lets the job stand for its bundle that would win if all of them fought for the card.

        The others may have been there for longer: a job that was to leave stays when there is room beside
        those that came for it. If it stood for them, the card would look worse than they do, and would be
        taken from them in the next cycle, and so on for ever.
        """
        for bundle in self._asked:
            rows = [row for row in bundle.rows if among[row]]
            if len(rows) > 1:
                best = winner(np.array(sorted(rows), dtype=np.int64))
                self.hidden[bundle.rows[0]], self.hidden[best] = True, False
                bundle.rows.remove(best)
                bundle.rows.insert(0, best)

    def spread(self, gpus: IntArray) -> None:
        """Gives every job of a bundle what its first job got, unless it may not run at all."""
        for bundle in self._kept:
            gpus[bundle.rows] = self._stays[bundle.rows]
        for bundle in self._asked:
            gpus[bundle.rows[1:]] = gpus[bundle.rows[0]] * self._stays[bundle.rows[1:]]

    def cards_held(self, gpu_type: IntArray, kind: int, fixed: BoolArray) -> int:
        """GPUs of one type that the policy cannot dispose of; a shared card counts once."""
        jobs = self._world.jobs
        whole = sum(
            int(jobs.i("gpus")[row])
            for row in np.flatnonzero(fixed & (gpu_type == kind))
            if jobs.jobs[row].share is None
        )
        return whole + sum(1 for bundle in self._kept if gpu_type[bundle.rows[0]] == kind)


def bundle_shares(world: World, gpu_type: IntArray, eligible: BoolArray, fixed: BoolArray) -> Bundles:
    """Groups the jobs that take shares: running ones by their card, waiting ones best fit in row order."""
    jobs, index = world.jobs, world.nodes.index
    begun_s = jobs.f("last_start_s")
    rows = [row for row in range(jobs.n) if jobs.jobs[row].share is not None] if jobs.picky else []
    by_card: dict[tuple[int, int], _Bundle] = {}
    by_type: dict[int, list[_Bundle]] = {}
    bundles: list[_Bundle] = []
    for row in rows:
        placement = jobs.placements[row]
        if placement is None:
            continue
        node, gpus = placement.spans[0]
        i = index[node]
        bundle = by_card.get((i, gpus[0]))
        if bundle is None:
            bundle = _Bundle(Card(0, 0, 0), world.nodes.nodes[i].gpu_memory_mib, [])
            by_card[i, gpus[0]] = bundle
            bundles.append(bundle)
            by_type.setdefault(int(gpu_type[row]), []).append(bundle)
        bundle.add(row, jobs.jobs[row])
    for row in rows:
        if jobs.placements[row] is not None or not eligible[row]:
            continue
        kind, job = int(gpu_type[row]), jobs.jobs[row]
        open_here = by_type.setdefault(kind, [])
        fitting = [bundle for bundle in open_here if bundle.fits(job)]
        if fitting:
            bundle = max(fitting, key=lambda b: (b.card.compute_percent, b.card.memory_mib))
        else:
            bundle = _Bundle(Card(0, 0, 0), _card_memory_mib(world, kind), [])
            open_here.append(bundle)
            bundles.append(bundle)
        bundle.add(row, job)
    for bundle in bundles:
        # The first job stands for the bundle before the policy, unless the policy itself says who is best: it
        # must be one that may run, the one that has been on the card for longest.
        bundle.rows.sort(
            key=lambda row: (
                not eligible[row],
                float(begun_s[row]) if jobs.placements[row] is not None else math.inf,
                row,
            )
        )
    return Bundles(world, bundles, eligible, fixed)


def _card_memory_mib(world: World, kind: int) -> int:
    nodes = world.nodes
    sizes = [nodes.nodes[i].gpu_memory_mib for i, own in enumerate(nodes.type_of) if own == kind]
    return min(sizes, default=0)
