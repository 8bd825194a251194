"""One cycle of the binder: which pods go to which nodes, and why the others have to wait.

The members of a group are reserved one after another; all are released if one of them fits nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.group import (
    UNKNOWN_NODE,
    Binding,
    Group,
    Member,
    Outcome,
    Refusal,
    Why,
    may_try,
    queue_order,
)
from batuta.backends.kube.binder.node_scores import NodeScores, NodeScoresCache
from batuta.backends.kube.binder.node_table import Rows
from batuta.backends.kube.binder.plugin import Need, No
from batuta.backends.kube.binder.plugins.gpus import GpuShare
from batuta.backends.kube.binder.plugins.topology import Tree
from batuta.backends.kube.binder.profile import Profile, default_profile

_CANDIDATES: Final = 8  # how many domains of a level are tried for what is only a wish


@dataclass(slots=True)
class PlacementAttempt:
    """One group's way through Filter, Score and Reserve."""

    _group: Group
    _cluster: Cluster
    _views: NodeScoresCache
    _tree: Tree
    _share: GpuShare
    _deadline_s: float
    _reserved: dict[str, Binding] = field(default_factory=dict)

    @property
    def bindings(self) -> list[Binding]:
        return [self._reserved[member.key] for member in self._group.members]

    def place(self) -> Refusal | None:
        """Reserves a place for every member, or says why not and holds nothing."""
        try:
            refusal = self._place_decided() or self._place_open()
        except Exception:
            self._undo(set(self._reserved))
            raise
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
            no = UNKNOWN_NODE if row is None else self._views.of(need).check(row, member.gpus)
            if no is not None or row is None:
                unfit.setdefault(member.node, no or UNKNOWN_NODE)
            else:
                self._reserve(member, need, row)
        if not unfit:
            return None
        reasons = tuple(Why(no, count) for no, count in Counter(unfit.values()).most_common())
        return self._refusal(reasons, by_node=unfit)

    def _place_open(self) -> Refusal | None:
        """Members that may go anywhere, or anywhere within one domain of the topology."""
        members = [member for member in self._group.members if not member.node]
        within, tree = self._group.within, self._tree
        if within is None or not members:
            return self._place_among(members, None)
        if within.level not in tree.level_names:
            return self._refusal((Why(tree.unknown_level(within.level), 0),))
        required = within.mode == "Required"
        for level in tree.outwards(within.level, required):
            wanted = Counter(self._views.need(member.pod, self._group) for member in members)
            views = [self._views.fresh(need) for need in wanted]
            for rows in islice(tree.domains(level, wanted, views), None if required else _CANDIDATES):
                if self._place_among(members, rows) is None:
                    return None
                self._undo({member.key for member in members})
        if not required:
            return self._place_among(members, None)
        view = self._views.fresh(self._views.need(members[0].pod, self._group))
        return self._refusal((Why(tree.no_domain(within.level, len(members), view), 0), *_reasons(view)))

    def _place_among(self, members: Sequence[Member], rows: Rows | None) -> Refusal | None:
        for member in members:
            need = self._views.need(member.pod, self._group)
            view = self._views.fresh(need)
            row = view.best(rows)
            if row < 0:
                return self._refusal(_reasons(view), pod=member.key, placed=len(self._reserved))
            self._reserve(member, need, row)
        return None

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
            return self._cluster.gpu_table.calmest(row, need.cls.gpus)
        if need.cls.share is not None:
            return (self._share.pick(need, self._cluster, row),)
        return ()

    def _undo(self, keys: set[str]) -> None:
        for key in [key for key in self._reserved if key in keys]:
            self._cluster.forget(key)
            del self._reserved[key]

    def _refusal(self, reasons: tuple[Why, ...], **details: Any) -> Refusal:
        nodes, members = len(self._cluster.nodes), len(self._group.members)
        return Refusal(self._group.key, nodes=nodes, members=members, reasons=reasons, **details)


def _reasons(view: NodeScores) -> tuple[Why, ...]:
    """Why the nodes will not do, the most frequent reason first."""
    return tuple(sorted((Why(*item) for item in view.reasons().items()), key=lambda why: (-why.nodes, str(why.no))))


class Binder:
    """Places groups of pods on the nodes of a cluster. It remembers only what it has worked out."""

    def __init__(self, cluster: Cluster, profile: Profile | None = None) -> None:
        self.cluster = cluster
        self.use(profile or default_profile())

    def use(self, profile: Profile) -> None:
        """Judges by another profile from now on. What was placed stays where it is."""
        self.profile = profile
        self._tree = Tree(self.cluster, profile.levels)
        self._views = NodeScoresCache(self.cluster, profile)
        plugins = [one.plugin for one in profile.plugins]
        self._share = next((one for one in plugins if isinstance(one, GpuShare)), GpuShare())

    def schedule(self, groups: Iterable[Group], now_s: float) -> Outcome:
        """Decides on all groups, in the order of the queue.

        What gets a binding counts as taken until its pod is seen on the node, `Cluster.forget` takes it back
        or the time that the profile gives it has passed.
        """
        self.cluster.tick(now_s)
        bindings: list[Binding] = []
        refusals: list[Refusal] = []
        faults: list[tuple[str, Exception]] = []
        refused: dict[Hashable, Refusal] = {}
        deadline_s = now_s + self.profile.assume_s
        for group in sorted(groups, key=queue_order):
            try:
                found = self._schedule(group, refused, deadline_s)
            except Exception as error:  # by what this group asks for: no other is held up by it
                faults.append((group.key, error))
                continue
            if isinstance(found, Refusal):
                refusals.append(found)
            else:
                bindings.extend(found)
        return Outcome(tuple(bindings), tuple(refusals), tuple(faults))

    def _schedule(
        self, group: Group, refused: dict[Hashable, Refusal], deadline_s: float
    ) -> Sequence[Binding] | Refusal:
        """Decides on one group. `refused`: what groups before it were refused, by what they have in common."""
        waits = may_try(group, self.cluster)
        if waits is not None:
            return Refusal(group.key, members=len(group.members), reasons=(Why(waits, 0),))
        alike = self._alike(group)
        if alike is not None and alike in refused:
            known = refused[alike]
            return replace(known, group=group.key, pod=group.members[0].key if known.pod else "")
        attempt = PlacementAttempt(group, self.cluster, self._views, self._tree, self._share, deadline_s)
        refusal = attempt.place()
        if refusal is None:
            return attempt.bindings
        if alike is not None:
            refused[alike] = refusal
        return refusal

    def _alike(self, group: Group) -> Hashable | None:
        """What a group has in common with those that must fail if it does, as room only shrinks in a cycle.

        None where that is not sure: members that differ, decided places, or pods that look at other pods.
        """
        need = self._views.need(group.members[0].pod, group)
        if need.cls.has_affinity or need.foes:
            return None
        for member in group.members:
            if member.node or self.cluster.class_of(member.pod) is not need.cls:
                return None
        return (need, len(group.members), group.within)
