"""The GPUs of each node by index: capacity, health, what pods hold of them, and how busy agents report them to be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.node_table import Flags, Floats, Ints, Rows, padded
from batuta.backends.kube.binder.pod_class import Share
from batuta.backends.kube.binder.requests import amount, whole
from batuta.backends.kube.bounded_text import MOST_GPUS, by_gpu, read_json, read_whole

WHOLE_COMPUTE: Final = 100
MOST_MEMORY_MIB: Final = 2**32  # of one GPU: 4 PiB
_MOST_COMPUTE: Final = 100_000  # percent of one GPU that may be promised
UNKNOWN: Final = 0.5  # what a GPU counts as of which nothing is known: neither idle nor busy
_FEWEST: Final = 8
STALE_S: Final = 90.0
HALF_LIFE_S: Final = 30.0
STEP_S: Final = 5.0  # ages are looked at in steps, so that a cycle does not have to work out everything anew


class GpuCapacity(NamedTuple):
    """One GPU. It may give more than it has: then its sharers count on each other to leave some unused."""

    memory_mib: int
    compute_percent: int = WHOLE_COMPUTE
    is_ill: bool = False


def gpus_of_node(node: objects.Node) -> tuple[GpuCapacity, ...]:
    """A node's GPUs by index: what the device plugin has written, else what capacity and labels tell.

    One that health has taken out of service is ill, whatever the device plugin thinks of it.
    """
    annotations = node.metadata.annotations
    cards = _from_annotation(annotations.get(names.CARDS, "")) or _from_capacity(node)
    out = unhealthy_gpus(annotations)
    if not out:
        return cards
    return tuple(card._replace(is_ill=True) if gpu in out else card for gpu, card in enumerate(cards))


def unhealthy_gpus(annotations: Mapping[str, str]) -> dict[int, str]:
    """The GPUs that health has taken out of service, and why; what cannot be read says nothing."""
    told = read_json(annotations.get(names.ILL_GPUS), dict[str, str], {})
    return by_gpu(told)


def _from_annotation(text: str) -> tuple[GpuCapacity, ...]:
    told = {card.index: card for card in read_json(text, list[_ReportedGpu], [])}
    if not told:
        return ()
    # A number that is not told of is no card: nothing may be given of it.
    listed = (told.get(index) for index in range(max(told) + 1))
    return tuple(
        GpuCapacity(0, 0, is_ill=True)
        if card is None
        else GpuCapacity(card.memory * names.SHARE_UNIT_MIB, card.compute, bool(card.illness))
        for card in listed
    )


def _from_capacity(node: objects.Node) -> tuple[GpuCapacity, ...]:
    # Capacity, because a GPU that is out of order leaves allocatable and keeps its number.
    stated: Mapping[str, str] = {**node.status.allocatable, **node.status.capacity}
    count = next((_count(stated[name]) for name in names.GPU_RESOURCES if _count(stated.get(name, "0"))), 0)
    if not count:
        count = -(-_count(stated.get(names.SHARE_COMPUTE, "0")) // WHOLE_COMPUTE)
    if not count:
        return ()
    labelled = node.metadata.labels.get(names.GPU_MEMORY_LABEL, "")
    units = _count(stated.get(names.SHARE_MEMORY, "0")) // count
    memory_mib = read_whole(labelled, most=MOST_MEMORY_MIB)
    memory_mib = min(units * names.SHARE_UNIT_MIB, MOST_MEMORY_MIB) if memory_mib is None else memory_mib
    return (GpuCapacity(memory_mib),) * min(count, MOST_GPUS)


def _count(text: str) -> int:
    return whole(amount(text))


class _ReportedGpu(msgspec.Struct):
    """One line of what the device plugin writes; memory in units."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)]
    memory: Annotated[int, msgspec.Meta(ge=0, le=MOST_MEMORY_MIB // names.SHARE_UNIT_MIB)] = 0
    compute: Annotated[int, msgspec.Meta(ge=0, le=_MOST_COMPUTE)] = WHOLE_COMPUTE
    illness: str = ""


class GpuHolding(NamedTuple):
    """What one pod holds of its node's GPUs. `gpus` is empty where no annotation says which ones."""

    number: int
    gpus: tuple[int, ...]
    share: Share | None = None
    load: float = 0.0  # the utilisation that the pod is expected to cause, where history knows it


NO_GPUS: Final = GpuHolding(0, ())


class GpuTable:
    """Tables of nodes × GPU indices. Rows are those of the node table."""

    def __init__(self) -> None:
        shape = (0, _FEWEST)
        self.exists: Flags = np.zeros(shape, np.bool_)
        self.ill: Flags = np.zeros(shape, np.bool_)  # GPUs that are there, and of which nothing may be given
        self.memory_mib: Ints = np.zeros(shape, np.int64)
        """What each GPU has to give, which may be more than it has; the same for compute, in percent."""
        self.compute: Ints = np.zeros(shape, np.int64)
        self.memory_taken_mib: Ints = np.zeros(shape, np.int64)
        self.compute_taken: Ints = np.zeros(shape, np.int64)
        """Percent of each GPU that its sharers have by hard limits, …"""
        self.soft_taken: Ints = np.zeros(shape, np.int64)
        """… and by soft ones, of which more may be given away than there is."""
        self.held: Ints = np.zeros(shape, np.int64)
        """How many pods hold the GPU whole; more than one only where another scheduler made a mistake."""
        self.sharers: Ints = np.zeros(shape, np.int64)
        self.load: Floats = np.zeros(shape, np.float64)
        self.unnamed: Ints = np.zeros(0, np.int64)  # GPUs that pods hold without an annotation that says which
        self.believed: Floats = np.zeros(shape, np.float64)
        """How busy each GPU probably is, by the reports of the node's agent."""
        # Per GPU, worked out of the above whenever it changes, because shares ask for them all the time:
        self.sharable: Flags = np.zeros(shape, np.bool_)
        """Whether shares can be had of it at all: it is well, and no pod holds it whole, named or unnamed."""
        self.memory_left_mib: Ints = np.zeros(shape, np.int64)
        self.compute_left: Ints = np.zeros(shape, np.int64)
        """For hard limits: these are promises, and no GPU can keep more than 100 percent."""
        self.soft_left: Ints = np.zeros(shape, np.int64)
        self.full: Floats = np.zeros(shape, np.float64)
        """How much of what it has to give is taken, of memory or of compute, whichever is more."""
        # Per node, worked out whenever a line of the above changes:
        self.count: Ints = np.zeros(0, np.int64)
        self.untouched: Ints = np.zeros(0, np.int64)
        self.mean_busy: Floats = np.zeros(0, np.float64)
        """Mean of what is believed of the GPUs that no pod holds whole; 1 where there are none."""
        self.least_busy: Floats = np.zeros(0, np.float64)
        self.expected: Floats = np.zeros(0, np.float64)
        """How busy the node's GPUs will be on the whole, by what is expected of the pods that have them."""

    def resize(self, capacity: int, cards: int = 0) -> None:
        """Makes room for so many nodes, with so many GPUs each; what is there stays."""
        rows, width = self.exists.shape
        shape = (max(rows, capacity), max(width, cards))
        for name, column in vars(self).items():
            setattr(self, name, padded(column, shape[: column.ndim]))

    def put(self, row: int, node: objects.Node | None) -> None:
        """Writes which GPUs a node has; None: it has gone."""
        cards = () if node is None else gpus_of_node(node)
        count = len(cards)
        if count > self.exists.shape[1]:
            self.resize(0, count)
        self.exists[row] = np.arange(self.exists.shape[1]) < count
        self.sharable[row] = False
        values = np.array(cards, np.int64).reshape(count, 3).T
        for table, line in zip((self.memory_mib, self.compute, self.ill), values, strict=True):
            table[row] = 0
            table[row, :count] = line
        self.count[row] = count
        for gpu in range(self.exists.shape[1]):
            self._settle(row, gpu)
        self._sum_up(row)

    def believe(self, row: int, busy: Floats) -> None:
        self.believed[row] = busy
        self._sum_up(row)

    def take(self, row: int, holding: GpuHolding, sign: int) -> None:
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

    def ill_ones(self, row: int) -> list[int]:
        return [gpu for gpu, ill in enumerate(self.ill[row, : int(self.count[row])].tolist()) if ill]

    def calmest(self, row: int, count: int) -> tuple[int, ...]:
        """GPUs that no pod holds, the really least used ones, of those as much used the first.

        Those that are held without a number count as the last ones.
        """
        untouched = self.untouched_gpus(row)
        free = untouched[: max(len(untouched) - int(self.unnamed[row]), 0)]
        return tuple(sorted(sorted(free, key=lambda gpu: self.tenths(row, gpu))[:count]))

    def tenths(self, row: int, gpu: int) -> int:
        """How busy a GPU probably is, to a tenth: less is no difference."""
        return round(10 * float(self.believed[row, gpu]))

    def guess(self, row: int, count: int) -> tuple[int, ...]:
        """The GPUs that are taken to be held by pods without an annotated index: the last ones."""
        return tuple(self.untouched_gpus(row)[::-1][:count])

    def _take_share(self, row: int, gpu: int, holding: GpuHolding, sign: int) -> None:
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
        return self.soft_left if share.soft else self.compute_left

    def untouched_gpus(self, row: int) -> list[int]:
        """The GPUs that are there and well, and of which no pod is known to hold any part."""
        count = int(self.count[row])
        held, sharers = self.held[row, :count].tolist(), self.sharers[row, :count].tolist()
        ill = self.ill[row, :count].tolist()
        return [gpu for gpu in range(count) if not held[gpu] and not sharers[gpu] and not ill[gpu]]

    def _sum_up(self, row: int) -> None:
        count = int(self.count[row])
        held, sharers = self.held[row, :count].tolist(), self.sharers[row, :count].tolist()
        loads = self.load[row, :count].tolist()
        # Plain numbers: for the eight GPUs of a node they are faster than arrays.
        busy = [busy for busy, whole in zip(self.believed[row, :count].tolist(), held, strict=True) if not whole]
        ill = self.ill[row, :count].tolist()
        touched = sum(1 for states in zip(held, sharers, ill, strict=True) if any(states))
        untouched = count - touched - int(self.unnamed[row])
        self.untouched[row] = untouched
        # Pods without an annotated GPU may hold any that has no sharers.
        self.sharable[row, :count] = [
            not sick and not whole and (parts > 0 or untouched > 0)
            for sick, whole, parts in zip(ill, held, sharers, strict=True)
        ]
        self.mean_busy[row] = sum(busy) / len(busy) if busy else 1.0
        self.least_busy[row] = min(busy, default=1.0)
        self.expected[row] = (sum(loads) + UNKNOWN * sum(map(bool, held))) / count if count else 1.0


class GpuUsage:
    """The last report of each node. Rows are those of the node table."""

    def __init__(self) -> None:
        self._text: dict[int, str] = {}
        self._time_s: Floats = np.zeros(0)
        self._reported: Floats = np.zeros((0, _FEWEST))
        self.now_s = 0.0

    @property
    def is_empty(self) -> bool:
        return not self._text

    def resize(self, capacity: int, cards: int = 0) -> None:
        rows, width = self._reported.shape
        shape = (max(rows, capacity), max(width, cards))
        self._reported = padded(self._reported, shape, math.nan)
        self._time_s = padded(self._time_s, shape[:1], -math.inf)

    def put(self, row: int, text: str) -> None:
        """Reads a node's annotation. What cannot be read is no report."""
        if self._text.get(row, "") == text:
            return
        self._time_s[row] = -math.inf
        self._reported[row] = np.nan
        self._text.pop(row, None)
        if text:
            self._text[row] = text
            self._read(row, text)

    def tick(self, now_s: float) -> bool:
        """Moves on to another time; true when that can make a difference."""
        before, self.now_s = self.now_s, now_s
        return not self.is_empty and before // STEP_S != now_s // STEP_S

    def busy(self, rows: Rows, width: int) -> Floats:
        """Nodes × GPUs: the last fresh report; NaN where there is none."""
        # A report from the future comes from a clock that is wrong, and is as good as an old one.
        fresh = np.abs(self._stepped_now_s - self._time_s[rows]) <= STALE_S
        table = np.where(fresh[:, None], self._reported[rows], np.nan)
        if table.shape[1] >= width:
            return table[:, :width]
        return np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=np.nan)

    def believed(self, rows: Rows, width: int) -> Floats:
        """Nodes × GPUs: how busy each probably is; a report counts half after each half-life."""
        busy = self.busy(rows, width)
        age_s = np.clip(self._stepped_now_s - self._time_s[rows], 0.0, STALE_S)
        trust = (0.5 ** (age_s / HALF_LIFE_S))[:, None]
        return np.where(np.isnan(busy), UNKNOWN, trust * np.nan_to_num(busy) + (1 - trust) * UNKNOWN)

    @property
    def _stepped_now_s(self) -> float:
        return self.now_s // STEP_S * STEP_S

    def _read(self, row: int, text: str) -> None:
        found = read_json(text, objects.UsageReport, objects.UsageReport(-math.inf))
        # A GPU that cannot tell (it fell off the bus) is not known to be idle.
        gpus = {one.index: one.utilisation for one in found.gpus if one.utilisation is not None}
        self.resize(0, max(gpus, default=0) + 1)
        for index, value in gpus.items():
            self._reported[row, index] = value
        self._time_s[row] = found.time
