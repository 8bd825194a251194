"""Rules that pack pods with parts of a GPU, to compare ours with: two best fits, and gradient descent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.cluster import Node

WHOLE = 100
"""Percent of a card."""
TYPICAL = 0.95
"""The part of all pods whose kinds the gradient is taken over, as in the paper."""


class Pod(NamedTuple):
    """What a pod asks for."""

    cpus_milli: int
    memory_mib: int
    gpus: int
    percent: int
    """Of each GPU: below 100 it is a part of one."""


class Rule(Protocol):
    """Puts pods on nodes, one after the other."""

    def put(self, pod: Pod) -> bool:
        """False: there is no room."""
        ...


class Stock:
    """What is left on every node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.cpus: IntArray = np.array([node.cpus_milli for node in nodes])
        self.memory: IntArray = np.array([node.memory_mib for node in nodes])
        self.gpus: IntArray = np.array([node.gpus for node in nodes])
        width = np.arange(int(self.gpus.max()))
        self.cards: IntArray = np.where(width[None] < self.gpus[:, None], WHOLE, 0)

    def fits(self, pod: Pod) -> BoolArray:
        whole = (self.cards >= pod.percent).sum(axis=1) >= pod.gpus
        found: BoolArray = (self.cpus >= pod.cpus_milli) & (self.memory >= pod.memory_mib) & whole
        return found

    def take(self, i: int, pod: Pod, card: int | None = None) -> None:
        """Takes a card, or the fullest that have room."""
        cards = [card] if card is not None else self._fullest(i, pod)
        self.cpus[i] -= pod.cpus_milli
        self.memory[i] -= pod.memory_mib
        self.cards[i, cards] -= pod.percent

    def _fullest(self, i: int, pod: Pod) -> list[int]:
        room = np.where(self.cards[i] >= pod.percent, self.cards[i], WHOLE + 1)
        return [int(card) for card in np.argsort(room, kind="stable")[: pod.gpus]]


class BestFit:
    """The node with the least left, GPUs and CPU each as a part of the largest node's; its fullest card."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._left = Stock(nodes)
        self._most_cpus, self._most_gpus = self._left.cpus.max(), self._left.gpus.max() * WHOLE

    def put(self, pod: Pod) -> bool:
        stock = self._left
        fits = stock.fits(pod)
        if not fits.any():
            return False
        left = stock.cpus / self._most_cpus + stock.cards.sum(axis=1) / self._most_gpus
        stock.take(int(np.where(fits, left, np.inf).argmin()), pod)
        return True


class TightestCard:
    """The card with the least left that has room, wherever it is; for whole GPUs the node with the fewest."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._left = Stock(nodes)

    def put(self, pod: Pod) -> bool:
        stock = self._left
        fits = stock.fits(pod)
        if not fits.any():
            return False
        if pod.percent < WHOLE:
            room = np.where(fits[:, None] & (stock.cards >= pod.percent), stock.cards, WHOLE + 1)
            i, card = divmod(int(room.argmin()), stock.cards.shape[1])
            stock.take(i, pod, card)
        else:
            free = (stock.cards == WHOLE).sum(axis=1)
            stock.take(int(np.where(fits, free, stock.cards.size).argmin()), pod)
        return True


class GradientDescent:
    """Fragmentation gradient descent: where the GPUs that typical pods cannot use grow the least.

    Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
    Descent", ATC 2023, section 4. It is told beforehand which pods come how often.
    """

    def __init__(self, nodes: Sequence[Node], expected: Sequence[Pod]) -> None:
        self._left = Stock(nodes)
        kinds, weights = _typical(expected)
        self._wants, self._weights = np.array(kinds), np.array(weights) / sum(weights)
        self._pods = sorted(set(expected))
        self._row = {pod: k for k, pod in enumerate(self._pods)}
        stock = self._left
        self._lost = self._fragments(stock.cpus, stock.memory, stock.cards)
        shape = len(self._pods), len(nodes)
        self._growth: FloatArray = np.full(shape, np.inf)
        self._card: IntArray = np.full(shape, -1)
        first_like: dict[tuple[int, int, int], int] = {}
        for i, node in enumerate(nodes):
            same = first_like.setdefault((node.cpus_milli, node.memory_mib, node.gpus), i)
            if same == i:
                self._look(i)
            else:
                self._growth[:, i], self._card[:, i] = self._growth[:, same], self._card[:, same]

    def put(self, pod: Pod) -> bool:
        row = self._row[pod]
        i = int(self._growth[row].argmin())
        if not np.isfinite(self._growth[row, i]):
            return False
        stock, card = self._left, int(self._card[row, i])
        stock.take(i, pod, None if card < 0 else card)
        one = slice(i, i + 1)
        self._lost[one] = self._fragments(stock.cpus[one], stock.memory[one], stock.cards[one])
        self._look(i)
        return True

    def _fragments(self, cpus: IntArray, memory: IntArray, cards: IntArray) -> FloatArray:
        """By node: percent of GPUs that are left and that a typical pod cannot use, on average."""
        want_cpus, want_memory, count, percent = self._wants.T
        large = cards[:, :, None] >= percent
        usable = (cpus[:, None] >= want_cpus) & (memory[:, None] >= want_memory)
        usable &= large.sum(axis=1) >= count
        left = cards[:, :, None]
        lost: FloatArray = np.where(usable, np.where(large, 0, left).sum(axis=1), left.sum(axis=1))
        return lost @ self._weights

    def _look(self, i: int) -> None:
        """Works out anew what every kind of pod would do to a node."""
        stock, places = self._left, list[tuple[int, int]]()
        self._growth[:, i] = np.inf
        cards = list[IntArray]()
        for k, pod in enumerate(self._pods):
            if stock.cpus[i] < pod.cpus_milli or stock.memory[i] < pod.memory_mib:
                continue
            for card in _different_cards(stock.cards[i], pod):
                after = stock.cards[i].copy()
                after[[card] if pod.percent < WHOLE else np.flatnonzero(after == WHOLE)[: pod.gpus]] -= pod.percent
                places.append((k, card if pod.percent < WHOLE else -1))
                cards.append(after)
        if not places:
            return
        wants = np.array([self._pods[k] for k, _ in places])
        lost = self._fragments(stock.cpus[i] - wants[:, 0], stock.memory[i] - wants[:, 1], np.array(cards))
        for (k, card), growth in zip(places, lost - self._lost[i], strict=True):
            if growth < self._growth[k, i]:
                self._growth[k, i], self._card[k, i] = growth, card


def _typical(pods: Sequence[Pod]) -> tuple[list[Pod], list[int]]:
    """The kinds of pods that make up most of all, and how many there are of each."""
    kinds, counts, seen = list[Pod](), list[int](), 0
    for pod, count in Counter(pods).most_common():
        kinds.append(pod)
        counts.append(count)
        seen += count
        if seen > TYPICAL * len(pods):
            break
    return kinds, counts


def _different_cards(left: IntArray, pod: Pod) -> list[int]:
    """One card of each fullness that has room; for whole GPUs one stands for all."""
    if pod.percent == WHOLE:
        return [0] if int((left == WHOLE).sum()) >= pod.gpus else []
    _, first = np.unique(left, return_index=True)
    return [int(card) for card in first if left[card] >= pod.percent]
