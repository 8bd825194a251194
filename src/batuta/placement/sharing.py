"""Jobs that take a part of a GPU: onto the fullest card with room, else onto a fresh one. Never onto two."""

from __future__ import annotations

from batuta.core.cluster import Placement, Span
from batuta.core.job import Job, Share
from batuta.core.layout import EMPTY_CARD, Card, Layout
from batuta.placement.packing import fullest
from batuta.placement.room import Room


class CardLevels:
    """The shared cards by how full they are, one bit each, so that thousands of shares are placed fast."""

    __slots__ = ("_by_memory", "_full", "_width", "levels")

    def __init__(self, layout: Layout) -> None:
        self._width = layout.table.largest
        self.levels: dict[int, int] = {}
        """By percent: cards, as one bit each, of which so much is taken."""
        self._full: dict[tuple[object, ...], int] = {}
        """By shape of a request: cards that are known not to have room for it."""
        self._by_memory: dict[int, int] = {}
        for i, node in enumerate(layout.table.nodes):
            self._by_memory[node.gpu_memory_mib] = self._by_memory.get(node.gpu_memory_mib, 0) | 1 << i
        for (i, gpu), card in layout.cards.items():
            self._add(i, gpu, self._fullness(layout, i, card))

    @staticmethod
    def _fullness(layout: Layout, i: int, card: Card) -> int:
        """Percent of the card that is taken: of compute or of memory, whichever is scarcer."""
        return max(card.compute_percent, card.memory_mib * 100 // layout.table.nodes[i].gpu_memory_mib)

    def _add(self, i: int, gpu: int, level: int) -> None:
        self.levels[level] = self.levels.get(level, 0) | 1 << i * self._width + gpu

    def moved(self, layout: Layout, i: int, gpu: int, before: Card) -> None:
        """Notes that a share was put on a card."""
        if before.shares:
            level = self._fullness(layout, i, before)
            self.levels[level] ^= 1 << i * self._width + gpu
        self._add(i, gpu, self._fullness(layout, i, layout.cards[i, gpu]))

    def roomy(self, share: Share) -> int:
        """Nodes whose cards are large enough for a share."""
        nodes = 0
        for memory_mib, own in self._by_memory.items():
            if memory_mib >= share.memory_mib:
                nodes |= own
        return nodes

    def fullest(self, layout: Layout, job: Job, share: Share, nodes: int) -> tuple[int, int] | None:
        """The fullest card on these nodes with room for a share, the lowest number on ties."""
        key = (nodes, share, job.cpus_milli_per_gpu, job.memory_mib_per_gpu)
        full = self._full.get(key, 0)
        for level in sorted(self.levels, reverse=True):
            left = self.levels[level] & ~full
            while left:
                low = left & -left
                i, gpu = divmod(low.bit_length() - 1, self._width)
                if nodes >> i & 1 and layout.fits_card(i, gpu, share) and layout.has_beside(i, 1, job):
                    self._full[key] = full
                    return i, gpu
                full |= low
                left ^= low
        self._full[key] = full
        return None


def place_share(room: Room, job: Job, share: Share, nodes: int) -> Placement | None:
    """Puts a share on a card; None when no card on these nodes has room."""
    layout = room.layout
    if room.cards is None:
        room.cards = CardLevels(layout)
    found = room.cards.fullest(layout, job, share, nodes) or _fresh_card(room, room.cards, job, share, nodes)
    if found is None:
        return None
    i, gpu = found
    before = layout.cards.get(found, EMPTY_CARD)
    layout.take(i, 1 << gpu, job)
    room.cards.moved(layout, i, gpu, before)
    return Placement((Span(room.table.nodes[i].name, (gpu,)),))


def _fresh_card(room: Room, cards: CardLevels, job: Job, share: Share, nodes: int) -> tuple[int, int] | None:
    """A free GPU on the fullest node that has one, in the NVLink group with the fewest free."""
    i = fullest(room, job, 1, nodes & cards.roomy(share))
    return None if i < 0 else (i, room.first_gpu(i))
