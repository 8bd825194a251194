"""Seats for pods: all of a party or none, checked against what the nodes really have, then bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from batuta.backends.kube import objects
from batuta.backends.kube.binder import Binder, Binding, Group, Member, Refusal
from batuta.backends.kube.binder.tenant import pod_key
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Conflict, NotFound, Unavailable
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
    failed: list[tuple[NodeName, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Turned:
    """A party that did not get its seats, why, and which nodes would not have it."""

    party: Party
    why: str
    nodes: tuple[NodeName, ...]


class Usher:
    """Takes requests for seats during a turn, and serves them all at its end."""

    def __init__(self, binder: Binder, writes: Writes, timing: Timing) -> None:
        self._binder = binder
        self._cluster = binder.cluster
        self._writes = writes
        self._timing = timing
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
        self.refusals: dict[JobId, Refusal] = {}
        """Why the parties wait whose pods the binder places alone."""
        self.given: set[NodeName] = set()
        """Nodes on which the binder alone has given seats; for whoever keeps books of it."""
        self.bound = 0

    def seat(self, party: Party) -> None:
        """Notes a request, unless its pods are being bound, or were and nobody has shown them bound yet."""
        if party.key in self._underway:
            return
        if any(self._cluster.node_of(pod_key(seat.pod)) is not None for seat in party.seats):
            return
        self._asked[party.key] = party

    def serve(self, leaving: Callable[[NodeName], bool], now_s: float) -> list[Turned]:
        """Gives seats to all who asked. Who does not fit where somebody is just leaving waits for that."""
        if not self._asked:
            return []
        parties, self._asked = self._asked, {}
        outcome = self._binder.schedule([_group(party) for party in parties.values()], now_s)
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
            else:
                nodes = set(refusal.by_node) or {
                    one.place.node for one in party.seats if one.place is not None
                }
                if not self._postpone(party, {node for node in nodes if leaving(node)}, now_s):
                    turned.append(Turned(party, refusal.message, tuple(sorted(nodes))))
        return turned

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
        if isinstance(answer.error, Unavailable) and now_s < underway.since_s + self._timing.gang_timeout_s:
            self._unanswered.add(uid)  # nobody knows whether it was done, so it is asked for again
            return None
        binding = underway.left[uid]
        if answer.error is not None:
            self._cluster.forget(pod_key(binding.pod))
            self._writes.forget(answer.key)
            underway.failed.append((binding.node, _why(answer.error)))
            self.bound -= 1
        return self._answered(uid, underway)

    def saw(self, pod: objects.Pod) -> Turned | None:
        """The pod is on a node, so its binding was done, whatever became of the answer."""
        underway = self._underway.get(self._party_of.get(pod.metadata.uid, ""))
        if underway is None or pod.metadata.uid not in underway.left or not pod.spec.node_name:
            return None
        return self._answered(pod.metadata.uid, underway)

    def lost(self, pod: objects.Pod) -> Turned | None:
        """The pod is gone, and with it the rest of its party's chance."""
        uid = pod.metadata.uid
        underway = self._underway.get(self._party_of.get(uid, ""))
        if underway is None or uid not in underway.left:
            return None
        underway.failed.append((underway.left[uid].node, f"pod {pod.metadata.name} is gone"))
        return self._answered(uid, underway)

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
            for uid, binding in list(first.left.items()):
                self._cluster.forget(pod_key(binding.pod))
                self._writes.forget(BIND + uid)
                first.failed.append((binding.node, "nobody answered in time"))
                found = self._answered(uid, first)
                if found is not None:
                    turned.append(found)
        return turned

    def _answered(self, uid: str, underway: _Underway) -> Turned | None:
        del underway.left[uid], self._party_of[uid]
        self._unanswered.discard(uid)
        self.bound += 1
        if underway.left:
            return None
        del self._underway[underway.party.key]
        if not underway.failed:
            return None
        nodes = tuple(sorted({node for node, _ in underway.failed}))
        return Turned(underway.party, "; ".join(sorted({why for _, why in underway.failed})), nodes)


def _group(party: Party) -> Group:
    members = (
        Member(seat.pod) if seat.place is None else Member(seat.pod, seat.place.node, seat.place.gpus)
        for seat in party.seats
    )
    return Group(party.key, tuple(members), party.priority, party.since_s)


def _why(error: ApiError) -> str:
    if isinstance(error, NotFound):
        return "a pod was deleted meanwhile"
    if isinstance(error, Conflict):
        return f"somebody else was faster: {error.message}"
    return error.message


async def _bind_pod(
    api: Api, *, namespace: str, pod: str, uid: str, node: str, annotations: dict[str, str]
) -> None:
    await api.bind(namespace, pod, uid, node, annotations)
