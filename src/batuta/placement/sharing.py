"""Jobs that take a part of a GPU: onto the fullest card with room, else onto a fresh one. Never onto two.

Or the other way round, where shares are spread. A card that is really busy gets no further sharer while there
is another place, and of cards that are equal otherwise the one that is really less busy is taken.
"""

from __future__ import annotations

from itertools import accumulate
from operator import or_

from batuta.core.arrays import bits
from batuta.core.cluster import Placement, Span
from batuta.core.job import Job, Share
from batuta.core.layout import EMPTY_CARD, Card, Layout
from batuta.placement.attempt import COMPARED, fitting_at, fullest
from batuta.placement.cluster_state import WHOLE, ClusterState


class CardLevels:
    """The shared cards by how full they are, one bit each, so that thousands of shares are placed fast."""

    def __init__(self, layout: Layout) -> None:
        self._width = layout.table.largest
        self.levels: dict[int, int] = {}  # by percent: cards of which so much is taken
        self._compute = [0] * (WHOLE + 1)  # by percent: cards of which at most so much compute is taken
        self._most_promised = max((node.gpu_compute_percent for node in layout.table.nodes), default=WHOLE)
        self._nodes_by_memory: dict[int, int] = {}
        for i, node in enumerate(layout.table.nodes):
            memory_mib = node.gpu_memory_mib
            self._nodes_by_memory[memory_mib] = self._nodes_by_memory.get(memory_mib, 0) | 1 << i
        self._memory = {memory_mib: [0] * (WHOLE + 1) for memory_mib in self._nodes_by_memory}
        """By memory of a card, then by percent: cards of which at most so much memory is taken."""
        self._cards_of: dict[int, int] = {}  # by set of nodes: their cards
        self._starved: dict[tuple[int, int], int] = {}  # by CPU and memory: cards of nodes without that much left
        for (i, gpu), card in layout.cards.items():
            # No job joins on a card that others are said to use.
            if layout.healthy[i] >> gpu & 1:
                self._enter(layout, i, gpu, card)
        for at_most in (self._compute, *self._memory.values()):
            at_most[:] = accumulate(at_most, or_)

    def _enter(self, layout: Layout, i: int, gpu: int, card: Card) -> None:
        """Books a card at its levels only; sums are made when all are there."""
        bit = 1 << i * self._width + gpu
        memory_mib, compute, memory = self._percents(layout, i, card)
        level = max(compute, memory)
        self.levels[level] = self.levels.get(level, 0) | bit
        self._compute[compute] |= bit
        self._memory[memory_mib][memory] |= bit

    @staticmethod
    def _percents(layout: Layout, i: int, card: Card) -> tuple[int, int, int]:
        """Memory of the whole card, then how much of its compute and of its memory is taken, in percent.

        More than all may be taken where others than we have put the jobs there; for us that is all.
        """
        node = layout.table.nodes[i]
        memory_mib = node.gpu_memory_mib
        memory, compute = card.memory_mib * WHOLE // memory_mib, card.booked_percent(node.gpu_compute_percent)
        return memory_mib, min(compute, WHOLE), min(memory, WHOLE)

    def moved(self, layout: Layout, i: int, gpu: int, before: Card) -> None:
        bit = 1 << i * self._width + gpu
        memory_mib, *now = self._percents(layout, i, layout.cards[i, gpu])
        _, *was = self._percents(layout, i, before)
        for at_most, old, new in zip((self._compute, self._memory[memory_mib]), was, now, strict=True):
            if before.shares:
                for percent in range(old, new):
                    at_most[percent] ^= bit
            else:
                for percent in range(new, WHOLE + 1):
                    at_most[percent] |= bit
        if before.shares:
            self.levels[max(was)] ^= bit
        self.levels[max(now)] = self.levels.get(max(now), 0) | bit

    def roomy(self, share: Share) -> int:
        """Nodes whose cards are large enough for a share."""
        return sum(own for memory_mib, own in self._nodes_by_memory.items() if memory_mib >= share.memory_mib)

    def best(self, room: ClusterState, job: Job, share: Share, nodes: int, without: int = 0) -> tuple[int, int] | None:
        """The fullest card on these nodes with room for a share; the emptiest, where shares are spread.

        Among equals the one where it strands the fewest GPUs, then the least busy. `without`: cards that will not do.
        """
        layout = room.layout
        beside = job.cpus_milli_per_gpu, job.memory_mib_per_gpu
        left = self._about_fitting(share) & self._cards_on(nodes) & ~self._starved.get(beside, 0) & ~without
        counts, busy = room.levels(job) is not layout.buckets, room.busy
        for level in sorted(self.levels, reverse=not room.spreads) if left else ():
            here, found = self.levels[level] & left, list[tuple[int, int]]()
            while here and len(found) < COMPARED:
                low = here & -here
                i, gpu = divmod(low.bit_length() - 1, self._width)
                if layout.has_beside(i, 1, job):
                    if layout.fits_card(i, gpu, share):
                        if not counts and not busy:
                            return i, gpu
                        found.append((i, gpu))
                    here ^= low
                else:
                    node = self._cards_on(1 << i)
                    self._starved[beside] = self._starved.get(beside, 0) | node
                    left, here = left & ~node, here & ~node
            if found:
                return min(
                    found, key=lambda card: (room.stranding.added(card[0], 1, job) if counts else 0, busy.of(*card))
                )
        return None

    def _about_fitting(self, share: Share) -> int:
        """The cards with room for a share, and some on which a percent may be missing."""
        fitting = 0
        for memory_mib, at_most in self._memory.items():
            if memory_mib >= share.memory_mib:
                fitting |= at_most[(memory_mib - share.memory_mib) * WHOLE // memory_mib]
        least = share.compute_percent * WHOLE // self._most_promised if share.soft else share.compute_percent
        return fitting & self._compute[WHOLE - least]

    def _cards_on(self, nodes: int) -> int:
        cards = self._cards_of.get(nodes)
        if cards is None:
            whole = (1 << self._width) - 1
            cards = self._cards_of[nodes] = sum(whole << i * self._width for i in bits(nodes))
        return cards


def place_share(room: ClusterState, job: Job, share: Share, nodes: int) -> Placement | None:
    """Puts a share on a card; None when no card on these nodes has room."""
    layout = room.layout
    if room.cards is None:
        room.cards = CardLevels(layout)
    # To a percent, so that thousands of jobs are of few kinds.
    load = round(room.loads(job), 2)
    found = _choose(room, room.cards, job, share, nodes, room.busy.crowded(load))
    if found is None:
        return None
    i, gpu = found
    room.busy.join(found, load)
    before = layout.cards.get(found, EMPTY_CARD)
    layout.take(i, 1 << gpu, job)
    room.cards.moved(layout, i, gpu, before)
    return Placement((Span(room.table.nodes[i].name, (gpu,)),))


def _choose(
    room: ClusterState, cards: CardLevels, job: Job, share: Share, nodes: int, crowded: int
) -> tuple[int, int] | None:
    """Beside others that leave it in peace, or alone; if there is no other place, beside any."""
    fresh = _fresh_card(room, cards, job, share, nodes) if room.spreads else None
    return (
        fresh
        or cards.best(room, job, share, nodes, without=crowded)
        or _fresh_card(room, cards, job, share, nodes)
        or (cards.best(room, job, share, nodes) if crowded else None)
    )


def _fresh_card(room: ClusterState, cards: CardLevels, job: Job, share: Share, nodes: int) -> tuple[int, int] | None:
    """A free GPU of a full node on which few are stranded, in the NVLink group with the fewest free."""
    nodes &= cards.roomy(share)
    if room.levels(job) is room.layout.buckets:
        i = fullest(room, job, 1, nodes)
        return None if i < 0 else (i, _least_busy(room, i))
    found = [(i, k) for k in range(1, len(room.layout.buckets)) for i in fitting_at(room, job, 1, nodes, k)]
    if not found:
        return None
    # A fuller node is worth as much as a percent of a GPU that is not stranded.
    i, _ = min(found, key=lambda place: place[1] + room.stranding.added(place[0], 1, job))
    return i, _least_busy(room, i)


def _least_busy(room: ClusterState, i: int) -> int:
    """The free GPU of a node that leaves the others closest together; of its equals the least busy."""
    first, node, busy = room.first_gpu(i), room.table.nodes[i], room.busy
    if not busy:
        return first
    alike = [
        gpu
        for gpu in bits(room.layout.free[i])
        if all(not groups or groups[gpu] == groups[first] for groups in (node.nvlink, node.numa))
    ]
    return min(alike, key=lambda gpu: (busy.of(i, gpu), gpu))
