"""pod_affinity and pod_spread: near some pods, away from others, and evenly over domains.

- pod_affinity: required affinity and anti-affinity of the pod, and the anti-affinity of pods that run.
- pod_spread: no domain gets more than `maxSkew` pods ahead of the one with the fewest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import numpy as np

from batuta.backends.kube.binder.affinity import PodTerm, Spread, SpreadFilter, TermsFilter
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import MISSING, Codes, Flags, Ints, Rows
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope
from batuta.backends.kube.binder.plugins.node_affinity import matching_rows
from batuta.backends.kube.binder.plugins.taints import Taints


class AffinityReason(StrEnum):
    """Why a node will not do."""

    NOT_NEAR = "didn't match pod affinity rules"
    NOT_APART = "didn't match pod anti-affinity rules"
    UNWELCOME = "didn't satisfy existing pods' anti-affinity rules"


class PodAffinity(Plugin):
    """Required terms only, as kube-scheduler's InterPodAffinity means them, symmetry included."""

    name: ClassVar[str] = "pod_affinity"
    scope: ClassVar[Scope] = Scope.CLUSTER

    def concerns(self, need: Need) -> bool:
        return bool(need.cls.near or need.cls.apart or need.foes)

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        return next(iter(self.count_reasons(need, cluster, np.array([row], np.intp))), None)

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        near, apart = self._near(need, cluster, rows), self._apart(need, cluster, rows)
        return near & apart & self._welcome(need, cluster, rows)

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        near, apart = self._near(need, cluster, rows), self._apart(need, cluster, rows)
        refused = {
            AffinityReason.NOT_NEAR: ~near,
            AffinityReason.NOT_APART: near & ~apart,
            AffinityReason.UNWELCOME: near & apart & ~self._welcome(need, cluster, rows),
        }
        return +Counter({No(self.name, reason): int(np.count_nonzero(flags)) for reason, flags in refused.items()})

    def _near(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        """Each term's domain has a pod that meets all terms; the first of a kind may start anywhere."""
        fits = np.ones(len(rows), np.bool_)
        terms = need.cls.near
        if not terms:
            return fits
        found = _count(terms, cluster)
        columns = [cluster.nodes.label(term.topology_key).codes for term in terms]
        domains = [_per_domain(codes, found) for codes in columns]
        first = need.meets_own_terms and not any(per_domain.any() for per_domain in domains)
        for codes, per_domain in zip(columns, domains, strict=True):
            fits &= (codes[rows] != MISSING) if first else _in_domain(codes, rows, per_domain)
        return fits

    def _apart(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        return _outside({term: _count((term,), cluster) for term in need.cls.apart}, cluster, rows)

    def _welcome(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        holders = cluster.affinity_counts.apart
        return _outside({term: holders[term] for term in need.foes if term in holders}, cluster, rows)


def _outside(pods_of: Mapping[PodTerm, Ints], cluster: Cluster, rows: Rows) -> Flags:
    """Which rows share no domain of a term with a pod that it counts."""
    fits = np.ones(len(rows), np.bool_)
    for term, per_node in pods_of.items():
        codes = cluster.nodes.label(term.topology_key).codes
        fits &= ~_in_domain(codes, rows, _per_domain(codes, per_node))
    return fits


def _count(terms: tuple[PodTerm, ...], cluster: Cluster) -> Ints:
    return cluster.affinity_counts.count(TermsFilter(terms), cluster.counted_pods())


def _per_domain(codes: Codes, per_node: Ints) -> Ints:
    """Sums over the nodes with the same value of a label; those without it belong nowhere."""
    known = codes != MISSING
    return np.bincount(codes[known], weights=per_node[known], minlength=1).astype(np.int64)


def _in_domain(codes: Codes, rows: Rows, per_domain: Ints) -> Flags:
    own = codes[rows]
    inside: Flags = (own != MISSING) & (per_domain[np.maximum(own, 0)] > 0)
    return inside


class SpreadReason(StrEnum):
    """Why a node will not do."""

    NO_LABEL = "didn't have the label of a topology spread constraint"
    UNEVEN = "didn't match pod topology spread constraints"


class PodSpread(Plugin):
    """`topologySpreadConstraints` of the kind DoNotSchedule, as kube-scheduler means them."""

    name: ClassVar[str] = "pod_spread"
    scope: ClassVar[Scope] = Scope.CLUSTER

    def concerns(self, need: Need) -> bool:
        return bool(need.cls.spread)

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        return next(iter(self.count_reasons(need, cluster, np.array([row], np.intp))), None)

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        fits = np.ones(len(rows), np.bool_)
        for spread in need.cls.spread:
            fits &= self._even(spread, need, cluster, rows)
        return fits

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        """By the first constraint that a node does not meet."""
        found: Counter[No] = Counter()
        for spread in need.cls.spread:
            bare = cluster.nodes.label(spread.topology_key).codes[rows] == MISSING
            uneven = ~bare & ~self._even(spread, need, cluster, rows)
            found[No(self.name, SpreadReason.NO_LABEL)] += int(np.count_nonzero(bare))
            found[No(self.name, SpreadReason.UNEVEN)] += int(np.count_nonzero(uneven))
            rows = rows[~bare & ~uneven]
        return +found

    def _even(self, spread: Spread, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        column = cluster.nodes.label(spread.topology_key)
        counted = self._counted(spread, need, cluster)
        pods = cluster.affinity_counts.count(SpreadFilter(spread.namespace, spread.selector), cluster.counted_pods())
        codes = column.codes[counted]
        per_domain = np.bincount(codes, weights=pods[counted], minlength=len(column.values) + 1).astype(np.int64)
        domains = np.unique(codes)
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
