"""resources and host_ports: a node must have free what the pod requests, and the host ports that it opens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Final, Literal

import numpy as np

from batuta.backends.kube import names
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import Flags, Floats, Ints, Rows
from batuta.backends.kube.binder.plugin import Need, No, Plugin
from batuta.backends.kube.binder.requests import Needs

_SCORED: Final = frozenset({"cpu", "memory", *names.GPU_RESOURCES})


class ResourceReason(StrEnum):
    """Why a node will not do."""

    TOO_MANY_PODS = "Too many pods"
    INSUFFICIENT = "Insufficient"
    PORTS_IN_USE = "didn't have the requested host ports free"


@dataclass(frozen=True, slots=True)
class Resources(Plugin):
    """Requests against what is allocatable and not taken, as kube-scheduler's NodeResourcesFit has it."""

    name: ClassVar[str] = "resources"
    order: Literal["bin_pack", "spread"] = "bin_pack"
    gpu_nodes_last: bool = True  # whether pods without GPUs leave nodes with GPUs alone as long as there are others

    def concerns(self, need: Need) -> bool:
        return True

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        left = cluster.nodes.left(need.cls.requests, np.array([row], np.intp))[:, 0].tolist()
        if min(left) >= 0:
            return None
        short = next(line for line, value in enumerate(left) if value < 0)
        return self._lack(need, short)

    def judge(self, need: Need, cluster: Cluster, rows: Rows) -> tuple[Flags, Floats]:
        left = cluster.nodes.left(need.cls.requests, rows)
        fits: Flags = left.min(axis=0) >= 0
        return fits, self._rate(need, cluster, rows, left)

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        fits: Flags = cluster.nodes.left(need.cls.requests, rows).min(axis=0) >= 0
        return fits

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        """A node that lacks several things counts for each of them, as people know it."""
        short = np.count_nonzero(cluster.nodes.left(need.cls.requests, rows) < 0, axis=1).tolist()
        return Counter({self._lack(need, line): count for line, count in enumerate(short) if count})

    def scores(self, need: Need) -> bool:
        return True

    def base_score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        if not self.gpu_nodes_last or need.cls.gpus or need.cls.share is not None:
            return np.zeros(len(rows))
        return np.where(cluster.gpu_table.exists[rows, 0], 0.0, 0.5)

    def score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        """How full the node would be, of what the pod asks for; GPUs count as much as all else together."""
        return self._rate(need, cluster, rows, cluster.nodes.left(need.cls.requests, rows))

    def _rate(self, need: Need, cluster: Cluster, rows: Rows, left: Ints) -> Floats:
        per_unit = cluster.nodes.per_unit[cluster.nodes.ask(need.cls.requests).lines, rows]
        empty: Floats = _weights(need.cls.requests) @ (left * per_unit)
        score = 1.0 - empty if self.order == "bin_pack" else empty
        if self.gpu_nodes_last and not need.cls.gpus and need.cls.share is None:
            return 0.5 * score
        return score

    def _lack(self, need: Need, line: int) -> No:
        """The first line is the pod itself, the others are its requests."""
        if line == 0:
            return No(self.name, ResourceReason.TOO_MANY_PODS)
        return No(self.name, ResourceReason.INSUFFICIENT, need.cls.requests[line - 1][0])


def room(need: Need, cluster: Cluster, rows: Rows) -> Ints:
    ask = cluster.nodes.ask(need.cls.requests)
    count: Ints = (np.maximum(cluster.nodes.free[ask.lines, rows], 0) // ask.amounts).min(axis=0)
    return count


@lru_cache(maxsize=4096)
def _weights(requests: Needs) -> Floats:
    """How much each request counts in the score; they add up to 1, or to 0 where none counts."""
    scored = sum(name in _SCORED for name, _ in requests)
    weights = [(scored if name in names.GPU_RESOURCES else 1.0) * (name in _SCORED) for name, _ in requests]
    return np.array([0.0, *weights]) / (sum(weights) or 1.0)


class HostPorts(Plugin):
    """Ports, protocols and addresses against those in use; the address 0.0.0.0 stands for all."""

    name: ClassVar[str] = "host_ports"

    def concerns(self, need: Need) -> bool:
        return bool(need.cls.ports)

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        clash = cluster.ports.clash(row, need.cls.ports)
        return None if clash is None else No(self.name, ResourceReason.PORTS_IN_USE)
