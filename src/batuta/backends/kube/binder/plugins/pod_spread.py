"""pod spread: no domain gets more than `maxSkew` pods ahead of the one with the fewest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import MISSING, Flags, Rows
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope
from batuta.backends.kube.binder.plugins.node_affinity import matching_rows
from batuta.backends.kube.binder.plugins.taints import Taints
from batuta.backends.kube.binder.pod_terms import Spread
from batuta.backends.kube.binder.social import spread_question


class Reason(StrEnum):
    """Why a node will not do."""

    NO_LABEL = "didn't have the label of a topology spread constraint"
    UNEVEN = "didn't match pod topology spread constraints"


@dataclass(frozen=True, slots=True)
class PodSpread(Plugin):
    """`topologySpreadConstraints` of the kind DoNotSchedule, as kube-scheduler means them."""

    name: ClassVar[str] = "pod_spread"
    scope: ClassVar[Scope] = Scope.CLUSTER

    def concerns(self, need: Need) -> bool:
        return bool(need.cls.spread)

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        rows: Rows = np.array([row], np.intp)
        for spread in need.cls.spread:
            if cluster.nodes.label(spread.topology_key).codes[row] == MISSING:
                return No(self.name, Reason.NO_LABEL)
            if not self._even(spread, need, cluster, rows)[0]:
                return No(self.name, Reason.UNEVEN)
        return None

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        fits = np.ones(len(rows), np.bool_)
        for spread in need.cls.spread:
            fits &= self._even(spread, need, cluster, rows)
        return fits

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        """By the first constraint that a node does not meet, as `check` has it."""
        found: Counter[No] = Counter()
        for spread in need.cls.spread:
            bare = cluster.nodes.label(spread.topology_key).codes[rows] == MISSING
            uneven = ~bare & ~self._even(spread, need, cluster, rows)
            found[No(self.name, Reason.NO_LABEL)] += int(np.count_nonzero(bare))
            found[No(self.name, Reason.UNEVEN)] += int(np.count_nonzero(uneven))
            rows = rows[~bare & ~uneven]
        return +found

    def _even(self, spread: Spread, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        column = cluster.nodes.label(spread.topology_key)
        counted = self._counted(spread, need, cluster)
        pods = cluster.society.count(spread_question(spread), cluster.residents())
        per_domain = np.bincount(
            column.codes[counted], weights=pods[counted], minlength=len(column.values) + 1
        ).astype(np.int64)
        domains = np.unique(column.codes[counted])
        fewest = int(per_domain[domains].min()) if len(domains) >= spread.min_domains else 0
        own = column.codes[rows]
        skew = per_domain[np.maximum(own, 0)] + spread.counts_self - fewest
        even: Flags = (own != MISSING) & (skew <= spread.max_skew)
        return even

    def _counted(self, spread: Spread, need: Need, cluster: Cluster) -> Rows:
        """Nodes whose pods count: they have the labels of all constraints and meet the inclusion policies."""
        rows: Rows = np.flatnonzero(cluster.nodes.alive)
        for other in need.cls.spread:
            rows = rows[cluster.nodes.label(other.topology_key).codes[rows] != MISSING]
        if spread.honors_affinity:
            rows = rows[matching_rows(need.cls, cluster, rows)]
        if spread.honors_taints:
            rows = rows[Taints().filter(need, cluster, rows)]
        return rows
