"""gpu share: memory and compute of one and the same GPU, beside sharers that leave each other in peace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

import numpy as np

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import Flags, Floats, Rows
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope


class Reason(StrEnum):
    """Why a node will not do."""

    NO_ROOM = "had no single GPU with room for the share"
    TOO_BUSY = "had GPUs with room, but too busy to share"
    CARD = "the GPU decided on has no room for the share:"


@dataclass(frozen=True, slots=True)
class GpuShare(Plugin):
    """Shares of GPUs. A share never spans two cards, however much they have left together."""

    name: ClassVar[str] = "gpu_share"
    scope: ClassVar[Scope] = Scope.USE
    order: Literal["bin_pack", "spread"] = "bin_pack"
    busiest: float = 0.7
    """Sharers of one GPU whose utilisation adds up to more than this disturb each other."""

    def concerns(self, need: Need) -> bool:
        return need.cls.share is not None

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        cards = range(int(cluster.cards.count[row]))
        room = [gpu for gpu in cards if self._has_room(need, cluster, row, gpu)]
        if not room:
            return No(self.name, Reason.NO_ROOM)
        if gpus:
            # Whoever decided on a card knew how busy it is, and that there is no calmer place.
            return None if gpus[0] in room else No(self.name, Reason.CARD, str(gpus[0]))
        if not any(self._is_peaceful(need, cluster, row, gpu) for gpu in room):
            return No(self.name, Reason.TOO_BUSY)
        return None

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
            {No(self.name, Reason.TOO_BUSY): busy, No(self.name, Reason.NO_ROOM): len(rows) - busy}
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
        cards = [
            gpu
            for gpu in range(int(cluster.cards.count[row]))
            if self._has_room(need, cluster, row, gpu) and self._is_peaceful(need, cluster, row, gpu)
        ]
        sign = -1.0 if self.order == "bin_pack" else 1.0
        return min(
            cards,
            key=lambda gpu: (sign * float(cluster.cards.full[row, gpu]), cluster.cards.tenths(row, gpu)),
        )

    def _has_room(self, need: Need, cluster: Cluster, row: int, gpu: int) -> bool:
        cards, share = cluster.cards, need.cls.share
        assert share is not None
        return bool(
            cards.sharable[row, gpu]
            and cards.memory_left_mib[row, gpu] >= share.memory_mib
            and cards.compute_left_for(share)[row, gpu] >= share.compute_percent
        )

    def _is_peaceful(self, need: Need, cluster: Cluster, row: int, gpu: int) -> bool:
        if not cluster.cards.sharers[row, gpu]:
            return True
        busy = max(cluster.usage.busy_gpu(row, gpu), float(cluster.cards.load[row, gpu]))
        return busy + (need.load or 0.0) <= self.busiest

    # The same for many nodes at once.

    def _good(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        return self._room(need, cluster, rows) & self._peaceful(need, cluster, rows)

    def _room(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        cards, share = cluster.cards, need.cls.share
        assert share is not None
        room: Flags = cards.sharable[rows]
        room &= cards.memory_left_mib[rows] >= share.memory_mib
        room &= cards.compute_left_for(share)[rows] >= share.compute_percent
        return room

    def _peaceful(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        """A card that nobody shares is peaceful; else the newcomer must not make it too busy."""
        cards = cluster.cards
        together = cards.load[rows]
        if not cluster.usage.is_empty:
            together = np.fmax(together, cluster.usage.busy(rows, cards.exists.shape[1]))
        together = together + (need.load or 0.0)
        peaceful: Flags = (cards.sharers[rows] == 0) | (together <= self.busiest)
        return peaceful

    def _best(self, good: Flags, cluster: Cluster, rows: Rows) -> Floats:
        """The score of the best card of each row."""
        full = cluster.cards.full[rows]
        score = full if self.order == "bin_pack" else 1.0 - full
        best: Floats = np.maximum.reduce(np.where(good, score, 0.0), axis=1)
        return best
