"""Tells the World how busy GPUs are, and what those have of a card that share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from batuta.backends.kube.client.kinds import NODE
from batuta.backends.kube.client.known import Did
from batuta.backends.kube.operator.inbox import Changed, Written
from batuta.backends.kube.operator.node_usage import UsageTeller, pod_use
from batuta.backends.kube.operator.observed import Observed
from batuta.core import event as ev
from batuta.core.cluster import NodeName
from batuta.core.job import JobId
from batuta.core.world import World

Sharers: TypeAlias = Callable[[NodeName], dict[JobId, float]]


class UsageDesk:
    """Takes in what agents write. For the engine's thread."""

    def __init__(
        self,
        observed: Observed,
        is_told: Callable[[NodeName], bool],
        sharers: Sharers,
        say: Callable[[ev.Event], None],
    ) -> None:
        """`is_told`: whether the World knows a node. `sharers`: what jobs there have of cards they share."""
        self._observed = observed
        self._is_told = is_told
        self._sharers = sharers
        self._say = say
        self._teller = UsageTeller()
        self._changed: dict[NodeName, None] = {}

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind is NODE:
            for change in changed.changes:
                name = change.object.metadata.name
                self._changed[name] = None
                if change.did is Did.DELETED:
                    self._teller.forget(name)

    def heard(self, written: Written, now_s: float) -> None:
        """It writes nothing."""

    def drive(self, now_s: float) -> None:
        """After nodes and jobs had their turn: the World hears of a node before it hears how busy it is."""
        changed, self._changed = self._changed, {}
        for name in changed:
            node = self._observed.nodes.get(name)
            if node is None or not self._is_told(name):
                self._teller.forget(name)
                continue
            for event in self._teller.tell(name, node.metadata.annotations, now_s, self._sharers(name)):
                self._say(event)
        for event in self._teller.tell_silent(now_s):
            self._say(event)

    def next_s(self) -> float:
        return self._teller.silent_s()


def sharers_on(
    world: World,
    observed: Observed,
    pods_on: Callable[[NodeName], Iterable[str]],
    job_of: Callable[[str], JobId | None],
    node: NodeName,
) -> dict[JobId, float]:
    """What jobs that share a card of a node have of it, where its agent knows. `job_of`: of a pod."""
    found: dict[JobId, float] = {}
    for key in pods_on(node):
        pod, job = observed.pods.get(key), job_of(key)
        if pod is None or job is None or job not in world.jobs:
            continue
        used = pod_use(pod.metadata.annotations)
        if used is not None and world.jobs.jobs[world.jobs.row(job)].share is not None:
            found[job] = max(used, found.get(job, 0.0))
    return found
