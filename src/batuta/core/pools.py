"""Which GPU type each job competes for, and which shares go together on one card."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.job import Job
from batuta.core.layout import Card
from batuta.core.reach import wishes_of
from batuta.core.world import World

NO_TYPE = -1


def assign_types(
    world: World, capacity: list[int], limits: Mapping[tuple[int, int], int] | None = None
) -> IntArray:
    """One GPU type per row: what a job has, else the fastest accepted one with room for its `min`.

    Policies that see one type at a time need this. Room is counted in row order: an early job has its choice.
    `limits` says how many GPUs of a type the jobs of a queue may have, by the numbers of both.
    """
    jobs, types = world.jobs, world.nodes.types
    result = jobs.i("gpu_type").copy()
    held: list[int] = result.tolist()
    low: list[int] = jobs.i("min").tolist()
    queue: list[int] = jobs.i("queue").tolist()
    room = list(capacity)
    for kind, need in zip(held, low, strict=True):
        if kind >= 0:
            room[kind] -= need
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
                possible = _possible(world, row, need, accepted, queue[row], limits or {})
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
            room[kind] -= need
        ahead[kind] += need
    return result


def _possible(
    world: World,
    row: int,
    need: int,
    accepted: list[int],
    queue: int,
    limits: Mapping[tuple[int, int], int],
) -> list[int]:
    """The types that can ever have enough for a job, and of which its queue may use as much."""
    most = world.reach[wishes_of(world.jobs.jobs[row])]
    return [kind for kind in accepted if min(most[kind], limits.get((queue, kind), need)) >= need]


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
        # The first job stands for the bundle before the policy, so it must be one that may run: the one that
        # has been on the card for longest, lest who joined it later make it look worse than it is.
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
