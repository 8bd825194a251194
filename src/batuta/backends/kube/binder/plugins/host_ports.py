"""host ports: a port of the node can be had once."""

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

    IN_USE = "didn't have the requested host ports free"


@dataclass(frozen=True, slots=True)
class HostPorts(Plugin):
    """Ports, protocols and addresses against those in use; the address 0.0.0.0 stands for all."""

    name: ClassVar[str] = "host_ports"
    scope: ClassVar[Scope] = Scope.USE

    def concerns(self, need: Need) -> bool:
        return bool(need.cls.ports)

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        clash = cluster.ports.clash(row, need.cls.ports)
        return None if clash is None else No(self.name, Reason.IN_USE)

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        return cluster.ports.free(rows, need.cls.ports)

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        return Counter({No(self.name, Reason.IN_USE): len(rows)})
