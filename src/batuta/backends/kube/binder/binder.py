"""One cycle of the binder: which pods go to which nodes, and why the others have to wait."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from batuta.backends.kube.binder.attempt import Attempt
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.group import Binding, Group, Outcome, Refusal, Why
from batuta.backends.kube.binder.plugins import gang
from batuta.backends.kube.binder.plugins.gpu_share import GpuShare
from batuta.backends.kube.binder.plugins.topology import Tree
from batuta.backends.kube.binder.profile import Profile, default_profile
from batuta.backends.kube.binder.views import Views


class Binder:
    """Places groups of pods on the nodes of a cluster. It remembers only what it has worked out."""

    def __init__(self, cluster: Cluster, profile: Profile | None = None) -> None:
        self.cluster = cluster
        self.profile = profile or default_profile()
        self._tree = Tree(cluster, self.profile.levels)
        self._views = Views(cluster, self.profile)
        plugins = [one.plugin for one in self.profile.plugins]
        self._share = next((one for one in plugins if isinstance(one, GpuShare)), GpuShare())

    def schedule(self, groups: Iterable[Group], now_s: float) -> Outcome:
        """Decides on all groups, in the order of the queue.

        What gets a binding counts as taken until its pod is seen on the node, `Cluster.forget` takes it back
        or the time that the profile gives it has passed.
        """
        self.cluster.tick(now_s)
        bindings: list[Binding] = []
        refusals: list[Refusal] = []
        refused: dict[Hashable, Refusal] = {}
        for group in sorted(groups, key=gang.queue_order):
            waits = gang.may_try(group, self.cluster)
            if waits is not None:
                reasons = (Why(waits, 0),)
                refusals.append(Refusal(group.key, members=len(group.members), reasons=reasons))
                continue
            alike = self._alike(group)
            if alike is not None and alike in refused:
                refusals.append(_same(refused[alike], group))
                continue
            attempt = Attempt(group, self.cluster, self._views, self._share, now_s + self.profile.assume_s)
            refusal = attempt.place(self._tree)
            if refusal is None:
                bindings.extend(attempt.bindings)
                continue
            refusals.append(refusal)
            if alike is not None:
                refused[alike] = refusal
        return Outcome(tuple(bindings), tuple(refusals))

    def _alike(self, group: Group) -> Hashable | None:
        """What a group has in common with those that must fail if it does, as room only shrinks in a cycle.

        None where that is not sure: members that differ, decided places, or pods that look at other pods.
        """
        need = self._views.need(group.members[0].pod, group)
        if need.cls.is_social or need.foes:
            return None
        for member in group.members:
            if member.node or self.cluster.class_of(member.pod) is not need.cls:
                return None
        return (need, len(group.members), group.within)


def _same(refusal: Refusal, group: Group) -> Refusal:
    return replace(refusal, group=group.key, pod=group.members[0].key if refusal.pod else "")
