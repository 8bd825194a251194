"""Shares of GPUs by the card that they lie on, or will lie on: a policy sees one job for each card."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.job import Share
from batuta.core.layout import EMPTY_CARD, Card
from batuta.core.world import World

WHOLE = 100  # percent of a card


class _Size(NamedTuple):
    """What a card has."""

    memory_mib: int
    promised_percent: int  # of its compute, to soft shares together


class _OpenCards:
    """The bundles of one GPU type, sorted so that the fullest one with room is found without a search."""

    __slots__ = ("_bundles", "_levels")

    def __init__(self) -> None:
        self._bundles: dict[int, tuple[Card, _Size]] = {}  # by number; of equally full ones the lowest is preferred
        self._levels: dict[_Size, list[list[tuple[int, int]]]] = {}
        """By size of a card, then by percent booked: memory taken and −number of each bundle, ascending."""

    def open(self, number: int, card: Card, size: _Size) -> None:
        """Adds a bundle."""
        self._bundles[number] = card, size
        booked = card.booked_percent(size.promised_percent)
        if booked > WHOLE:
            # Pods of others take so much there that no job can join.
            return
        levels = self._levels.get(size)
        if levels is None:
            levels = self._levels[size] = [[] for _ in range(WHOLE + 1)]
        insort(levels[booked], (card.memory_mib, -number))

    def add(self, share: Share) -> int | None:
        """Puts a share on the fullest card with room: by compute, then by memory. None if there is none."""
        sizes = [
            (size.memory_mib - share.memory_mib, WHOLE - share.booked_percent(size.promised_percent), levels)
            for size, levels in self._levels.items()
        ]
        for percent in range(max((most for _, most, _ in sizes), default=-1), -1, -1):
            found: tuple[int, int] | None = None
            for room_mib, most, levels in sizes:
                here = levels[percent] if percent <= most else ()
                fitting = bisect_right(here, (room_mib, 0)) if here else 0
                if fitting and (found is None or here[fitting - 1] > found):
                    found = here[fitting - 1]
            if found is not None:
                return self._join(-found[1], share)
        return None

    def _join(self, number: int, share: Share) -> int:
        card, size = self._bundles[number]
        here = self._levels[size][card.booked_percent(size.promised_percent)]
        del here[bisect_right(here, (card.memory_mib, -number)) - 1]
        self.open(number, card.plus(share), size)
        return number


class SharedGpus:
    """Shares grouped by card. A policy sees the first of a bundle as a job of one GPU, the others not at all.

    A card with a job on it that is in transition stays in use whatever the policy says, so the policy is not
    asked: the other jobs of the bundle have their share for nothing.
    """

    __slots__ = ("_asked", "_bounds", "_kept", "_rows", "_stays", "_world", "hidden")

    def __init__(self, world: World, rows: IntArray, bounds: IntArray, eligible: BoolArray, fixed: BoolArray) -> None:
        """`rows` has the jobs, those of a bundle together; `bounds` where each bundle begins, and the end."""
        self._world, self._rows, self._bounds = world, rows, bounds
        self._stays = eligible | fixed
        firsts = bounds[:-1]
        is_kept = np.logical_or.reduceat(fixed[rows], firsts) if len(rows) else np.zeros(0, dtype=bool)
        self._kept: IntArray = np.flatnonzero(is_kept)
        self._asked: IntArray = np.flatnonzero(~is_kept)
        self.hidden: BoolArray = np.zeros(world.jobs.n, dtype=bool)  # rows that the policy is not shown
        self.hidden[rows] = True
        self.hidden[rows[firsts[self._asked]]] = False

    def put_best_first(self, among: BoolArray, winner: Callable[[IntArray], int]) -> None:
        """Lets the job stand for its bundle that would win if all of them fought for the card.

        The others may have been there for longer: a job that was to leave stays when there is room beside
        those that came for it. If it stood for them, the card would look worse than they do, and would be
        taken from them in the next cycle, and so on for ever.
        """
        if not len(self._rows):
            return
        counts = np.add.reduceat(among[self._rows].astype(np.int64), self._bounds[:-1])
        for number in self._asked[counts[self._asked] > 1].tolist():
            bundle = self._rows[self._bounds[number] : self._bounds[number + 1]]
            best = winner(np.sort(bundle[among[bundle]]))
            self.hidden[bundle[0]], self.hidden[best] = True, False
            place = int(np.flatnonzero(bundle == best)[0])
            bundle[1 : place + 1] = bundle[:place].copy()
            bundle[0] = best

    def spread(self, gpus: IntArray) -> None:
        """Gives every job of a bundle what its first job got, unless it may not run at all."""
        rows, firsts = self._rows, self._bounds[:-1]
        if not len(rows):
            return
        leads = np.repeat(firsts, np.diff(self._bounds))
        given = gpus[rows[leads]]
        own = leads == np.arange(len(rows))
        after = np.where(own, given, given * self._stays[rows])
        is_kept = np.zeros(len(firsts), dtype=bool)
        is_kept[self._kept] = True
        kept = np.repeat(is_kept, np.diff(self._bounds))
        gpus[rows] = np.where(kept, self._stays[rows], after)

    def cards_held(self, gpu_type: IntArray, kind: int, fixed: BoolArray) -> int:
        """GPUs of one type that the policy cannot dispose of; a shared card counts once."""
        jobs = self._world.jobs
        whole = sum(
            int(jobs.held[row]) for row in np.flatnonzero(fixed & (gpu_type == kind)) if jobs.jobs[row].share is None
        )
        firsts = self._rows[self._bounds[:-1][self._kept]]
        return whole + int(np.count_nonzero(gpu_type[firsts] == kind))


def bundle_shares(world: World, gpu_type: IntArray, eligible: BoolArray, fixed: BoolArray) -> SharedGpus:
    """Groups the jobs that take shares: running ones by their card, waiting ones best fit in row order."""
    jobs = world.jobs
    rows = [row for row, job in enumerate(jobs.jobs) if job.share is not None] if jobs.sharing else []
    placements = jobs.placements
    running = [row for row in rows if placements[row] is not None]
    cards = _cards(world, running)
    waiting = [row for row in rows if placements[row] is None and eligible[row]]
    joined = _join(world, running, cards, waiting, gpu_type) if waiting else []
    everyone: IntArray = np.array(running + waiting, dtype=np.int64)
    numbers: IntArray = np.concatenate((_numbered(cards), np.array(joined, dtype=np.int64)))
    order = _eldest_first(world, everyone, numbers, eligible, len(running))
    numbers = numbers[order]
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1)) if len(numbers) else np.zeros(0, dtype=np.int64)
    bounds: IntArray = np.append(firsts, len(numbers)).astype(np.int64)
    return SharedGpus(world, everyone[order], bounds, eligible, fixed)


def _cards(world: World, running: list[int]) -> IntArray:
    """The card of each of these jobs, as one number."""
    index, placements, width = world.nodes.index, world.jobs.placements, max(world.nodes.largest, 1)
    spans = [placement.spans[0] for row in running if (placement := placements[row]) is not None]
    return np.array([index[node] * width + gpus[0] for node, gpus in spans], dtype=np.int64)


def _numbered(cards: IntArray) -> IntArray:
    """Cards by number, in ascending order."""
    return np.unique(cards, return_inverse=True)[1].astype(np.int64)


def _join(world: World, running: list[int], cards: IntArray, waiting: list[int], gpu_type: IntArray) -> list[int]:
    """The bundle that each waiting job joins, by number; those that need a fresh card get new numbers."""
    jobs, nodes, width = world.jobs.jobs, world.nodes.nodes, max(world.nodes.largest, 1)
    sums = _sums(world, running, cards)
    first_row: dict[int, int] = {}
    for row, card in zip(running, cards.tolist(), strict=True):
        first_row.setdefault(card, row)
    by_number = sorted(sums)
    preferred = {card: number for number, card in enumerate(first_row)}
    by_type: dict[int, _OpenCards] = {}
    for card in first_row:
        node = nodes[card // width]
        size = _Size(node.gpu_memory_mib, node.gpu_compute_percent)
        kind = int(gpu_type[first_row[card]])
        by_type.setdefault(kind, _OpenCards()).open(preferred[card], sums[card], size)
    places = {preferred[card]: number for number, card in enumerate(by_number)}
    sizes: dict[int, _Size] = {}
    found = []
    for row in waiting:
        share, kind = jobs[row].share, int(gpu_type[row])
        assert share is not None
        open_cards = by_type.setdefault(kind, _OpenCards())
        number = open_cards.add(share)
        if number is None:
            number = places[len(places)] = len(places)
            if kind not in sizes:
                sizes[kind] = _smallest(world, kind)
            open_cards.open(number, EMPTY_CARD.plus(share), sizes[kind])
        found.append(places[number])
    return found


def _sums(world: World, running: list[int], cards: IntArray) -> dict[int, Card]:
    """By card: what is taken of it."""
    jobs, numbers = world.jobs.jobs, _numbered(cards)
    shares = [share for row in running if (share := jobs[row].share) is not None]
    columns = (
        [0 if share.soft else share.compute_percent for share in shares],
        [share.memory_mib for share in shares],
        [1] * len(shares),
        [share.compute_percent if share.soft else 0 for share in shares],
    )
    totals = [np.bincount(numbers, weights=column).astype(np.int64).tolist() for column in columns]
    return dict(zip(np.unique(cards).tolist(), map(Card, *totals), strict=True))


def _eldest_first(world: World, rows: IntArray, numbers: IntArray, eligible: BoolArray, running: int) -> IntArray:
    """Until the policy says who is best, the job that has been there longest stands for its bundle."""
    begun_s = world.jobs.last_start_s[rows].copy()
    begun_s[running:] = np.inf
    return np.lexsort((rows, begun_s, ~eligible[rows], numbers))


def _smallest(world: World, kind: int) -> _Size:
    """What every card of a type has at least."""
    own = [node for node, type_of in zip(world.nodes.nodes, world.nodes.type_of, strict=True) if type_of == kind]
    return _Size(
        min((node.gpu_memory_mib for node in own), default=0),
        min((node.gpu_compute_percent for node in own), default=WHOLE),
    )
