"""Seats for pods: all of a party or none, checked against what the nodes really have, then bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from batuta.backends.kube import objects
from batuta.backends.kube.binder import Binder, Binding, Group, Member, Refusal
from batuta.backends.kube.binder.tenant import expected_load, pod_key
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Conflict, NotFound, TooManyRequests, Unavailable
from batuta.backends.kube.operator.inbox import Written
from batuta.backends.kube.operator.run import Party, Timing
from batuta.backends.kube.operator.writes import Writes
from batuta.core.cluster import NodeName
from batuta.core.job import JobId

BIND = "bind/"


@dataclass(slots=True)
class _Underway:
    """A party whose bindings are on their way."""

    party: Party
    since_s: float
    left: dict[str, Binding]
    """By uid of the pod: bindings that nobody has answered yet."""
    failed: list[_Failed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a binding did not work, and the node if it may be because of that."""

    why: str
    node: NodeName = ""


@dataclass(frozen=True, slots=True)
class Turned:
    """A party that did not get its seats, why, and which nodes would not have it."""

    party: Party
    why: str
    nodes: tuple[NodeName, ...]


class Usher:
    """Takes requests for seats during a turn, and serves them all at its end."""

    def __init__(
        self,
        binder: Binder,
        writes: Writes,
        timing: Timing,
        expected: Callable[[JobId], float | None] = lambda job: None,
    ) -> None:
        """`expected`: how busy a job will keep a GPU, by trial runs and history; None where nobody knows."""
        self._binder = binder
        self._cluster = binder.cluster
        self._writes = writes
        self._timing = timing
        self._expected = expected
        self._asked: dict[str, Party] = {}
        self._underway: dict[str, _Underway] = {}
        self._party_of: dict[str, str] = {}
        """By uid of a pod that is being bound."""
        self._unanswered: set[str] = set()
        """Bindings of which nobody knows whether they were done, by uid."""
        self._postponed: dict[NodeName, set[JobId]] = {}
        """By node that somebody is leaving: who waits for it."""
        self._postponed_s: dict[str, tuple[Party, float]] = {}
        """By party: since when it waits for somebody who is leaving."""
        self._kept: tuple[JobId, tuple[str, ...]] | None = None
        """The job whose pods keep the seats that there are until there are more, and these pods."""
        self.refusals: dict[JobId, Refusal] = {}
        """Why the parties wait whose pods the binder places alone."""
        self.given: set[NodeName] = set()
        """Nodes on which the binder alone has given or taken seats; for whoever keeps books of it."""
        self.bound = 0

    def seat(self, party: Party) -> None:
        """Notes a request, unless its pods are being bound, or were and nobody has shown them bound yet."""
        if party.key in self._underway:
            return
        self._release(party.job)
        if any(self._cluster.node_of(pod_key(seat.pod)) is not None for seat in party.seats):
            return
        self._asked[party.key] = party

    def serve(self, leaving: Callable[[NodeName], bool], now_s: float) -> list[Turned]:
        """Gives seats to all who asked. Who does not fit where somebody is just leaving waits for that."""
        if not self._asked:
            return []
        asked, self._asked = self._asked, {}
        # Whoever keeps seats does so before others are looked at, who would fit into them.
        keepers = {key: party for key, party in asked.items() if party.keeps_until_s}
        others = {key: party for key, party in asked.items() if not party.keeps_until_s}
        return [*self._serve(keepers, leaving, now_s), *self._serve(others, leaving, now_s)]

    def _serve(
        self, parties: dict[str, Party], leaving: Callable[[NodeName], bool], now_s: float
    ) -> list[Turned]:
        if not parties:
            return []
        outcome = self._binder.schedule([self._group(party) for party in parties.values()], now_s)
        turned: list[Turned] = []
        by_party: dict[str, list[Binding]] = {}
        for binding in outcome.bindings:
            by_party.setdefault(binding.group, []).append(binding)
        for key, bindings in by_party.items():
            self.refusals.pop(parties[key].job, None)
            self._postponed_s.pop(key, None)
            self._bind(parties[key], bindings, now_s)
        for refusal in outcome.refusals:
            party = parties[refusal.group]
            if all(seat.place is None for seat in party.seats):
                self.refusals[party.job] = refusal
                self._keep(party, refusal.placed, now_s)
            else:
                nodes = set(refusal.by_node) or {
                    one.place.node for one in party.seats if one.place is not None
                }
                if not self._postpone(party, {node for node in nodes if leaving(node)}, now_s):
                    turned.append(Turned(party, refusal.message, tuple(sorted(nodes))))
        return turned

    def _keep(self, party: Party, placed: int, now_s: float) -> None:
        """Keeps the seats that some of a party can have from others, if it may and nobody else does."""
        if not placed or now_s >= party.keeps_until_s:
            return
        if self._kept is not None and any(key in self._cluster.assumed for key in self._kept[1]):
            return
        found = self._binder.schedule(
            [self._group(replace(party, seats=party.seats[:placed]))], now_s
        ).bindings
        self._kept = party.job, tuple(one.key for one in found)
        self.given.update(one.node for one in found)

    def _release(self, job: JobId) -> None:
        """Seats that are kept for a job are free: it asks for all, or is over."""
        if self._kept is None or self._kept[0] != job:
            return
        for key in self._kept[1]:
            node = self._cluster.node_of(key)
            self._cluster.forget(key)
            self.given.update([node] if node is not None else ())
        self._kept = None

    def _postpone(self, party: Party, occupied: set[NodeName], now_s: float) -> bool:
        """Lets a party wait for those that are leaving its place, unless it has done so for too long."""
        if not occupied:
            self._postponed_s.pop(party.key, None)
            return False
        _, since_s = self._postponed_s.setdefault(party.key, (party, now_s))
        if now_s >= since_s + self._timing.gang_timeout_s:
            del self._postponed_s[party.key]
            return False
        for node in occupied:
            self._postponed.setdefault(node, set()).add(party.job)
        return True

    def next_s(self) -> float:
        """When somebody has waited for too long."""
        first = next(iter(self._postponed_s.values()), None)
        return math.inf if first is None else first[1] + self._timing.gang_timeout_s

    def forget(self, job: JobId) -> None:
        """A job is over: nobody needs to know what it waits for."""
        self.refusals.pop(job, None)
        self._release(job)
        for key in [key for key, (party, _) in self._postponed_s.items() if party.job == job]:
            del self._postponed_s[key]

    def left(self, node: NodeName) -> set[JobId]:
        """Somebody has left a node: the jobs that wait for it, which shall ask again."""
        return self._postponed.pop(node, set())

    def _bind(self, party: Party, bindings: Iterable[Binding], now_s: float) -> None:
        underway = self._underway[party.key] = _Underway(party, now_s, {})
        for binding in bindings:
            if any(seat.place is None for seat in party.seats):
                self.given.add(binding.node)
            uid = binding.pod.metadata.uid
            underway.left[uid] = binding
            self._party_of[uid] = party.key
            self._ask(binding, now_s)

    def _ask(self, binding: Binding, now_s: float) -> None:
        meta = binding.pod.metadata
        do = partial(
            _bind_pod,
            namespace=meta.namespace,
            pod=meta.name,
            uid=meta.uid,
            node=binding.node,
            annotations=dict(binding.annotations),
        )
        self._writes.ask(BIND + meta.uid, do, now_s)

    # ------------------------------------------------------------------------------------------- answers

    def heard(self, answer: Written, now_s: float) -> Turned | None:
        """Takes in the answer to a binding; a party of which one pod failed is turned away as a whole."""
        uid = answer.key.removeprefix(BIND)
        underway = self._underway.get(self._party_of.get(uid, ""))
        if underway is None or uid not in underway.left:
            return None
        error, in_time = answer.error, now_s < underway.since_s + self._timing.gang_timeout_s
        if error is None:
            return self._answered(uid, underway)
        if isinstance(error, Unavailable | TooManyRequests) and in_time:
            self._unanswered.add(uid)  # it was not done, or nobody knows: it is asked for again
            return None
        return self._give_up(uid, underway, _failed(error, underway.left[uid].node))

    def saw(self, pod: objects.Pod) -> Turned | None:
        """The pod is on a node, so its binding was done, whatever became of the answer; or another was."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        underway = self._underway.get(self._party_of.get(uid, ""))
        if underway is None or uid not in underway.left or not node:
            return None
        if node != underway.left[uid].node:
            return self._give_up(uid, underway, _Failed(f"somebody else has bound {pod.metadata.name}"))
        return self._answered(uid, underway)

    def lost(self, pod: objects.Pod) -> Turned | None:
        """The pod is gone, and with it the rest of its party's chance."""
        uid = pod.metadata.uid
        underway = self._underway.get(self._party_of.get(uid, ""))
        if underway is None or uid not in underway.left:
            return None
        return self._give_up(uid, underway, _Failed(f"pod {pod.metadata.name} is gone"))

    def _group(self, party: Party) -> Group:
        members = (
            Member(seat.pod) if seat.place is None else Member(seat.pod, seat.place.node, seat.place.gpus)
            for seat in party.seats
        )
        # Somebody may know better, and say so on the pods, which are all alike.
        load = next((expected_load(seat.pod.metadata.annotations) for seat in party.seats), None)
        load = self._expected(party.job) if load is None else load
        return Group(party.key, tuple(members), party.priority, party.since_s, load=load)

    def retry(self, now_s: float) -> list[Turned]:
        """Asks again for bindings without an answer; gives up those that took too long."""
        for uid in self._unanswered:
            underway = self._underway[self._party_of[uid]]
            self._ask(underway.left[uid], now_s)
        late_s, turned = now_s - self._timing.gang_timeout_s, list[Turned]()
        # Both are in the order in which they began.
        while self._postponed_s and next(iter(self._postponed_s.values()))[1] <= late_s:
            party, _ = self._postponed_s.pop(next(iter(self._postponed_s)))
            nodes = {seat.place.node for seat in party.seats if seat.place is not None}
            turned.append(Turned(party, "pods do not leave its place", tuple(sorted(nodes))))
        while self._underway and (first := next(iter(self._underway.values()))).since_s <= late_s:
            for uid in list(first.left):
                found = self._give_up(uid, first, _Failed("nobody answered in time"))
                if found is not None:
                    turned.append(found)
        return turned

    def _answered(self, uid: str, underway: _Underway) -> Turned | None:
        self.bound += 1
        return self._settle(uid, underway)

    def _give_up(self, uid: str, underway: _Underway, failed: _Failed) -> Turned | None:
        binding = underway.left[uid]
        self._cluster.forget(pod_key(binding.pod))
        # If its job has ended meanwhile, the seat was counted as one of others, and no pod will leave it.
        self.given.add(binding.node)
        self._writes.forget(BIND + uid)
        underway.failed.append(failed)
        return self._settle(uid, underway)

    def _settle(self, uid: str, underway: _Underway) -> Turned | None:
        """One binding less is open. After the last, a party of which one failed is turned away."""
        del underway.left[uid], self._party_of[uid]
        self._unanswered.discard(uid)
        if underway.left:
            return None
        del self._underway[underway.party.key]
        if not underway.failed:
            return None
        nodes = {one.node for one in underway.failed if one.node}
        why = "; ".join(sorted({one.why for one in underway.failed}))
        return Turned(underway.party, why, tuple(sorted(nodes)))


def _failed(error: ApiError, node: NodeName) -> _Failed:
    """Somebody else's hand on a pod is no fault of its node; the rule behind any other no may be about it."""
    if isinstance(error, NotFound):
        return _Failed("a pod was deleted meanwhile")
    if isinstance(error, Conflict):
        return _Failed(f"somebody else was faster: {error.message}")
    if isinstance(error, Unavailable | TooManyRequests):
        return _Failed(error.message)
    return _Failed(error.message, node)


async def _bind_pod(
    api: Api, *, namespace: str, pod: str, uid: str, node: str, annotations: dict[str, str]
) -> None:
    await api.bind(namespace, pod, uid, node, annotations)
