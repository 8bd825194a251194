"""The GPUs of each node by index: which are held whole, which are shared and how much of them is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.card_facts import WHOLE_COMPUTE, cards_of
from batuta.backends.kube.binder.node_table import Flags, Floats, Ints
from batuta.backends.kube.binder.padding import padded
from batuta.backends.kube.binder.pod_class import Share

UNKNOWN: Final = 0.5
"""What a GPU counts as of which nothing is known: neither idle nor busy."""
_FEWEST: Final = 8


class Holding(NamedTuple):
    """What one pod holds of its node's GPUs. `gpus` is empty where nobody wrote down which ones."""

    number: int
    gpus: tuple[int, ...]
    share: Share | None = None
    load: float = 0.0
    """The utilisation that the pod is expected to cause, where history knows it."""


NO_GPUS: Final = Holding(0, ())


class Cards:
    """Tables of nodes × GPU indices. Rows are those of the node table."""

    def __init__(self) -> None:
        shape = (0, _FEWEST)
        self.exists: Flags = np.zeros(shape, np.bool_)
        self.ill: Flags = np.zeros(shape, np.bool_)
        """GPUs that are there, and of which nothing may be given."""
        self.memory_mib: Ints = np.zeros(shape, np.int64)
        """What each GPU has to give, which may be more than it has; the same for compute, in percent."""
        self.compute: Ints = np.zeros(shape, np.int64)
        self.memory_taken_mib: Ints = np.zeros(shape, np.int64)
        self.compute_taken: Ints = np.zeros(shape, np.int64)
        """Percent of each GPU that its sharers have by hard limits, …"""
        self.soft_taken: Ints = np.zeros(shape, np.int64)
        """… and by soft ones, of which more may be given away than there is."""
        self.held: Ints = np.zeros(shape, np.int64)
        """How many pods hold the GPU whole; more than one only where somebody else made a mistake."""
        self.sharers: Ints = np.zeros(shape, np.int64)
        self.load: Floats = np.zeros(shape, np.float64)
        """What its sharers are expected to use, together."""
        self.unnamed: Ints = np.zeros(0, np.int64)
        """GPUs that pods hold without anybody having written down which."""
        self.believed: Floats = np.zeros(shape, np.float64)
        """How busy each GPU probably is, by the reports of the node's agent."""
        # Per GPU, worked out of the above whenever it changes, because shares ask for them all the time:
        self.sharable: Flags = np.zeros(shape, np.bool_)
        """Whether shares can be had of it at all: it is well, and nobody holds it whole, named or unnamed."""
        self.memory_left_mib: Ints = np.zeros(shape, np.int64)
        self.compute_left: Ints = np.zeros(shape, np.int64)
        """For hard limits: these are promises, and no GPU can keep more than 100 percent."""
        self.soft_left: Ints = np.zeros(shape, np.int64)
        self.full: Floats = np.zeros(shape, np.float64)
        """How much of what it has to give is taken, of memory or of compute, whichever is more."""
        # Per node, worked out whenever a line of the above changes:
        self.count: Ints = np.zeros(0, np.int64)
        self.untouched: Ints = np.zeros(0, np.int64)
        """How many GPUs nobody holds any part of."""
        self.mean_busy: Floats = np.zeros(0, np.float64)
        """Mean of what is believed of the GPUs that nobody holds whole; 1 where there are none."""
        self.least_busy: Floats = np.zeros(0, np.float64)
        self.expected: Floats = np.zeros(0, np.float64)
        """How busy the node's GPUs will be on the whole, by what is expected of the pods that have them."""

    def resize(self, capacity: int, cards: int = 0) -> None:
        """Makes room for so many nodes, with so many GPUs each; what is there stays."""
        rows, width = self.exists.shape
        shape = (max(rows, capacity), max(width, cards))
        for name in _TABLES:
            setattr(self, name, padded(getattr(self, name), shape))
        for name in _SUMMARIES:
            setattr(self, name, padded(getattr(self, name), shape[:1]))

    def put(self, row: int, node: objects.Node | None) -> None:
        """Writes which GPUs a node has; None: it has gone."""
        cards = () if node is None else cards_of(node)
        count = len(cards)
        if count > self.exists.shape[1]:
            self.resize(0, count)
        self.exists[row] = np.arange(self.exists.shape[1]) < count
        self.sharable[row] = False
        for table in (self.memory_mib, self.compute, self.ill):
            table[row] = 0
        if cards:
            self.memory_mib[row, :count] = [card.memory_mib for card in cards]
            self.compute[row, :count] = [card.compute_percent for card in cards]
            self.ill[row, :count] = [card.is_ill for card in cards]
        self.count[row] = count
        for gpu in range(self.exists.shape[1]):
            self._settle(row, gpu)
        self._sum_up(row)

    def believe(self, row: int, busy: Floats) -> None:
        """Writes how busy each GPU of a node probably is."""
        self.believed[row] = busy
        self._sum_up(row)

    def take(self, row: int, holding: Holding, sign: int) -> None:
        """Takes what a pod holds (`sign` 1), or gives it back (-1)."""
        if holding.gpus and max(holding.gpus) >= self.exists.shape[1]:
            self.resize(0, max(holding.gpus) + 1)
        if holding.share is not None:
            if holding.gpus:
                self._take_share(row, holding.gpus[0], holding, sign)
        else:
            for gpu in holding.gpus:
                self.held[row, gpu] += sign
            self.unnamed[row] += sign * max(0, holding.number - len(holding.gpus))
        self._sum_up(row)

    def is_untouched(self, row: int, gpu: int) -> bool:
        """Whether a GPU is there and well, and nobody is known to hold any part of it."""
        if gpu < 0 or gpu >= self.exists.shape[1] or self.ill[row, gpu]:
            return False
        return bool(self.exists[row, gpu]) and not self.held[row, gpu] and not self.sharers[row, gpu]

    def ill_ones(self, row: int) -> list[int]:
        """The GPUs of which nothing may be given."""
        return [gpu for gpu, ill in enumerate(self.ill[row, : int(self.count[row])].tolist()) if ill]

    def calmest(self, row: int, count: int) -> tuple[int, ...]:
        """GPUs that nobody holds, the really least used ones, of those as much used the first.

        Those that are held without a number count as the last ones.
        """
        untouched = self._untouched(row)
        free = untouched[: max(len(untouched) - int(self.unnamed[row]), 0)]
        return tuple(sorted(sorted(free, key=lambda gpu: self.tenths(row, gpu))[:count]))

    def tenths(self, row: int, gpu: int) -> int:
        """How busy a GPU probably is, to a tenth: less is no difference."""
        return round(10 * float(self.believed[row, gpu]))

    def guess(self, row: int, count: int) -> tuple[int, ...]:
        """The GPUs that are taken to be held by pods of which nobody wrote down a number: the last ones."""
        return tuple(self._untouched(row)[::-1][:count])

    def _take_share(self, row: int, gpu: int, holding: Holding, sign: int) -> None:
        assert holding.share is not None
        self.sharers[row, gpu] += sign
        self.memory_taken_mib[row, gpu] += sign * holding.share.memory_mib
        taken = self.soft_taken if holding.share.soft else self.compute_taken
        taken[row, gpu] += sign * holding.share.compute_percent
        self._settle(row, gpu)
        # A sum of floats does not return to 0 by itself.
        self.load[row, gpu] = self.load[row, gpu] + sign * holding.load if self.sharers[row, gpu] else 0.0

    def _settle(self, row: int, gpu: int) -> None:
        """Works out what is left of a GPU: the same as in the World (`Card.booked_percent`)."""
        memory, promised = int(self.memory_mib[row, gpu]), int(self.compute[row, gpu])
        memory_taken, hard = int(self.memory_taken_mib[row, gpu]), int(self.compute_taken[row, gpu])
        soft, whole = int(self.soft_taken[row, gpu]), min(promised, WHOLE_COMPUTE)
        booked = hard - (-soft * whole // max(promised, 1))
        self.memory_left_mib[row, gpu] = memory - memory_taken
        self.compute_left[row, gpu] = whole - booked
        self.soft_left[row, gpu] = (whole - hard) * promised // max(whole, 1) - soft
        self.full[row, gpu] = max(memory_taken / max(memory, 1), booked / max(whole, 1))

    def compute_left_for(self, share: Share) -> Ints:
        """What is left for shares like this one."""
        return self.soft_left if share.soft else self.compute_left

    def _untouched(self, row: int) -> list[int]:
        count = int(self.count[row])
        held, sharers = self.held[row, :count].tolist(), self.sharers[row, :count].tolist()
        ill = self.ill[row, :count].tolist()
        return [gpu for gpu in range(count) if not held[gpu] and not sharers[gpu] and not ill[gpu]]

    def _sum_up(self, row: int) -> None:
        count = int(self.count[row])
        held, sharers = self.held[row, :count].tolist(), self.sharers[row, :count].tolist()
        loads = self.load[row, :count].tolist()
        # Plain numbers: for the eight GPUs of a node they are faster than arrays.
        busy = [
            busy for busy, whole in zip(self.believed[row, :count].tolist(), held, strict=True) if not whole
        ]
        ill = self.ill[row, :count].tolist()
        touched = sum(1 for states in zip(held, sharers, ill, strict=True) if any(states))
        untouched = count - touched - int(self.unnamed[row])
        self.untouched[row] = untouched
        # Pods of which nobody wrote down the GPU may hold any that has no sharers.
        self.sharable[row, :count] = [
            not sick and not whole and (parts > 0 or untouched > 0)
            for sick, whole, parts in zip(ill, held, sharers, strict=True)
        ]
        self.mean_busy[row] = sum(busy) / len(busy) if busy else 1.0
        self.least_busy[row] = min(busy, default=1.0)
        self.expected[row] = (sum(loads) + UNKNOWN * sum(map(bool, held))) / count if count else 1.0


_TABLES: Final = (
    "exists",
    "ill",
    "memory_mib",
    "compute",
    "memory_taken_mib",
    "compute_taken",
    "soft_taken",
    "held",
    "sharers",
    "load",
    "believed",
    "sharable",
    "memory_left_mib",
    "compute_left",
    "soft_left",
    "full",
)
_SUMMARIES: Final = ("unnamed", "count", "untouched", "mean_busy", "least_busy", "expected")


def gpu_indices(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """The GPUs that a pod was given, from its annotation; empty where it says nothing that can be read."""
    text = annotations.get(names.GPUS, "")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 5 for part in parts):
        return ()
    return tuple(dict.fromkeys(int(part) for part in parts))
