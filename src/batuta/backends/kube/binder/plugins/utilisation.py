"""utilisation: among nodes that will do, prefer good GPUs that are really idle and will stay so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from batuta.backends.kube import names
from batuta.backends.kube.binder.cards import UNKNOWN
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_table import Floats, Rows
from batuta.backends.kube.binder.plugin import Need, Plugin, Scope

_LARGE_MEMORY_MIB: Final = 81_920
_MANY_GPUS: Final = 8


@dataclass(frozen=True, slots=True)
class Utilisation(Plugin):
    """Three scores in one, each with its weight: what the GPUs are, what they do, and what they will do."""

    name: ClassVar[str] = "utilisation"
    scope: ClassVar[Scope] = Scope.USE
    basic: float = 0.2
    """Model, memory and number of GPUs."""
    measured: float = 0.5
    """How busy the GPUs are that the pod could get, by the reports of the node's agent."""
    allocated: float = 0.3
    """How busy all of the node's GPUs will be, with what history expects of this job and of the others."""
    models: Mapping[str, float] = field(default_factory=dict, hash=False)
    """How good a model of GPU is, from 0 to 1; one that is not named counts as a half."""

    def scores(self, need: Need) -> bool:
        return need.cls.gpus > 0 or need.cls.share is not None

    def base_score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        cards = cluster.cards
        memory = np.minimum(cards.memory_mib[rows, 0] / _LARGE_MEMORY_MIB, 1.0)
        count = np.minimum(cards.count[rows] / _MANY_GPUS, 1.0)
        share: Floats = self._shares[0] * (self._worth(cluster, rows) + memory + count) / 3.0
        return share

    def score(self, need: Need, cluster: Cluster, rows: Rows) -> Floats:
        cards = cluster.cards
        _, measured, allocated = self._shares
        busy = (cards.mean_busy if need.cls.share is None else cards.least_busy)[rows]
        own = (UNKNOWN if need.load is None else need.load) * max(need.cls.gpus, 1)
        expected = np.minimum(cards.expected[rows] + own / np.maximum(cards.count[rows], 1), 1.0)
        score: Floats = measured * (1.0 - busy) + allocated * (1.0 - expected)
        return score

    @property
    def _shares(self) -> tuple[float, float, float]:
        total = (self.basic + self.measured + self.allocated) or 1.0
        return self.basic / total, self.measured / total, self.allocated / total

    def _worth(self, cluster: Cluster, rows: Rows) -> Floats:
        """How good the model is that a node's labels name."""
        worth = np.full(len(rows), UNKNOWN)
        for label in reversed(names.GPU_PRODUCT_LABELS) if self.models else ():
            column = cluster.nodes.label(label)
            known = np.array([self.models.get(value, UNKNOWN) for value in column.values] + [np.nan])
            found = known[column.codes[rows]]
            worth = np.where(np.isnan(found), worth, found)
        return worth
