"""Shares of GPUs by the card that they lie on, or will lie on: a policy sees one job for each card."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.job import Share
from batuta.core.layout import EMPTY_CARD, Card
from batuta.core.world import World

WHOLE = 100
"""Percent of a card."""


@dataclass(slots=True)
class _Bundle:
    """Shares that will lie on one card."""

    card: Card
    memory_mib: int
    rows: list[int]

    def add(self, row: int, share: Share) -> None:
        self.card = Card(
            self.card.compute_percent + share.compute_percent,
            self.card.memory_mib + share.memory_mib,
            self.card.shares + 1,
        )
        self.rows.append(row)


class _OpenCards:
    """The bundles of one GPU type, sorted so that the fullest one with room is found without a search."""

    __slots__ = ("_bundles", "_levels")

    def __init__(self) -> None:
        self._bundles: list[_Bundle] = []
        self._levels: dict[int, list[list[tuple[int, int]]]] = {}
        """By memory of a card, then by percent taken: memory taken and −number of each bundle, ascending."""

    def open(self, bundle: _Bundle) -> None:
        """Adds a bundle; of equally full ones the earlier is preferred."""
        self._bundles.append(bundle)
        self._enter(len(self._bundles) - 1)

    def add(self, row: int, share: Share) -> bool:
        """Puts a share on the fullest card with room: by compute, then by memory. False if there is none."""
        for percent in range(WHOLE - share.compute_percent, -1, -1):
            found: tuple[int, int] | None = None
            for memory_mib, levels in self._levels.items():
                here = levels[percent]
                fitting = bisect_right(here, (memory_mib - share.memory_mib, 0)) if here else 0
                if fitting and (found is None or here[fitting - 1] > found):
                    found = here[fitting - 1]
            if found is not None:
                number = -found[1]
                self._leave(number)
                self._bundles[number].add(row, share)
                self._enter(number)
                return True
        return False

    def _enter(self, number: int) -> None:
        bundle = self._bundles[number]
        if bundle.card.compute_percent > WHOLE:
            # Others than we have put so much there; nobody can join.
            return
        levels = self._levels.get(bundle.memory_mib)
        if levels is None:
            levels = self._levels[bundle.memory_mib] = [[] for _ in range(WHOLE + 1)]
        insort(levels[bundle.card.compute_percent], (bundle.card.memory_mib, -number))

    def _leave(self, number: int) -> None:
        bundle = self._bundles[number]
        here = self._levels[bundle.memory_mib][bundle.card.compute_percent]
        del here[bisect_right(here, (bundle.card.memory_mib, -number)) - 1]


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
    jobs = world.jobs
    shares = [(row, job.share) for row, job in enumerate(jobs.jobs) if job.share] if jobs.picky else []
    bundles = _on_cards(world, shares)
    by_type: dict[int, _OpenCards] = {}
    for bundle in bundles:
        by_type.setdefault(int(gpu_type[bundle.rows[0]]), _OpenCards()).open(bundle)
    memory_mib: dict[int, int] = {}
    for row, share in shares:
        if jobs.placements[row] is not None or not eligible[row]:
            continue
        kind = int(gpu_type[row])
        cards = by_type.setdefault(kind, _OpenCards())
        if not cards.add(row, share):
            if kind not in memory_mib:
                memory_mib[kind] = _card_memory_mib(world, kind)
            bundle = _Bundle(EMPTY_CARD, memory_mib[kind], [])
            bundle.add(row, share)
            cards.open(bundle)
            bundles.append(bundle)
    _put_eldest_first(world, bundles, eligible)
    return Bundles(world, bundles, eligible, fixed)


def _on_cards(world: World, shares: list[tuple[int, Share]]) -> list[_Bundle]:
    """The jobs that have a share, by card."""
    by_card: dict[tuple[int, int], _Bundle] = {}
    for row, share in shares:
        placement = world.jobs.placements[row]
        if placement is not None:
            node, gpus = placement.spans[0]
            i = world.nodes.index[node]
            bundle = by_card.get((i, gpus[0]))
            if bundle is None:
                bundle = by_card[i, gpus[0]] = _Bundle(EMPTY_CARD, world.nodes.nodes[i].gpu_memory_mib, [])
            bundle.add(row, share)
    return list(by_card.values())


def _put_eldest_first(world: World, bundles: list[_Bundle], eligible: BoolArray) -> None:
    """Lets a job stand for its bundle before the policy that may run, the one that has been there longest.

    So it is until the policy itself says who is best.
    """
    jobs, begun_s = world.jobs, world.jobs.f("last_start_s")
    for bundle in bundles:
        if len(bundle.rows) > 1:
            bundle.rows.sort(
                key=lambda row: (
                    not eligible[row],
                    float(begun_s[row]) if jobs.placements[row] is not None else math.inf,
                    row,
                )
            )


def _card_memory_mib(world: World, kind: int) -> int:
    nodes = world.nodes
    sizes = [nodes.nodes[i].gpu_memory_mib for i, own in enumerate(nodes.type_of) if own == kind]
    return min(sizes, default=0)
