"""gpus: whole GPUs by number: those that were decided on, else the lowest that nobody holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import Flags, Rows
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope


class Reason(StrEnum):
    """Why a node will not do."""

    SHARED = "had too few GPUs that nobody shares or holds"
    HELD = "GPU is held or missing:"
    COUNT = "the number of GPUs decided on is not what the pod asks for:"


@dataclass(frozen=True, slots=True)
class Gpus(Plugin):
    """A whole GPU must be wholly free: counting them is not enough where some are shared."""

    name: ClassVar[str] = "gpus"
    scope: ClassVar[Scope] = Scope.USE

    def concerns(self, need: Need) -> bool:
        return need.cls.gpus > 0

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        if cluster.cards.untouched[row] < need.cls.gpus:
            return No(self.name, Reason.SHARED)
        if not gpus:
            return None
        if len(gpus) != need.cls.gpus:
            return No(self.name, Reason.COUNT, f"{len(gpus)} instead of {need.cls.gpus}")
        held = [gpu for gpu in gpus if not cluster.cards.is_untouched(row, gpu)]
        return No(self.name, Reason.HELD, ", ".join(map(str, held))) if held else None

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        return cluster.cards.untouched[rows] >= need.cls.gpus

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        return Counter({No(self.name, Reason.SHARED): len(rows)})
