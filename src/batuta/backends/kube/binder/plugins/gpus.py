"""gpus, gpu_share and utilisation: whole GPUs by index, shares of one GPU, and a preference for idle GPUs.

- gpus: the indices that the scheduler has decided on, else the lowest free ones.
- gpu_share: memory and compute of the same GPU, beside sharers whose expected load leaves room.
- utilisation: among feasible nodes, prefer good GPUs that are idle and are expected to stay so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Literal

import numpy as np

from batuta.backends.kube import names
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.gpu_table import UNKNOWN
from batuta.backends.kube.binder.node_table import Flags, Floats, Rows
from batuta.backends.kube.binder.plugin import Need, No, Plugin

_LARGE_MEMORY_MIB: Final = 81_920
_MANY_GPUS: Final = 8


class GpuReason(StrEnum):
    """Why a node will not do."""

    SHARED = "had too few GPUs that no pod shares or holds"
    HELD = "GPU is held or missing:"
    COUNT = "the number of GPUs decided on is not what the pod asks for:"


class Gpus(Plugin):
    """A whole GPU must be wholly free: counting them is not enough where some are shared."""

    name: ClassVar[str] = "gpus"

    def concerns(self, need: Need) -> bool:
        return need.cls.gpus > 0

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        if cluster.gpu_table.untouched[row] < need.cls.gpus:
            return No(self.name, GpuReason.SHARED)
        if not gpus:
            return None
        if len(gpus) != need.cls.gpus:
            return No(self.name, GpuReason.COUNT, f"{len(gpus)} instead of {need.cls.gpus}")
        untouched = cluster.gpu_table.untouched_gpus(row)
        held = [gpu for gpu in gpus if gpu not in untouched]
        return No(self.name, GpuReason.HELD, ", ".join(map(str, held))) if held else None

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        return cluster.gpu_table.untouched[rows] >= need.cls.gpus

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        return Counter({No(self.name, GpuReason.SHARED): len(rows)})


class ShareReason(StrEnum):
    """Why a node will not do."""

    NO_ROOM = "had no single GPU with room for the share"
    TOO_BUSY = "had GPUs with room, but too busy to share"
    CARD = "the GPU decided on has no room for the share:"


@dataclass(frozen=True, slots=True)
class GpuShare(Plugin):
    """Shares of GPUs. A share never spans two cards, however much they have left together."""

    name: ClassVar[str] = "gpu_share"
    order: Literal["bin_pack", "spread"] = "bin_pack"
    busiest: float = 0.7  # sharers of one GPU whose utilisation adds up to more than this disturb each other

    def concerns(self, need: Need) -> bool:
        return need.cls.share is not None

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        rows: Rows = np.array([row], np.intp)
        room = self._room(need, cluster, rows)[0]
        if not room.any():
            return No(self.name, ShareReason.NO_ROOM)
        if gpus:
            # The scheduler that decided on a card knew how busy it is, and that there is no calmer place.
            has_room = gpus[0] in np.flatnonzero(room)
            return None if has_room else No(self.name, ShareReason.CARD, str(gpus[0]))
        return None if self.filter(need, cluster, rows)[0] else No(self.name, ShareReason.TOO_BUSY)

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        good: Flags = np.logical_or.reduce(self._good(need, cluster, rows), axis=1)
        return good

    def judge(self, need: Need, cluster: Cluster, rows: Rows) -> tuple[Flags, Floats]:
        good = self._good(need, cluster, rows)
        fits: Flags = np.logical_or.reduce(good, axis=1)
        return fits, self._best(good, cluster, rows)

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        busy = int(np.count_nonzero(self._room(need, cluster, rows).any(axis=1)))
        counted = Counter(
            {No(self.name, ShareReason.TOO_BUSY): busy, No(self.name, ShareReason.NO_ROOM): len(rows) - busy}
        )
        return +counted

    def scores(self, need: Need) -> bool:
        return need.cls.share is not None

    def score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        return self._best(self._good(need, cluster, rows), cluster, rows)

    def pick(self, need: Need, cluster: Cluster, row: int) -> int:
        """The card that a pod gets on a node that has passed the filter.

        Of equally full ones the one that is really less used, then the first.
        """
        cards = np.flatnonzero(self._good(need, cluster, np.array([row], np.intp))[0]).tolist()
        sign = -1.0 if self.order == "bin_pack" else 1.0
        table = cluster.gpu_table
        return min(cards, key=lambda gpu: (sign * float(table.full[row, gpu]), table.tenths(row, gpu)))

    def _good(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        return self._room(need, cluster, rows) & self._peaceful(need, cluster, rows)

    def _room(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        cards, share = cluster.gpu_table, need.cls.share
        assert share is not None
        room: Flags = cards.sharable[rows]
        room &= cards.memory_left_mib[rows] >= share.memory_mib
        room &= cards.compute_left_for(share)[rows] >= share.compute_percent
        return room

    def _peaceful(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        """A GPU without sharers qualifies; else the new pod must not make it too busy."""
        cards = cluster.gpu_table
        together = cards.load[rows]
        if not cluster.usage.is_empty:
            together = np.fmax(together, cluster.usage.busy(rows, cards.exists.shape[1]))
        together = together + (need.load or 0.0)
        peaceful: Flags = (cards.sharers[rows] == 0) | (together <= self.busiest)
        return peaceful

    def _best(self, good: Flags, cluster: Cluster, rows: Rows) -> Floats:
        full = cluster.gpu_table.full[rows]
        score = full if self.order == "bin_pack" else 1.0 - full
        best: Floats = np.maximum.reduce(np.where(good, score, 0.0), axis=1)
        return best


@dataclass(frozen=True, slots=True)
class Utilisation(Plugin):
    """Three scores in one, each with its weight: what the GPUs are, what they do, and what they will do."""

    name: ClassVar[str] = "utilisation"
    basic: float = 0.2  # model, memory and number of GPUs
    measured: float = 0.5  # how busy the GPUs are that the pod could get, by the reports of the node's agent
    allocated: float = 0.3
    """How busy all of the node's GPUs will be, with what history expects of this job and of the others."""
    models: Mapping[str, float] = field(default_factory=dict, hash=False)
    """How good a model of GPU is, from 0 to 1; one that is not named counts as a half."""

    def scores(self, need: Need) -> bool:
        return need.cls.gpus > 0 or need.cls.share is not None

    def base_score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        cards = cluster.gpu_table
        memory = np.minimum(cards.memory_mib[rows, 0] / _LARGE_MEMORY_MIB, 1.0)
        count = np.minimum(cards.count[rows] / _MANY_GPUS, 1.0)
        share: Floats = self._shares[0] * (self._worth(cluster, rows) + memory + count) / 3.0
        return share

    def score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        cards = cluster.gpu_table
        _, measured, allocated = self._shares
        busy = (cards.mean_busy if need.cls.share is None else cards.least_busy)[rows]
        own = (UNKNOWN if need.load is None else need.load) * max(need.cls.gpus, 1)
        expected = np.minimum(cards.expected[rows] + own / np.maximum(cards.count[rows], 1), 1.0)
        score: Floats = measured * (1.0 - busy) + allocated * (1.0 - expected)
        return score

    @property
    def _shares(self) -> tuple[float, float, float]:
        total = (self.basic + self.measured + self.allocated) or 1.0
        return self.basic / total, self.measured / total, self.allocated / total

    def _worth(self, cluster: Cluster, rows: Rows) -> Floats:
        worth = np.full(len(rows), UNKNOWN)
        for label in reversed(names.GPU_PRODUCT_LABELS) if self.models else ():
            column = cluster.nodes.label(label)
            known = np.array([self.models.get(value, UNKNOWN) for value in column.values] + [np.nan])
            found = known[column.codes[rows]]
            worth = np.where(np.isnan(found), worth, found)
        return worth
