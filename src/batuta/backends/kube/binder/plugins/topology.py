"""topology: the members of a group lie together: within one node, rack or zone, as the group wants it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import numpy as np

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.node_scores import NodeScores
from batuta.backends.kube.binder.node_table import MISSING, Codes, Ints, Rows
from batuta.backends.kube.binder.plugin import Need, No
from batuta.backends.kube.binder.plugins.resources import room
from batuta.backends.kube.binder.profile import Level

NAME: Final = "topology"


class Reason(StrEnum):
    """Why a group will not fit together."""

    NO_DOMAIN = "no single"
    UNKNOWN_LEVEL = "the topology has no level"


class Tree:
    """The levels of the topology over the nodes, outermost first. Read again when nodes have changed."""

    def __init__(self, cluster: Cluster, levels: Sequence[Level]) -> None:
        self._cluster = cluster
        self._levels = levels
        self._seen = -1
        self._codes: dict[str, tuple[Codes, list[str]]] = {}

    @property
    def level_names(self) -> list[str]:
        return [level.name for level in self._levels]

    def codes(self, level: str) -> tuple[Codes, list[str]]:
        """A number per node for its domain, and the domains' names; nodes outside of all have `MISSING`."""
        if self._seen != self._cluster.node_log.end:
            self._seen = self._cluster.node_log.end
            self._codes.clear()
        if level not in self._codes:
            self._codes[level] = self._number(level)
        return self._codes[level]

    def _number(self, level: str) -> tuple[Codes, list[str]]:
        """A domain is named by its path, because two zones may each have a rack r1."""
        depth = self.level_names.index(level)
        numbers: dict[tuple[str, ...], int] = {}
        codes: Codes = np.full(self._cluster.nodes.capacity, MISSING, np.int32)
        for row in self._cluster.nodes.row.values():
            labels = self._cluster.nodes.labels_of(row)
            path = [next((labels[key] for key in one.labels if key in labels), "") for one in self._levels[: depth + 1]]
            if path[-1]:
                codes[row] = numbers.setdefault(tuple(path), len(numbers))
        return codes, ["/".join(filter(None, path)) for path in numbers]

    def domains(self, level: str, wanted: Counter[Need], views: Sequence[NodeScores]) -> Iterator[Rows]:
        """The rows of domains that may have room for all: tightest first, so that large ones stay free."""
        codes, labels = self.codes(level)
        spare = np.full(len(labels), np.inf)
        for view in views:
            spare = np.minimum(spare, self._room(level, view) - wanted[view.need])
        order = sorted(np.flatnonzero(spare >= 0), key=lambda number: (spare[number], labels[number]))
        return (np.flatnonzero(codes == number) for number in order)

    def outwards(self, level: str, required: bool) -> list[str]:
        """The levels to try: the one that is wanted and, if it is only preferred, those around it."""
        place = self.level_names.index(level)
        return [level] if required else [level, *reversed(self.level_names[:place])]

    def no_domain(self, level: str, members: int, view: NodeScores) -> No:
        most = int(self._room(level, view).max(initial=0))
        return No(NAME, Reason.NO_DOMAIN, f"{level} has room for all {members} members; the most is {most}")

    def unknown_level(self, level: str) -> No:
        return No(NAME, Reason.UNKNOWN_LEVEL, f"{level}; it has {', '.join(self.level_names)}")

    def _room(self, level: str, view: NodeScores) -> Ints:
        """How many members each domain could take at most."""
        codes, labels = self.codes(level)
        rows: Rows = np.flatnonzero(view.fits() & (codes != MISSING))
        places = room(view.need, self._cluster, rows)
        return np.bincount(codes[rows], weights=places, minlength=len(labels)).astype(np.int64)
