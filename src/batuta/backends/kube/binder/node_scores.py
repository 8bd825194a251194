"""Fit and score of all nodes for one need: computed once, then updated where nodes have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

import numpy as np

from batuta.backends.kube import objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.group import Group
from batuta.backends.kube.binder.node_table import Flags, Floats, Rows
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope
from batuta.backends.kube.binder.profile import Profile

UNFIT: Final = -np.inf
_MOST: Final = 512


class NodeScores:
    """Fit and score of every node for one need. `refresh` before reading."""

    def __init__(self, need: Need, cluster: Cluster, profile: Profile) -> None:
        self.need = need
        self._cluster = cluster
        active = [one.plugin for one in profile.plugins if one.plugin.concerns(need)]
        self._filters: dict[Scope, list[Plugin]] = {
            scope: [one for one in active if one.scope is scope] for scope in Scope
        }
        scoring = [one for one in profile.plugins if one.weight and one.plugin.scores(need)]
        self._scorers: dict[Scope, list[tuple[Plugin, float]]] = {
            scope: [(one.plugin, one.weight) for one in scoring if one.plugin.scope is scope] for scope in Scope
        }
        filters, scorers = self._filters[Scope.USE], self._scorers[Scope.USE]
        self._judges = [one for one in scorers if one[0] in filters]
        self._only_scorers = [one for one in scorers if one[0] not in filters]
        self._only_filters = [one for one in filters if one not in [plugin for plugin, _ in scorers]]
        self._epoch = self._node_seen = self._use_seen = -1

    def refresh(self) -> None:
        cluster = self._cluster
        node_rows = cluster.node_log.since(self._node_seen) if self._epoch == cluster.epoch else None
        use_rows = cluster.use_log.since(self._use_seen) if node_rows is not None else None
        self._node_seen, self._use_seen = cluster.node_log.end, cluster.use_log.end
        if node_rows is None or use_rows is None:
            self._start()
            every = np.flatnonzero(cluster.nodes.alive)
            self._judge_nodes(every)
            self._judge_use(every)
        elif node_rows:
            self._judge_nodes(self._living(node_rows))
            self._judge_use(self._living(dict.fromkeys([*node_rows, *use_rows])))
        elif use_rows:
            self._judge_use(np.array(use_rows, np.intp))
        if self._filters[Scope.CLUSTER] or self._scorers[Scope.CLUSTER]:
            self._judge_affinity()

    def best(self, rows: Rows | None = None) -> int:
        """The best row, among `rows` if given; -1 where none will do. Of equals, the first."""
        ranked = self.ranked if rows is None else self.ranked[rows]
        if not len(ranked):
            return -1
        row = int(ranked.argmax() if rows is None else rows[ranked.argmax()])
        return row if self.ranked[row] > UNFIT else -1

    def fits(self) -> Flags:
        return self.ranked > UNFIT

    def check(self, row: int, gpus: tuple[int, ...]) -> No | None:
        """Why one node will not do. Needs no refresh, and costs nothing for the other nodes."""
        for plugins in self._filters.values():
            for plugin in plugins:
                no = plugin.check(self.need, self._cluster, row, gpus)
                if no is not None:
                    return no
        return None

    def reasons(self) -> Counter[No]:
        """Why the nodes that will not do will not; each by the first plugin that refuses it."""
        cluster = self._cluster
        rows: Rows = np.flatnonzero(cluster.nodes.alive)
        found: Counter[No] = Counter()
        for scope in Scope:
            for plugin in self._filters[scope]:
                good = plugin.filter(self.need, cluster, rows)
                if not good.all():
                    found.update(plugin.count_reasons(self.need, cluster, rows[~good]))
                    rows = rows[good]
        return found

    def _start(self) -> None:
        capacity = self._cluster.nodes.capacity
        self._epoch = self._cluster.epoch
        self._static: Flags = np.zeros(capacity, np.bool_)
        self._static_score: Floats = np.zeros(capacity)
        self._local: Floats = np.full(capacity, UNFIT)
        self.ranked: Floats = self._local
        self._affinity_seen = -1

    def _living(self, changed: Collection[int]) -> Rows:
        """The rows that still are nodes; the others will not do, and no plugin is asked about them."""
        rows: Rows = np.fromiter(changed, np.intp, len(changed))
        living = self._cluster.nodes.alive[rows]
        self._static[rows[~living]] = False
        self._local[rows[~living]] = UNFIT
        return rows[living]

    def _judge_nodes(self, rows: Rows) -> None:
        fits = np.ones(len(rows), np.bool_)
        for plugin in self._filters[Scope.NODE]:
            fits = fits & plugin.filter(self.need, self._cluster, rows)
        score = np.zeros(len(rows))
        for scope, scorers in self._scorers.items():
            for plugin, weight in scorers:
                score += weight * plugin.base_score(self.need, self._cluster, rows)
                if scope is Scope.NODE:
                    score += weight * plugin.score(self.need, self._cluster, rows)
        self._static[rows] = fits
        self._static_score[rows] = score
        self._affinity_seen = -1

    def _judge_use(self, rows: Rows) -> None:
        fits = self._static[rows]
        score = self._static_score[rows]
        for plugin, weight in self._judges:
            good, more = plugin.judge(self.need, self._cluster, rows)
            fits &= good
            score += weight * more
        for plugin in self._only_filters:
            fits &= plugin.filter(self.need, self._cluster, rows)
        for plugin, weight in self._only_scorers:
            score += weight * plugin.score(self.need, self._cluster, rows)
        self._local[rows] = np.where(fits, score, UNFIT)
        self._affinity_seen = -1

    def _judge_affinity(self) -> None:
        """Pods elsewhere can change the verdict on any node, so these plugins judge all of them each time."""
        if self._affinity_seen == self._cluster.affinity_counts.version:
            return
        rows: Rows = np.flatnonzero(self._local > UNFIT)
        fits = np.ones(len(rows), np.bool_)
        for plugin in self._filters[Scope.CLUSTER]:
            fits &= plugin.filter(self.need, self._cluster, rows)
        score = self._local[rows]
        for plugin, weight in self._scorers[Scope.CLUSTER]:
            score = score + weight * plugin.score(self.need, self._cluster, rows)
        self.ranked = np.full(len(self._local), UNFIT)
        self.ranked[rows] = np.where(fits, score, UNFIT)
        self._affinity_seen = self._cluster.affinity_counts.version


class NodeScoresCache:
    """Finds the view for a pod, and drops the least recently used one."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self._cluster = cluster
        self._profile = profile
        self._views: dict[Need, NodeScores] = {}

    def need(self, pod: objects.Pod, group: Group) -> Need:
        """What a pod needs at this moment: foes come and go with the pods that are there."""
        cluster = self._cluster
        cls = cluster.class_of(pod)
        if not cluster.affinity_counts.apart and not cls.near:
            return Need(cls, (), False, group.load, group.single_numa)
        who = cluster.identity_of(pod)
        foes = tuple(term for term in cluster.affinity_counts.apart if term.matches(who))
        own = bool(cls.near) and all(term.matches(who) for term in cls.near)
        return Need(cls, foes, own, group.load, group.single_numa)

    def fresh(self, need: Need) -> NodeScores:
        view = self.of(need)
        view.refresh()
        return view

    def of(self, need: Need) -> NodeScores:
        view = self._views.pop(need, None)
        if view is None:
            view = NodeScores(need, self._cluster, self._profile)
            if len(self._views) >= _MOST:
                del self._views[next(iter(self._views))]
        # Last in, so that the first is the least recently used one.
        self._views[need] = view
        return view
