"""Placing one group: its members are reserved one after another, and given back if one finds no place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from batuta.backends.kube import names
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.group import Binding, Group, Member, Refusal, Why
from batuta.backends.kube.binder.node_table import Rows
from batuta.backends.kube.binder.plugin import Need, No
from batuta.backends.kube.binder.plugins import gang, topology
from batuta.backends.kube.binder.plugins.gpu_share import GpuShare
from batuta.backends.kube.binder.views import Views

_WISHES: Final = 8
"""How many domains of a level are tried for what is only a wish."""


class Attempt:
    """One group's way through Filter, Score and Reserve."""

    def __init__(
        self, group: Group, cluster: Cluster, views: Views, share: GpuShare, deadline_s: float
    ) -> None:
        self._group = group
        self._cluster = cluster
        self._views = views
        self._share = share
        self._deadline_s = deadline_s
        self._reserved: dict[str, Binding] = {}

    @property
    def bindings(self) -> list[Binding]:
        """In the order of the members."""
        return [self._reserved[member.key] for member in self._group.members]

    def place(self, tree: topology.Tree) -> Refusal | None:
        """Reserves a place for every member, or says why not and holds nothing."""
        refusal = self._place_decided() or self._place_open(tree)
        if refusal is not None:
            self._undo(set(self._reserved))
        return refusal

    def _place_decided(self) -> Refusal | None:
        """Members whose node was decided on elsewhere: each is checked against that one node only."""
        unfit: dict[str, No] = {}
        for member in self._group.members:
            if not member.node:
                continue
            row = self._cluster.nodes.row.get(member.node)
            need = self._views.need(member.pod, self._group)
            no = gang.unknown_node() if row is None else self._views.of(need).check(row, member.gpus)
            if no is not None or row is None:
                unfit.setdefault(member.node, no or gang.unknown_node())
            else:
                self._reserve(member, need, row)
        if not unfit:
            return None
        reasons = tuple(Why(no, count) for no, count in Counter(unfit.values()).most_common())
        return self._refusal(reasons=reasons, by_node=unfit)

    def _place_open(self, tree: topology.Tree) -> Refusal | None:
        """Members that may go anywhere, or anywhere within one domain of the topology."""
        members = [member for member in self._group.members if not member.node]
        within = self._group.within
        if within is None or not members:
            return self._place_among(members, None)
        if within.level not in tree.level_names:
            return self._refusal(reasons=(Why(topology.unknown_level(within.level, tree), 0),))
        required = within.mode == "Required"
        for level in topology.outwards(tree, within.level, required):
            for rows in islice(self._domains(tree, level, members), None if required else _WISHES):
                refusal = self._place_among(members, rows)
                if refusal is None:
                    return None
                self._undo({member.key for member in members})
        if not required:
            return self._place_among(members, None)
        return self._place_nowhere(tree, within.level, members)

    def _place_among(self, members: Sequence[Member], rows: Rows | None) -> Refusal | None:
        for member in members:
            need = self._views.need(member.pod, self._group)
            view = self._views.of(need)
            view.refresh()
            row = view.best(rows)
            if row < 0:
                return self._refusal(
                    pod=member.key,
                    placed=len(self._reserved),
                    reasons=tuple(Why(no, count) for no, count in _by_count(view.reasons())),
                )
            self._reserve(member, need, row)
        return None

    def _domains(self, tree: topology.Tree, level: str, members: Sequence[Member]) -> Iterator[Rows]:
        wanted = Counter(self._views.need(member.pod, self._group) for member in members)
        views = [self._views.of(need) for need in wanted]
        for view in views:
            view.refresh()
        return topology.domains(tree, level, self._cluster, wanted, views)

    def _place_nowhere(self, tree: topology.Tree, level: str, members: Sequence[Member]) -> Refusal:
        view = self._views.of(self._views.need(members[0].pod, self._group))
        view.refresh()
        most = topology.most_room(tree, level, self._cluster, view)
        no = topology.no_domain(level, len(members), most)
        reasons = (Why(no, 0), *(Why(other, count) for other, count in _by_count(view.reasons())))
        return self._refusal(reasons=reasons)

    def _reserve(self, member: Member, need: Need, row: int) -> None:
        gpus = member.gpus or self._pick_gpus(need, row)
        node, load = self._cluster.nodes.name[row], self._group.load
        self._cluster.assume(member.pod, node, gpus, self._deadline_s, load)
        annotations = {names.GPUS: ",".join(map(str, gpus))} if gpus else {}
        if need.cls.share is not None and load is not None:
            annotations[names.EXPECTED_UTILISATION] = f"{load:g}"
        self._reserved[member.key] = Binding(member.pod, node, gpus, annotations, self._group.key)

    def _pick_gpus(self, need: Need, row: int) -> tuple[int, ...]:
        if need.cls.gpus:
            return self._cluster.cards.calmest(row, need.cls.gpus)
        if need.cls.share is not None:
            return (self._share.pick(need, self._cluster, row),)
        return ()

    def _undo(self, keys: set[str]) -> None:
        for key in [key for key in self._reserved if key in keys]:
            self._cluster.forget(key)
            del self._reserved[key]

    def _refusal(
        self,
        pod: str = "",
        placed: int = 0,
        reasons: tuple[Why, ...] = (),
        by_node: dict[str, No] | None = None,
    ) -> Refusal:
        return Refusal(
            group=self._group.key,
            pod=pod,
            nodes=len(self._cluster.nodes),
            placed=placed,
            members=len(self._group.members),
            reasons=reasons,
            by_node=by_node or {},
        )


def _by_count(found: Counter[No]) -> list[tuple[No, int]]:
    return sorted(found.items(), key=lambda item: (-item[1], str(item[0])))
