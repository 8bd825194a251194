"""Bind the pods of a group all together or not at all, checked against what the nodes really have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from batuta.backends.kube import objects
from batuta.backends.kube.binder import Binder, Binding, Group, Member, Profile, Refusal
from batuta.backends.kube.binder.cluster import expected_load, pod_key
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Conflict, NotFound, TooManyRequests, Unavailable
from batuta.backends.kube.operator.context import PodGroup, Timing
from batuta.backends.kube.operator.workqueue import WriteQueue, Written
from batuta.core.cluster import NodeName
from batuta.core.job import JobId
from batuta.engine.fence import sentence

BIND = "bind/"


class _Failed(NamedTuple):
    """Why a binding did not work, and the node if it may be because of that."""

    why: str
    node: NodeName = ""


@dataclass(slots=True)
class _InFlightBinding:
    """A pod group whose bindings are in flight."""

    pod_group: PodGroup
    since_s: float
    left: dict[str, Binding]  # by uid of the pod: bindings without an answer yet
    failed: list[_Failed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BindFailure:
    """A pod group that could not be bound, why, and which nodes refused it."""

    pod_group: PodGroup
    why: str
    nodes: tuple[NodeName, ...]
    fault: Exception | None = None  # a fault of the operator's, not of the nodes


class GangBinder:
    """Collects binding requests during a turn, and serves them all at its end."""

    def __init__(
        self,
        binder: Binder,
        writes: WriteQueue,
        timing: Timing,
        expected: Callable[[JobId], float | None] = lambda job: None,
    ) -> None:
        """`expected`: how busy a job will keep a GPU, by trial runs and history; None if unknown."""
        self._binder = binder
        self._cluster = binder.cluster
        self._writes = writes
        self._timing = timing
        self._expected = expected
        self._asked: dict[str, PodGroup] = {}
        self._underway: dict[str, _InFlightBinding] = {}
        self._party_of: dict[str, str] = {}  # by uid of a pod that is being bound
        self._unanswered: set[str] = set()  # bindings whose outcome is unknown, by uid
        self._postponed: dict[NodeName, set[JobId]] = {}  # by node that pods are leaving: the groups that wait for it
        self._postponed_s: dict[str, tuple[PodGroup, float]] = {}
        """By group: since when it waits for pods that are leaving."""
        self._kept: tuple[JobId, tuple[str, ...]] | None = None
        """The job for which free places are reserved until there are enough, and its pods."""
        self.refusals: dict[JobId, Refusal] = {}  # why the groups wait whose pods the binder places alone
        self.given: set[NodeName] = set()
        """Nodes on which the binder alone has bound or released pods, for the node controller."""
        self.bound = 0

    def use(self, profile: Profile, timing: Timing) -> None:
        """Binds by another profile and with other times from now on."""
        self._binder.use(profile)
        self._timing = timing

    def request_binding(self, pod_group: PodGroup) -> None:
        """Notes a request, unless its pods are being bound or wait for the watch to confirm it."""
        if pod_group.key in self._underway:
            return
        self._release(pod_group.job)
        if any(self._cluster.node_of(pod_key(placement.pod)) is not None for placement in pod_group.placements):
            return
        self._asked[pod_group.key] = pod_group

    def serve(self, leaving: Callable[[NodeName], bool], now_s: float) -> list[BindFailure]:
        """Binds all groups that asked. A group that fits only after pods have left waits for that."""
        if not self._asked:
            return []
        asked, self._asked = self._asked, {}
        # Reservations come before other groups, which would fit into them.
        keepers = {key: pod_group for key, pod_group in asked.items() if pod_group.keeps_until_s}
        others = {key: pod_group for key, pod_group in asked.items() if not pod_group.keeps_until_s}
        return [*self._serve(keepers, leaving, now_s), *self._serve(others, leaving, now_s)]

    def _serve(
        self, groups: dict[str, PodGroup], leaving: Callable[[NodeName], bool], now_s: float
    ) -> list[BindFailure]:
        if not groups:
            return []
        outcome = self._binder.schedule([self._group(pod_group) for pod_group in groups.values()], now_s)
        failures: list[BindFailure] = []
        by_party: dict[str, list[Binding]] = {}
        for binding in outcome.bindings:
            by_party.setdefault(binding.group, []).append(binding)
        for key, bindings in by_party.items():
            self.refusals.pop(groups[key].job, None)
            self._postponed_s.pop(key, None)
            self._bind(groups[key], bindings, now_s)
        for key, fault in outcome.faults:
            failures.append(BindFailure(groups[key], sentence(fault), (), fault))
        for refusal in outcome.refusals:
            pod_group = groups[refusal.group]
            if all(placement.place is None for placement in pod_group.placements):
                self.refusals[pod_group.job] = refusal
                self._keep(pod_group, refusal.placed, now_s)
            else:
                nodes = set(refusal.by_node) or {
                    one.place.node for one in pod_group.placements if one.place is not None
                }
                if not self._postpone(pod_group, {node for node in nodes if leaving(node)}, now_s):
                    failures.append(BindFailure(pod_group, refusal.message, tuple(sorted(nodes))))
        return failures

    def _keep(self, pod_group: PodGroup, placed: int, now_s: float) -> None:
        """Reserves the places that a part of a group can have, if it may and no other group does."""
        if not placed or now_s >= pod_group.keeps_until_s:
            return
        if self._kept is not None and any(key in self._cluster.assumed for key in self._kept[1]):
            return
        found = self._binder.schedule(
            [self._group(replace(pod_group, placements=pod_group.placements[:placed]))], now_s
        ).bindings
        self._kept = pod_group.job, tuple(one.key for one in found)
        self.given.update(one.node for one in found)

    def _release(self, job: JobId) -> None:
        """Ends the reservation of a job: it asks for all its places, or is over."""
        if self._kept is None or self._kept[0] != job:
            return
        for key in self._kept[1]:
            node = self._cluster.node_of(key)
            self._cluster.forget(key)
            self.given.update([node] if node is not None else ())
        self._kept = None

    def _postpone(self, pod_group: PodGroup, occupied: set[NodeName], now_s: float) -> bool:
        """Lets a group wait for pods that are leaving its place, unless it has waited too long."""
        if not occupied:
            self._postponed_s.pop(pod_group.key, None)
            return False
        _, since_s = self._postponed_s.setdefault(pod_group.key, (pod_group, now_s))
        if now_s >= since_s + self._timing.gang_timeout_s:
            del self._postponed_s[pod_group.key]
            return False
        for node in occupied:
            self._postponed.setdefault(node, set()).add(pod_group.job)
        return True

    def next_s(self) -> float:
        first = next(iter(self._postponed_s.values()), None)
        return math.inf if first is None else first[1] + self._timing.gang_timeout_s

    def forget(self, job: JobId) -> None:
        self.refusals.pop(job, None)
        self._release(job)
        for key in [key for key, (pod_group, _) in self._postponed_s.items() if pod_group.job == job]:
            del self._postponed_s[key]

    def left(self, node: NodeName) -> set[JobId]:
        """A pod has left a node: the jobs that wait for it, which shall ask again."""
        return self._postponed.pop(node, set())

    def _bind(self, pod_group: PodGroup, bindings: Iterable[Binding], now_s: float) -> None:
        underway = self._underway[pod_group.key] = _InFlightBinding(pod_group, now_s, {})
        for binding in bindings:
            if any(placement.place is None for placement in pod_group.placements):
                self.given.add(binding.node)
            uid = binding.pod.metadata.uid
            underway.left[uid] = binding
            self._party_of[uid] = pod_group.key
            self._ask(binding, now_s)

    def _ask(self, binding: Binding, now_s: float) -> None:
        self._writes.ask(BIND + binding.pod.metadata.uid, partial(_bind_pod, binding), now_s)

    def heard(self, answer: Written, now_s: float) -> BindFailure | None:
        """Takes in the answer to a binding; a group of which one pod failed is refused as a whole."""
        uid = answer.key.removeprefix(BIND)
        if (underway := self._open(uid)) is None:
            return None
        error, in_time = answer.error, now_s < underway.since_s + self._timing.gang_timeout_s
        if error is None:
            return self._answered(uid, underway)
        if isinstance(error, Unavailable | TooManyRequests) and in_time:
            self._unanswered.add(uid)  # not done, or unknown: it is requested again
            return None
        return self._give_up(uid, underway, _failed(error, underway.left[uid].node))

    def saw(self, pod: objects.Pod) -> BindFailure | None:
        """The pod is on a node, so its binding was done, whatever became of the answer; or another was."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        underway = self._open(uid)
        if underway is None or not node:
            return None
        if node != underway.left[uid].node:
            return self._give_up(uid, underway, _Failed(f"another scheduler has bound {pod.metadata.name}"))
        return self._answered(uid, underway)

    def lost(self, pod: objects.Pod) -> BindFailure | None:
        uid = pod.metadata.uid
        if (underway := self._open(uid)) is None:
            return None
        return self._give_up(uid, underway, _Failed(f"pod {pod.metadata.name} is gone"))

    def _open(self, uid: str) -> _InFlightBinding | None:
        """The group of a pod whose binding has no answer yet."""
        underway = self._underway.get(self._party_of.get(uid, ""))
        return underway if underway is not None and uid in underway.left else None

    def _group(self, pod_group: PodGroup) -> Group:
        members = (
            Member(placement.pod)
            if placement.place is None
            else Member(placement.pod, placement.place.node, placement.place.gpus)
            for placement in pod_group.placements
        )
        # An annotation on the pods, which are all alike, takes precedence.
        load = next((expected_load(placement.pod.metadata.annotations) for placement in pod_group.placements), None)
        load = self._expected(pod_group.job) if load is None else load
        return Group(pod_group.key, tuple(members), pod_group.priority, pod_group.since_s, load=load)

    def retry(self, now_s: float) -> list[BindFailure]:
        """Asks again for bindings without an answer; gives up those that took too long."""
        for uid in self._unanswered:
            underway = self._underway[self._party_of[uid]]
            self._ask(underway.left[uid], now_s)
        late_s, failures = now_s - self._timing.gang_timeout_s, list[BindFailure]()
        # Both are in the order in which they began.
        while self._postponed_s and next(iter(self._postponed_s.values()))[1] <= late_s:
            pod_group, _ = self._postponed_s.pop(next(iter(self._postponed_s)))
            nodes = {placement.place.node for placement in pod_group.placements if placement.place is not None}
            failures.append(BindFailure(pod_group, "pods do not leave its place", tuple(sorted(nodes))))
        while self._underway and (first := next(iter(self._underway.values()))).since_s <= late_s:
            for uid in list(first.left):
                found = self._give_up(uid, first, _Failed("the API server did not answer in time"))
                if found is not None:
                    failures.append(found)
        return failures

    def _answered(self, uid: str, underway: _InFlightBinding) -> BindFailure | None:
        self.bound += 1
        return self._settle(uid, underway)

    def _give_up(self, uid: str, underway: _InFlightBinding, failed: _Failed) -> BindFailure | None:
        binding = underway.left[uid]
        self._cluster.forget(pod_key(binding.pod))
        # If its job has ended meanwhile, the place was counted as used by others, and no pod will leave it.
        self.given.add(binding.node)
        self._writes.forget(BIND + uid)
        underway.failed.append(failed)
        return self._settle(uid, underway)

    def _settle(self, uid: str, underway: _InFlightBinding) -> BindFailure | None:
        """One binding less is open. After the last, a group of which one failed is refused."""
        del underway.left[uid], self._party_of[uid]
        self._unanswered.discard(uid)
        if underway.left:
            return None
        del self._underway[underway.pod_group.key]
        if not underway.failed:
            return None
        nodes = {one.node for one in underway.failed if one.node}
        why = "; ".join(sorted({one.why for one in underway.failed}))
        return BindFailure(underway.pod_group, why, tuple(sorted(nodes)))


def _failed(error: ApiError, node: NodeName) -> _Failed:
    """A conflict on a pod is no fault of its node; any other refusal may be about the node."""
    if isinstance(error, NotFound):
        return _Failed("a pod was deleted meanwhile")
    if isinstance(error, Conflict):
        return _Failed(f"another client was faster: {error.message}")
    if isinstance(error, Unavailable | TooManyRequests):
        return _Failed(error.message)
    return _Failed(error.message, node)


async def _bind_pod(binding: Binding, api: Api) -> None:
    meta = binding.pod.metadata
    await api.bind(meta.namespace, meta.name, meta.uid, binding.node, dict(binding.annotations))
