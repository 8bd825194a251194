"""How busy cards are that may be shared: as measured, while that is fresh, and as expected of sharers."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.core.idle import STALE_S, Usage
from batuta.core.load import expected_load
from batuta.core.world import World

BUSIEST = 0.7
"""Sharers of a card that is busier than this disturb each other: nobody joins them while there is room."""
UNKNOWN = 0.5
"""What a GPU counts as of which nothing is known: neither idle nor busy."""


class BusyCards:
    """What is known of cards. A card is a bit, as in `CardLevels`."""

    __slots__ = ("_crowded", "_fresh", "_together", "_width")

    def __init__(
        self, usage: Mapping[int, Usage], expected: Mapping[tuple[int, int], float], now_s: float, width: int
    ) -> None:
        """`expected` is what the sharers of a card will use of it together, as far as that is known."""
        self._width = width
        self._fresh = {i: own.gpus for i, own in usage.items() if now_s - own.time_s <= STALE_S}
        self._together = dict(expected)
        for i, gpus in self._fresh.items():
            for gpu, busy in enumerate(gpus[:width]):
                if busy is not None:
                    self._together[i, gpu] = max(busy, self._together.get((i, gpu), 0.0))
        self._crowded: dict[float, int] = {}

    @staticmethod
    def of_world(world: World) -> BusyCards:
        expected: dict[tuple[int, int], float] = {}
        if world.loads and world.layout.cards:
            for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True):
                if job.share is not None and placement is not None:
                    node, gpus = placement.spans[0]
                    card = world.nodes.index[node], gpus[0]
                    expected[card] = expected.get(card, 0.0) + expected_load(world, job)
        return BusyCards(world.usage, expected, world.now_s, world.nodes.largest)

    def __bool__(self) -> bool:
        return bool(self._fresh)

    def crowded(self, load: float) -> int:
        """Cards that would be too busy with one more, who uses so much."""
        found = self._crowded.get(load)
        if found is None:
            found = 0
            for (i, gpu), busy in self._together.items():
                if busy + load > BUSIEST:
                    found |= 1 << i * self._width + gpu
            self._crowded[load] = found
        return found

    def of(self, i: int, gpu: int) -> float:
        """How busy a GPU is, to a tenth: less is no difference."""
        gpus = self._fresh.get(i, ())
        busy = gpus[gpu] if gpu < len(gpus) else None
        return round(UNKNOWN if busy is None else busy, 1)
