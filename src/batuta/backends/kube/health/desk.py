"""The operator's desk for health: nodes tell, the book decides, and nodes, jobs and pods are made to follow.

Only a leader has one. What the book says is stored before anything is done about it, and everything that is
done is a level that is looked at again and again: whoever leads next goes on from there.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import Final, NamedTuple

from batuta.backends.kube import names, objects
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Conflict
from batuta.backends.kube.client.known import Did
from batuta.backends.kube.health.burn_in import BurnInOptions
from batuta.backends.kube.health.hearing import Hearing, adopt
from batuta.backends.kube.health.last_words import LastWords
from batuta.backends.kube.health.leaving import Leaving
from batuta.backends.kube.health.marking import Marking
from batuta.backends.kube.health.memory import Hit, Memory, Stored, from_text, load, save, to_text
from batuta.backends.kube.health.news import HealthNews
from batuta.backends.kube.health.proving import Proving
from batuta.backends.kube.health.tenants import Tenants
from batuta.backends.kube.operator.inbox import Changed, Written
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.run import Run, Site
from batuta.core.cluster import NodeName
from batuta.core.health_record import WHOLE_NODE, Alert, Cordon, Order, Record, RestartJob, State, Target
from batuta.core.health_rules import Action, Finding, HealthRules, Source
from batuta.core.job import JobId

_log = logging.getLogger(__name__)
_OWN: Final = "health//"
_SAVE, _LOAD = f"{_OWN}save", f"{_OWN}load"
_LOOK_AGAIN_S: Final = 30.0
"""While anything is out of service."""
EXCUSE_WITHIN_S: Final = 4.0
"""So long it is waited for what an agent has to say of a failure: it looks each second."""
_SOON_S: Final = 2.0
"""While somebody is waited for: a burn-in that begins when pods have left, jobs that leave."""


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """How an operator looks after health."""

    rules: HealthRules
    namespace: str
    """Where its memory and its burn-ins are."""
    memory_name: str = "batuta-health"
    pool_label: str = ""
    """The label that tells pools apart; empty: a pool is all nodes with the same GPUs."""
    burn_in: BurnInOptions = field(default_factory=BurnInOptions)


class Snapshot(NamedTuple):
    """How things are at one moment, for other threads: nothing of it changes any more."""

    records: Mapping[Target, Record] = MappingProxyType({})
    cordons: Mapping[NodeName, Cordon] = MappingProxyType({})
    alerts: tuple[Alert, ...] = ()
    found: Mapping[tuple[Source, Action], int] = MappingProxyType({})
    """Findings since the start, by source and by what was made of them."""


class HealthDesk:
    """A desk of the floor. For the engine's thread; `snapshot` may be looked at by all."""

    def __init__(
        self,
        options: HealthOptions,
        stored: Stored,
        site: Site,
        observed: Observed,
        runs: Mapping[JobId, Run],
        gpu_resources: tuple[str, ...],
    ) -> None:
        self._options = options
        self._site = site
        self._observed = observed
        self._stored = stored
        self.memory = self._recall(stored)
        self.snapshot = Snapshot()
        self._found: Counter[tuple[Source, Action]] = Counter()
        tenants = Tenants(runs, observed.pods)
        self._tenants = tenants
        self._hearing = Hearing(tenants, gpu_resources, options.pool_label, self._count)
        self._news = HealthNews(site.writes.ask, site.say, self.memory.book.records)
        self._leaving = Leaving(tenants, site.say, self._news)
        self._marking = Marking(observed.nodes, site.writes.ask, _OWN)
        self._last_words = LastWords(tenants, self._count)
        self._proving = Proving(options.burn_in, gpu_resources, observed.nodes, self._guests, site.writes.ask)
        self._dirty: set[NodeName] | None = None
        """Nodes that may say something new; None: nobody has looked at any yet."""
        self._is_unsaved = self._is_waiting = self._has_news = self._is_due = False
        self._tick_s = self._now_s = -math.inf
        self._suspects: SimpleQueue[tuple[NodeName, JobId, str]] = SimpleQueue()

    def _recall(self, stored: Stored) -> Memory:
        try:
            return from_text(self._options.rules, stored.text)
        except ValueError as error:
            _log.error("what was remembered of health cannot be read, nodes are asked instead: %s", error)
            return from_text(self._options.rules, "")

    def _count(self, finding: Finding) -> None:
        verdict = self.memory.book.verdict_on(finding)
        self._found[finding.source, verdict.action] += 1
        if verdict.action.takes_out:
            hit = Hit(self._now_s, verdict.reason)
            self.memory.hits.update(dict.fromkeys(finding.jobs, hit))

    def _guests(self, node: NodeName) -> list[objects.Pod]:
        pods = self._observed.pods
        return [pods[key] for key in self._site.cluster.pods_on(node) if key in pods]

    # ------------------------------------------------------------------------------------------ what comes in

    def take(self, changed: Changed, now_s: float) -> None:
        """Nodes that changed are listened to at the next turn, burn-ins as well."""
        if changed.kind is kinds.NODE and self._dirty is not None:
            self._dirty.update(change.object.metadata.name for change in changed.changes)
        elif changed.kind is kinds.POD:
            for change in changed.changes:
                is_gone = change.did is Did.DELETED
                is_burn_in = self._proving.see(change.object, is_gone)
                self._has_news |= is_burn_in or (not is_gone and self._last_words.see(change.object))

    def heard(self, written: Written, now_s: float) -> None:
        """What was to be stored is, or not; whatever else failed is asked for again when it may be."""
        if written.error is not None and written.key.startswith(_OWN):
            _log.warning("%s: %s", written.key.removeprefix(_OWN), written.error)
        if written.key == _SAVE:
            self._is_waiting = False
            if written.error is None:
                self._is_unsaved = False
            elif isinstance(written.error, Conflict):
                self._is_waiting = self._site.writes.ask(_LOAD, self._read_again, now_s)
        elif written.key == _LOAD:
            self._is_waiting = False
            if written.error is None:
                self._begin_anew()

    def suspect(self, node: NodeName, job: JobId, why: str) -> None:
        """Who watches a job thinks that a node holds it up. For any thread; it is heard at the next turn."""
        self._suspects.put((node, job, why))

    def _begin_anew(self) -> None:
        """Another memory than ours counts. What is not in it, nodes still say."""
        if self._stored.text:
            self.memory = self._recall(self._stored)
        self._is_unsaved, self._dirty, self._tick_s = not self._stored.text, None, -math.inf

    async def _read_again(self, api: Api) -> None:
        self._stored = await load(api, self._options.namespace, self._options.memory_name)

    async def _write(self, api: Api, text: str) -> None:
        told = Stored(text, self._stored.version)
        self._stored = await save(api, self._options.namespace, self._options.memory_name, told)

    def excuse(self, job: JobId, began_s: float, failed_s: float, now_s: float) -> str | None:
        """Why a job that has failed is not to blame; empty: it is. None: that is not known yet.

        Programs die of their GPU faster than anybody can read and tell what the driver said of it. And who
        begins again at once should not come to a node that is about to be shut.
        """
        is_late, hit = now_s >= failed_s + EXCUSE_WITHIN_S, self.memory.hits.get(job)
        if hit is not None and hit.heard_s >= began_s and (is_late or self._is_calm):
            del self.memory.hits[job]
            return hit.reason
        return "" if is_late else None

    @property
    def _is_calm(self) -> bool:
        """Whether all that was heard is stored and can be seen."""
        return not (self._is_unsaved or self._is_waiting or self._dirty) and self._marking.is_done

    # ----------------------------------------------------------------------------------------------- one turn

    def next_s(self) -> float:
        return math.inf if self._is_waiting or self._is_unsaved else self._tick_s

    def drive(self, now_s: float) -> None:
        """Listens, judges, stores; and only when that is stored, acts."""
        if self._is_waiting:
            return
        if not self._is_unsaved and self._hears(now_s):
            self._is_due, self._is_unsaved = True, to_text(self.memory) != self._stored.text
        if self._is_unsaved:
            do = partial(self._write, text=to_text(self.memory))
            self._is_waiting = self._site.writes.ask(_SAVE, do, now_s)
            return
        self._act(now_s)

    def _hears(self, now_s: float) -> bool:
        """Takes in all that is new; whether anything may have changed."""
        self._now_s = now_s
        memory, has_news = self.memory, self._has_news or now_s >= self._tick_s
        orders: list[Order] = []
        if self._dirty is None:
            self._look_first()
            has_news = True
        assert self._dirty is not None
        self._marking.doubt(self._dirty)
        for name in self._dirty:
            node = self._observed.nodes.get(name)
            if node is None:
                has_news |= name in memory.book.members
                memory.forget(name)
                continue
            is_news, ordered = self._hearing.hear(memory, node, now_s)
            has_news |= is_news
            orders += ordered
        self._dirty, self._has_news = set(), False
        while not self._suspects.empty():
            suspect, job, why = self._suspects.get()
            finding = Finding(now_s, suspect, Source.BEHAVIOUR, text=why, jobs=(job,))
            self._count(finding)
            orders += memory.book.found(finding)
            has_news = True
        if has_news:
            orders += self._last_words.hear(memory, now_s)
            orders += self._proving.conclude(memory.book, now_s)
            orders += memory.book.passes(now_s, self._idle())
            for order in orders:
                if isinstance(order, RestartJob):
                    self._leaving.note(memory, order, now_s)
            self._leaving.forget_done(memory, now_s)
        return has_news

    def _look_first(self) -> None:
        nodes, memory = self._observed.nodes, self.memory
        for name in [name for name in memory.book.members if name not in nodes]:
            memory.forget(name)
        if memory.is_new:
            for node in nodes.values():
                adopt(memory, node)
            memory.is_new = False
        self._dirty = set(nodes)

    def _idle(self) -> list[Target]:
        """GPUs that wait for their job to end before they are taken out, and are without one."""
        return [
            target
            for target, record in self.memory.book.records.items()
            if record.state is State.SUSPECT
            and record.remedy.takes_out
            and not self._tenants.on(target.node, None if target.gpu == WHOLE_NODE else target.gpu)
        ]

    # ------------------------------------------------------------------------------------------- what is done

    def _act(self, now_s: float) -> None:
        book = self.memory.book
        if self._is_due:
            self._marking.doubt(target.node for target in book.records)
        has_settled, again_s = self._marking.drive(self.memory, now_s)
        self._is_due |= has_settled
        if not self._is_due:
            self._tick_s = min(self._tick_s, again_s)
            return
        self._news.tell(book.records, self._observed.nodes, now_s)
        self.snapshot = self._take_snapshot()
        closed = {target.node for target in book.out if target.gpu == WHOLE_NODE}
        shut = {name for name in closed if _is_shut(self._observed.nodes.get(name))}
        is_left = self._leaving.drive(self.memory, shut, now_s) and shut == closed
        self._proving.drive(book, now_s)
        self._is_due, self._tick_s = False, min(again_s, self._next_tick_s(is_left, now_s))

    def _take_snapshot(self) -> Snapshot:
        book = self.memory.book
        records = {target: book.look(target) for target in book.records}
        alerts = tuple(order for order in book.standing() if isinstance(order, Alert))
        return Snapshot(records, dict(book.cordons), alerts, dict(self._found))

    def _next_tick_s(self, is_left: bool, now_s: float) -> float:
        """When to look again even if nothing happens."""
        records = self.memory.book.records.values()
        busy = [one for one in records if one.state is not State.HEALTHY]
        if not busy and is_left:
            return math.inf
        ends_s = min((one.ends_s for one in busy if one.state is State.PROBATION), default=math.inf)
        waits = not is_left or any(one.state is State.BURN_IN for one in busy)
        return min(max(ends_s, now_s), now_s + (_SOON_S if waits else _LOOK_AGAIN_S))


def _is_shut(node: objects.Node | None) -> bool:
    return node is not None and any(taint.key == names.UNHEALTHY for taint in node.spec.taints)
