"""taints and unschedulable: a pod goes only to nodes whose taints and cordon it tolerates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import ClassVar, Final

import numpy as np

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import Flags, Floats, Rows, Taint
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope
from batuta.backends.kube.binder.pod_class import Tolerance

_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_SOFT: Final = frozenset({"PreferNoSchedule"})
_CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


class TaintReason(StrEnum):
    """Why a node will not do."""

    UNTOLERATED = "had untolerated taint"
    CORDONED = "was unschedulable"


class Taints(Plugin):
    """Taints against tolerations. Nodes with the same taints are judged once."""

    name: ClassVar[str] = "taints"
    scope: ClassVar[Scope] = Scope.NODE

    def concerns(self, need: Need) -> bool:
        return True

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        taint = untolerated(cluster.nodes.taint_sets[cluster.nodes.taint_set[row]], need.cls.tolerations)
        return None if taint is None else No(self.name, TaintReason.UNTOLERATED, str(taint))

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        tolerations = need.cls.tolerations
        return _by_set(cluster, rows, lambda taints: untolerated(taints, tolerations) is None).astype(np.bool_)

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        found: Counter[No] = Counter()
        numbers, counts = np.unique(cluster.nodes.taint_set[rows], return_counts=True)
        for number, count in zip(numbers, counts, strict=True):
            taint = untolerated(cluster.nodes.taint_sets[number], need.cls.tolerations)
            if taint is not None:
                found[No(self.name, TaintReason.UNTOLERATED, str(taint))] += int(count)
        return found

    def scores(self, need: Need) -> bool:
        return True

    def score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        """1 without a taint that asks to stay away, 1/2 with one, 1/3 with two …"""
        soft = [one for one in need.cls.tolerations if one.effect in {"", *_SOFT}]

        def friendliness(taints: tuple[Taint, ...]) -> float:
            return 1.0 / (1 + sum(one.effect in _SOFT and not _tolerated(one, soft) for one in taints))

        return _by_set(cluster, rows, friendliness)


def untolerated(taints: tuple[Taint, ...], tolerations: tuple[Tolerance, ...]) -> Taint | None:
    return next((one for one in taints if one.effect in _HARD and not _tolerated(one, tolerations)), None)


def tolerates(tolerance: Tolerance, taint: Taint) -> bool:
    """An empty effect means every effect, an empty key every key."""
    if tolerance.effect and tolerance.effect != taint.effect:
        return False
    if tolerance.key and tolerance.key != taint.key:
        return False
    if tolerance.operator == "Equal":
        return tolerance.value == taint.value
    return tolerance.operator == "Exists"


def _tolerated(taint: Taint, tolerations: tuple[Tolerance, ...] | list[Tolerance]) -> bool:
    return any(tolerates(one, taint) for one in tolerations)


def _by_set(cluster: Cluster, rows: Rows, judge: Callable[[tuple[Taint, ...]], float]) -> Floats:
    numbers = cluster.nodes.taint_set[rows]
    table = np.zeros(len(cluster.nodes.taint_sets))
    for number in set(numbers.tolist()):
        table[number] = judge(cluster.nodes.taint_sets[number])
    return table[numbers]


class Unschedulable(Plugin):
    """`spec.unschedulable`, which `kubectl cordon` sets."""

    name: ClassVar[str] = "unschedulable"
    scope: ClassVar[Scope] = Scope.NODE

    def concerns(self, need: Need) -> bool:
        return not any(tolerates(one, _CORDON) for one in need.cls.tolerations)

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        return No(self.name, TaintReason.CORDONED) if cluster.nodes.unschedulable[row] else None

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        return np.logical_not(cluster.nodes.unschedulable[rows])
