"""Which GPU type each job competes for, and which shares go together on one card."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.job import Job
from batuta.core.layout import Card
from batuta.core.world import World

NO_TYPE = -1


def assign_types(world: World, capacity: list[int]) -> IntArray:
    """One GPU type per row: what a job has, else the fastest accepted one with room for its `min`.

    Policies that see one type at a time need this. Room is counted in row order: an early job has its choice.
    """
    jobs, types = world.jobs, world.nodes.types
    held = jobs.i("gpu_type")
    room = list(capacity)
    for row in np.flatnonzero(held >= 0):
        room[held[row]] -= int(jobs.i("min")[row])
    result = held.copy()
    order = sorted(range(len(types)), key=lambda kind: (-capacity[kind], kind))
    low = jobs.i("min")
    for row in np.flatnonzero(held < 0):
        job = jobs.jobs[row]
        accepted = _accepted(job, types, order)
        if not accepted:
            result[row] = NO_TYPE
            continue
        need = int(low[row])
        fits = [kind for kind in accepted if room[kind] >= need]
        # With no room anywhere the job queues where the queue is shortest for the size of the pool.
        kind = fits[0] if fits else max(accepted, key=lambda k: (room[k] / max(capacity[k], 1), -k))
        result[row] = kind
        room[kind] -= need
    return result


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

    __slots__ = ("_asked", "_kept", "_world", "hidden")

    def __init__(self, world: World, bundles: list[_Bundle], fixed: BoolArray) -> None:
        self._world = world
        self._kept = [bundle for bundle in bundles if fixed[bundle.rows].any()]
        self._asked = [bundle for bundle in bundles if not fixed[bundle.rows].any()]
        self.hidden: BoolArray = np.zeros(world.jobs.n, dtype=bool)
        """Rows that the policy is not shown."""
        for bundle in self._kept:
            self.hidden[bundle.rows] = True
        for bundle in self._asked:
            self.hidden[bundle.rows[1:]] = True

    def spread(self, gpus: IntArray) -> None:
        """Gives every job of a bundle what its first job got."""
        for bundle in self._kept:
            gpus[bundle.rows] = 1
        for bundle in self._asked:
            gpus[bundle.rows[1:]] = gpus[bundle.rows[0]]

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
        # The first job stands for the bundle before the policy, so it must be one that may run.
        bundle.rows.sort(key=lambda row: (not eligible[row], row))
    return Bundles(world, bundles, fixed)


def _card_memory_mib(world: World, kind: int) -> int:
    nodes = world.nodes
    sizes = [nodes.nodes[i].gpu_memory_mib for i, own in enumerate(nodes.type_of) if own == kind]
    return min(sizes, default=0)
