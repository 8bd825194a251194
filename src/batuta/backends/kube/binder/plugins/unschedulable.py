"""unschedulable: a cordoned node gets no pods but those that tolerate it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

import numpy as np

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import Flags, Rows, Taint
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope
from batuta.backends.kube.binder.plugins.taints import tolerates

_CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


class Reason(StrEnum):
    """Why a node will not do."""

    CORDONED = "was unschedulable"


@dataclass(frozen=True, slots=True)
class Unschedulable(Plugin):
    """`spec.unschedulable`, which `kubectl cordon` sets."""

    name: ClassVar[str] = "unschedulable"
    scope: ClassVar[Scope] = Scope.NODE

    def concerns(self, need: Need) -> bool:
        return not any(tolerates(one, _CORDON) for one in need.cls.tolerations)

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        return No(self.name, Reason.CORDONED) if cluster.nodes.unschedulable[row] else None

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        return np.logical_not(cluster.nodes.unschedulable[rows])

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        return Counter({No(self.name, Reason.CORDONED): len(rows)})
