"""The views that are in use, one per need; those not asked for in a long time go."""

from __future__ import annotations

from typing import Final

from batuta.backends.kube import objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.group import Group
from batuta.backends.kube.binder.plugin import Need
from batuta.backends.kube.binder.profile import Profile
from batuta.backends.kube.binder.view import View

_MOST: Final = 512


class Views:
    """Finds the view for a pod."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self._cluster = cluster
        self._profile = profile
        self._views: dict[Need, View] = {}

    def need(self, pod: objects.Pod, group: Group) -> Need:
        """What a pod needs at this moment: foes come and go with the pods that are there."""
        cluster = self._cluster
        cls = cluster.class_of(pod)
        if not cluster.society.apart and not cls.near:
            return Need(cls, (), False, group.load, group.single_numa)
        who = cluster.identity_of(pod)
        foes = tuple(term for term in cluster.society.apart if term.matches(who))
        own = bool(cls.near) and all(term.matches(who) for term in cls.near)
        return Need(cls, foes, own, group.load, group.single_numa)

    def of(self, need: Need) -> View:
        """The view of a need, not refreshed."""
        view = self._views.pop(need, None)
        if view is None:
            view = View(need, self._cluster, self._profile)
            if len(self._views) >= _MOST:
                del self._views[next(iter(self._views))]
        # Last in, so that the first is the one that nobody has asked for the longest.
        self._views[need] = view
        return view
