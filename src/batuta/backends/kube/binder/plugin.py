"""The interface of a plugin: a name, reasons, and pure functions that filter and score nodes for a pod."""

from __future__ import annotations

from collections import Counter
from enum import Enum, StrEnum
from typing import ClassVar, NamedTuple

import numpy as np

from batuta.backends.kube.binder.affinity import PodTerm
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import Flags, Floats, Rows
from batuta.backends.kube.binder.pod_class import PodClass


class Scope(Enum):
    """What a plugin's verdict on a node depends on; it is asked again only when that has changed."""

    NODE = "the node's own labels, taints and settings"
    USE = "what is free on the node, too"
    CLUSTER = "the pods on other nodes, too"


class Need(NamedTuple):
    """What is to be placed: a class of pods, and what else is known of this one. Equal needs share work."""

    cls: PodClass
    foes: tuple[PodTerm, ...] = ()  # anti-affinity terms of pods that are there and that speak of this pod
    meets_own_terms: bool = False  # whether the pod is one of those that its own affinity terms look for
    load: float | None = None  # the utilisation of its GPU that history expects, from 0 to 1
    single_numa: bool = False  # whether the pod's group requires one NUMA node, whatever the kubelet is set to


class No(NamedTuple):
    """Why a node will not do."""

    plugin: str
    reason: StrEnum
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value} {self.detail}" if self.detail else self.reason.value


class Plugin:
    """One consideration. Override `check`, `filter` or `score`; and say in `concerns` when none is needed.

    `check` judges one node and says why not; `filter` judges many at once and must agree with it. Scores lie
    between 0 and 1 for nodes that will do, and do not depend on the scores of other nodes.
    """

    name: ClassVar[str]
    scope: ClassVar[Scope] = Scope.USE

    def concerns(self, need: Need) -> bool:
        """Whether the plugin filters for this pod; false costs nothing further."""
        return False

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        """Why one node will not do, or None. `gpus` are the ones that were decided on, if any were."""
        return None

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        """Which of the rows will do."""
        return np.fromiter((self.check(need, cluster, int(row)) is None for row in rows), np.bool_, len(rows))

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        """Why rows that `filter` refused will not do, and how many for each reason."""
        found = (self.check(need, cluster, int(row)) for row in rows)
        return Counter(no for no in found if no is not None)

    def judge(self, need: Need, cluster: Cluster, rows: Rows) -> tuple[Flags, Floats]:
        """`filter` and `score` at once, for plugins in which they have most of the work in common."""
        return self.filter(need, cluster, rows), self.score(need, cluster, rows)

    def scores(self, need: Need) -> bool:
        """Whether the plugin has a preference among nodes for this pod."""
        return False

    def base_score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        """The part of the score that depends on nothing but the node itself, whatever the scope."""
        return np.zeros(len(rows))

    def score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        """How good each row is; together with `base_score`, from 0 to 1."""
        return np.zeros(len(rows))
