"""How busy cards are that may be shared: as measured, while that is fresh, and as expected of sharers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from batuta.core.utilisation import STALE_S, Usage, expected_load
from batuta.core.world import World

BUSIEST = 0.7  # sharers of a card that is busier than this disturb each other: no job joins them while there is room
UNKNOWN = 0.5  # what a GPU counts as of which nothing is known: neither idle nor busy
_A_TRIFLE = 1e-9  # sums of floats are not their parts: 0.4 and 0.3 are no more than 0.7
CardKey: TypeAlias = tuple[int, int]  # a node, and one of its GPUs


class BusyCards:
    """What is known of cards. A card is a bit, as in `CardLevels`."""

    __slots__ = ("_crowded", "_expected", "_fresh", "_sums", "_width", "busiest")

    def __init__(
        self,
        usage: Mapping[int, Usage],
        expected: Callable[[], Mapping[CardKey, float]],
        now_s: float,
        width: int,
        busiest: float = BUSIEST,
    ) -> None:
        """`expected` is what the sharers of a card will use of it; no job joins if it exceeds `busiest` then."""
        self._width = width
        self._fresh = {i: own.gpus for i, own in usage.items() if now_s - own.time_s <= STALE_S}
        self._expected = expected
        self._sums: dict[CardKey, float] | None = None
        self._crowded: dict[float, int] = {}
        self.busiest = busiest

    @staticmethod
    def of_world(world: World, busiest: float = BUSIEST) -> BusyCards:
        return BusyCards(world.usage, partial(_expected, world), world.now_s, world.nodes.largest, busiest)

    def fork(self) -> BusyCards:
        twin = BusyCards({}, self._expected, 0.0, self._width, self.busiest)
        twin._fresh = self._fresh
        twin._sums = None if self._sums is None else self._sums.copy()
        twin._crowded = self._crowded.copy()
        return twin

    def __bool__(self) -> bool:
        return bool(self._fresh)

    @property
    def nodes(self) -> Mapping[int, tuple[float | None, ...]]:
        """The nodes of which something is known."""
        return self._fresh

    def crowded(self, load: float) -> int:
        """Cards that would be too busy with one more, who uses so much."""
        if load not in self._crowded:
            together = self._together().items()
            self._crowded[load] = sum(self._bit(card) for card, busy in together if self._is_too_much(busy + load))
        return self._crowded[load]

    def join(self, card: CardKey, load: float) -> None:
        """A job that will use so much goes to a card: the next job in this cycle meets it there."""
        if load > 0.0:
            sums = self._together()
            sums[card] = sums.get(card, 0.0) + load
            for other, found in self._crowded.items():
                if self._is_too_much(sums[card] + other):
                    self._crowded[other] = found | self._bit(card)

    def _is_too_much(self, busy: float) -> bool:
        return busy > self.busiest + _A_TRIFLE

    def _bit(self, card: CardKey) -> int:
        i, gpu = card
        return 1 << i * self._width + gpu

    def _together(self) -> dict[CardKey, float]:
        """By card: how busy it is, or will be when all on it do what is expected of them."""
        if self._sums is None:
            self._sums = dict(self._expected())
            for i, gpus in self._fresh.items():
                for gpu, busy in enumerate(gpus[: self._width]):
                    if busy is not None:
                        self._sums[i, gpu] = max(busy, self._sums.get((i, gpu), 0.0))
        return self._sums

    def of(self, i: int, gpu: int) -> float:
        """How busy a GPU is, to a tenth: less is no difference."""
        gpus = self._fresh.get(i, ())
        busy = gpus[gpu] if gpu < len(gpus) else None
        return round(UNKNOWN if busy is None else busy, 1)


def _expected(world: World) -> Mapping[CardKey, float]:
    found: dict[CardKey, float] = {}
    if world.loads and world.layout.cards:
        for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True):
            if job.share is not None and placement is not None:
                node, gpus = placement.spans[0]
                card = world.nodes.index[node], gpus[0]
                found[card] = found.get(card, 0.0) + expected_load(world, job)
    return found
