"""pod affinity: near some pods, away from others, and not where others want to be left alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import MISSING, Codes, Flags, Ints, Rows
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope
from batuta.backends.kube.binder.pod_terms import PodTerm
from batuta.backends.kube.binder.social import Everyone


class Reason(StrEnum):
    """Why a node will not do."""

    NOT_NEAR = "didn't match pod affinity rules"
    NOT_APART = "didn't match pod anti-affinity rules"
    UNWELCOME = "didn't satisfy existing pods' anti-affinity rules"


@dataclass(frozen=True, slots=True)
class PodAffinity(Plugin):
    """Required terms only, as kube-scheduler's InterPodAffinity means them, symmetry included."""

    name: ClassVar[str] = "pod_affinity"
    scope: ClassVar[Scope] = Scope.CLUSTER

    def concerns(self, need: Need) -> bool:
        return bool(need.cls.near or need.cls.apart or need.foes)

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        rows: Rows = np.array([row], np.intp)
        if not self._near(need, cluster, rows)[0]:
            return No(self.name, Reason.NOT_NEAR)
        if not self._apart(need, cluster, rows)[0]:
            return No(self.name, Reason.NOT_APART)
        if not self._welcome(need, cluster, rows)[0]:
            return No(self.name, Reason.UNWELCOME)
        return None

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        near, apart = self._near(need, cluster, rows), self._apart(need, cluster, rows)
        return near & apart & self._welcome(need, cluster, rows)

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        near, apart = self._near(need, cluster, rows), self._apart(need, cluster, rows)
        strange, close = np.count_nonzero(~near), np.count_nonzero(near & ~apart)
        return +Counter(
            {
                No(self.name, Reason.NOT_NEAR): int(strange),
                No(self.name, Reason.NOT_APART): int(close),
                No(self.name, Reason.UNWELCOME): len(rows) - int(strange) - int(close),
            }
        )

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
        fits = np.ones(len(rows), np.bool_)
        for term in need.cls.apart:
            codes = cluster.nodes.label(term.topology_key).codes
            fits &= ~_in_domain(codes, rows, _per_domain(codes, _count((term,), cluster)))
        return fits

    def _welcome(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        fits = np.ones(len(rows), np.bool_)
        for term in need.foes:
            holders = cluster.society.apart.get(term)
            if holders is not None:
                codes = cluster.nodes.label(term.topology_key).codes
                fits &= ~_in_domain(codes, rows, _per_domain(codes, holders))
        return fits


def _count(terms: tuple[PodTerm, ...], cluster: Cluster) -> Ints:
    return cluster.society.count(Everyone(terms), cluster.residents())


def _per_domain(codes: Codes, per_node: Ints) -> Ints:
    """Sums over the nodes with the same value of a label; those without it belong nowhere."""
    known = codes != MISSING
    return np.bincount(codes[known], weights=per_node[known], minlength=1).astype(np.int64)


def _in_domain(codes: Codes, rows: Rows, per_domain: Ints) -> Flags:
    """Which rows lie in a domain with a count above 0."""
    own = codes[rows]
    inside: Flags = (own != MISSING) & (per_domain[np.maximum(own, 0)] > 0)
    return inside
