"""node affinity: nodeSelector and required terms choose among nodes; preferred terms are a score."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import ClassVar, Final

import numpy as np

from batuta.backends.kube.binder.affinity import Requirement
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import Flags, Floats, NodeTable, Rows
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope
from batuta.backends.kube.binder.pod_class import NodeTerm, PodClass

_NAME_FIELD: Final = "metadata.name"
_FIELD_OPERATORS: Final = frozenset({"In", "NotIn"})


class Reason(StrEnum):
    """Why a node will not do."""

    NO_MATCH = "didn't match the pod's node affinity/selector"


class NodeAffinity(Plugin):
    """Labels (and the name) of nodes against what the pod wants. Each label is compared as a column."""

    name: ClassVar[str] = "node_affinity"
    scope: ClassVar[Scope] = Scope.NODE

    def concerns(self, need: Need) -> bool:
        return bool(need.cls.selector) or need.cls.required is not None

    def check(self, need: Need, cluster: Cluster, row: int, gpus: tuple[int, ...] = ()) -> No | None:
        fits = self.filter(need, cluster, np.array([row], np.intp))[0]
        return None if fits else No(self.name, Reason.NO_MATCH)

    def filter(self, need: Need, cluster: Cluster, rows: Rows) -> Flags:
        fits = _all(need.cls.selector, cluster.nodes, rows)
        if need.cls.required is not None:
            wanted = np.zeros(len(rows), np.bool_)
            for term in need.cls.required:
                wanted |= _term(term, cluster.nodes, rows)
            fits &= wanted
        return fits

    def count_reasons(self, need: Need, cluster: Cluster, rows: Rows) -> Counter[No]:
        return Counter({No(self.name, Reason.NO_MATCH): len(rows)})

    def scores(self, need: Need) -> bool:
        return bool(need.cls.preferred)

    def score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        """The weights of the terms that match, of all weights."""
        total = np.zeros(len(rows))
        for weight, term in need.cls.preferred:
            total += weight * _term(term, cluster.nodes, rows)
        return total / sum(weight for weight, _ in need.cls.preferred)


def matching_rows(cls: PodClass, cluster: Cluster, rows: Rows) -> Flags:
    return NodeAffinity().filter(Need(cls), cluster, rows)


def _is_field(one: Requirement) -> bool:
    """A field selector knows the name only, and compares it with one value."""
    return one.key == _NAME_FIELD and one.operator in _FIELD_OPERATORS and len(one.values) == 1


def _term(term: NodeTerm, table: NodeTable, rows: Rows) -> Flags:
    fits = _all(term.labels, table, rows)
    for one in term.fields:
        if not _is_field(one):
            return np.zeros(len(rows), np.bool_)
        wanted = table.row.get(one.values[0], -1)
        fits &= (rows == wanted) if one.operator == "In" else (rows != wanted)
    return fits


def _all(conditions: tuple[Requirement, ...], table: NodeTable, rows: Rows) -> Flags:
    fits = np.ones(len(rows), np.bool_)
    for one in conditions:
        column = table.label(one.key)
        # Each value is judged once; the last place is for nodes without the label, whose number is -1.
        verdicts = np.fromiter(
            (one.matches_value(value) for value in (*column.values, None)), np.bool_, len(column.values) + 1
        )
        fits &= verdicts[column.codes[rows]]
    return fits
