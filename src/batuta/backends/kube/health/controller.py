"""The health controller: reads node reports, stores the state, then taints nodes, evicts jobs and says so.

It acts only on state that is stored, so that the next operator continues from the same decisions.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import Final, NamedTuple

from batuta.backends.kube import names, objects
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Conflict
from batuta.backends.kube.client.informer import ChangeType
from batuta.backends.kube.health.burn_in import BurnInController, BurnInOptions
from batuta.backends.kube.health.node_reports import (
    JobsOnNodes,
    NodeReportReader,
    TerminationMessages,
    adopt,
    living_pods,
)
from batuta.backends.kube.health.state import (
    HealthState,
    Hit,
    Restart,
    StoredState,
    from_text,
    load_state,
    save_state,
    to_text,
)
from batuta.backends.kube.health.taints import PREFIX, NodeMarker
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import JobReconciler, ReconcileContext
from batuta.backends.kube.operator.workqueue import AskFn, Changed, Written, build_event, create_event
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement
from batuta.core.health_record import BY_HEALTH, WHOLE_NODE, Alert, Cordon, Order, Record, RestartJob, State, Target
from batuta.core.health_rules import Action, Finding, HealthRules, Source
from batuta.core.job import DesiredState, JobId

_log = logging.getLogger(__name__)
_REASONS: Final = {
    State.HEALTHY: "Healthy",
    State.SUSPECT: "HealthSuspect",
    State.ILL: "Unhealthy",
    State.BURN_IN: "BurnIn",
    State.PROBATION: "Probation",
}
_WARNINGS: Final = frozenset({State.SUSPECT, State.ILL})
_MOST_PODS: Final = 4  # remembered of a start: a restart ends them all
_LATEST_S: Final = 600.0  # a restart that was not to be had for so long is none any more
_SAVE, _LOAD = f"{PREFIX}save", f"{PREFIX}load"
_LOOK_AGAIN_S: Final = 30.0  # while anything is out of service
EXCUSE_WITHIN_S: Final = 4.0  # so long it is waited for what an agent has to say of a failure: it looks each second
_SOON_S: Final = 2.0  # while jobs are leaving, or a burn-in waits for pods to leave


class HealthEventRecorder:
    """Tells each change of a record once: to the World, to the cluster, and to the log."""

    def __init__(self, ask: AskFn, say: Callable[[ev.Event], None], known: Mapping[Target, Record]) -> None:
        """`known`: what an earlier operator reported."""
        self._ask, self._say = ask, say
        self._told = {target: _said(record) for target, record in known.items()}

    def tell(self, records: Mapping[Target, Record], nodes: Mapping[str, objects.Node], now_s: float) -> None:
        for target, record in records.items():
            said = _said(record)
            if said == self._told.get(target, _said(Record())):
                continue
            self._told[target] = said
            state = "alert" if record.held else record.state.value
            gpu = None if target.gpu == WHOLE_NODE else target.gpu
            self._say(ev.HealthChanged(now_s, target.node, gpu, state, record.reason))
            _log.warning("%s is %s: %s", target, state, record.reason)
            if (node := nodes.get(target.node)) is not None:
                about = {"name": target.node, "uid": node.metadata.uid}
                about |= {"apiVersion": kinds.NODE.api_version, "kind": kinds.NODE.name}
                reason = "HealthGuardRail" if record.held else _REASONS[record.state]
                kind = "Warning" if record.state in _WARNINGS else "Normal"
                self._event(about, reason, f"{target}: {record.reason}", kind, now_s)
        self._told = {target: said for target, said in self._told.items() if target in records}

    def restarts(self, pod: objects.Pod, reason: str, now_s: float) -> None:
        """A job begins again, which its owner shall know: the event is about what owns one of its pods."""
        owner = next((one for one in pod.metadata.owner_references if one.controller), None)
        if owner is None:
            return
        about = {"name": owner.name, "namespace": pod.metadata.namespace, "uid": owner.uid}
        about |= {"apiVersion": owner.api_version, "kind": owner.kind}
        self._event(about, "RestartedByHealth", f"it begins again: {reason}", "Warning", now_s)

    def _event(self, about: Mapping[str, str], reason: str, note: str, kind: str, now_s: float) -> None:
        event = build_event(about, reason, note, now_s, kind, said=f"{reason} {note}")
        self._ask(f"{PREFIX}event/{event['metadata']['name']}", partial(create_event, event), now_s)


def _said(record: Record) -> tuple[State, bool, str]:
    return record.state, record.held, record.reason


@dataclass(slots=True)
class JobEvictor:
    """Says what jobs shall do; the World sees to it that they save their work and where they go."""

    _jobs_on_nodes: JobsOnNodes
    _say: Callable[[ev.Event], None]
    _events: HealthEventRecorder
    _sent: dict[JobId, Placement] = field(default_factory=dict)
    _restarted: dict[JobId, Restart] = field(default_factory=dict)

    def note(self, memory: HealthState, order: RestartJob, now_s: float) -> None:
        """A job is to begin again: stored with the book, so that it is neither forgotten nor done twice.

        One that was restarted often enough has to help itself: it would never get anywhere.
        """
        run = self._jobs_on_nodes.movable(order.job)
        if run is None or order.job in memory.restarts:
            return
        record, limits = memory.book.records.get(order.target), memory.book.rules.limits
        is_hardware = record is not None and bool(record.held)  # whose fault it is, however often it happens
        if not is_hardware and not limits.may_restart(memory.restarted, order.job, now_s):
            return
        memory.hits[order.job] = Hit(now_s, order.reason)
        if pods := living_pods(run, _MOST_PODS):
            memory.restarts[order.job] = Restart(pods, now_s, order.reason)

    def forget_done(self, memory: HealthState, now_s: float) -> None:
        """Restarts are done when the pods are gone that were hit; what hit whom is no excuse for ever."""
        horizon_s = now_s - memory.book.rules.limits.within_s
        recent = {job: [time_s for time_s in times if time_s >= horizon_s] for job, times in memory.restarted.items()}
        memory.restarted = {job: times for job, times in recent.items() if times}
        memory.hits = {job: hit for job, hit in memory.hits.items() if now_s < hit.heard_s + _LATEST_S}
        for job, restart in list(memory.restarts.items()):
            if not self._is_due(job, restart) or now_s > restart.asked_s + _LATEST_S:
                del memory.restarts[job]
                self._restarted.pop(job, None)

    def _is_due(self, job: JobId, restart: Restart) -> bool:
        run = self._jobs_on_nodes.movable(job)
        return run is not None and not set(restart.pods).isdisjoint(living_pods(run, len(run.pods())))

    def drive(self, memory: HealthState, shut: Collection[NodeName], now_s: float) -> bool:
        """Evicts jobs; whether none is still leaving. `shut`: nodes that get no new jobs."""
        leaving = {run.id: run.wanted for run in self._jobs_on_nodes.on_nodes(shut)} if shut else {}
        for job, placement in leaving.items():
            if placement is not None and self._sent.get(job) != placement:
                self._sent[job] = placement
                self._say(ev.JobWished(now_s, job, DesiredState.EVICT, cause=BY_HEALTH))
        self._sent = {job: placement for job, placement in self._sent.items() if job in leaving}
        for job, restart in memory.restarts.items():
            if job in leaving or self._restarted.get(job) == restart or not self._is_due(job, restart):
                continue
            self._restarted[job] = restart
            self._say(ev.JobWished(now_s, job, DesiredState.EVICT, cause=BY_HEALTH))
            if run := self._jobs_on_nodes.movable(job):
                self._events.restarts(next(iter(run.pods().values())), restart.reason, now_s)
        return not leaving and not memory.restarts


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """How an operator looks after health."""

    rules: HealthRules
    namespace: str  # where its memory and its burn-ins are
    memory_name: str = "batuta-health"
    pool_label: str = ""  # the label that tells pools apart; empty: a pool is all nodes with the same GPUs
    burn_in: BurnInOptions = field(default_factory=BurnInOptions)


class Snapshot(NamedTuple):
    """How things are at one moment, for other threads: nothing of it changes any more."""

    records: Mapping[Target, Record] = MappingProxyType({})
    cordons: Mapping[NodeName, Cordon] = MappingProxyType({})
    alerts: tuple[Alert, ...] = ()
    found: Mapping[tuple[Source, Action], int] = MappingProxyType({})
    """Findings since the start, by source and by what was made of them."""


class HealthController:
    """Runs in the engine's thread; any thread may read `snapshot`."""

    def __init__(
        self,
        options: HealthOptions,
        stored: StoredState,
        context: ReconcileContext,
        observed: ObjectCache,
        runs: Mapping[JobId, JobReconciler],
        gpu_resources: tuple[str, ...],
    ) -> None:
        self._options = options
        self._context = context
        self._observed = observed
        self._stored = stored
        self.memory = self._recall(stored)
        self.snapshot = Snapshot()
        self._found: Counter[tuple[Source, Action]] = Counter()
        self._jobs_on_nodes = jobs_on_nodes = JobsOnNodes(runs, observed.pods)
        self._report_reader = NodeReportReader(jobs_on_nodes, gpu_resources, options.pool_label, self._count)
        self._events = HealthEventRecorder(context.writes.ask, context.say, self.memory.book.records)
        self._evictor = JobEvictor(jobs_on_nodes, context.say, self._events)
        self._marker = NodeMarker(observed.nodes, context.writes.ask)
        self._termination_messages = TerminationMessages(jobs_on_nodes, self._count)
        self._burn_ins = BurnInController(
            options.burn_in, gpu_resources, observed.nodes, self._guests, context.writes.ask
        )
        self._dirty: set[NodeName] | None = None  # nodes that may have new reports; None: no node has been read yet
        self._is_unsaved = self._is_waiting = self._has_news = self._is_due = False
        self._tick_s = self._now_s = -math.inf
        self._suspects: SimpleQueue[tuple[NodeName, JobId, str]] = SimpleQueue()

    def _recall(self, stored: StoredState) -> HealthState:
        try:
            return from_text(self._options.rules, stored.text)
        except ValueError as error:
            _log.error("what was remembered of health cannot be read, nodes are asked instead: %s", error)
            return from_text(self._options.rules, "")

    def _count(self, finding: Finding) -> None:
        verdict = self.memory.book.verdict_on(finding)
        self._found[finding.source, verdict.action] += 1
        if verdict.action.takes_out:
            self.memory.hits |= dict.fromkeys(finding.jobs, Hit(self._now_s, verdict.reason))

    def _guests(self, node: NodeName) -> list[objects.Pod]:
        pods = self._observed.pods
        return [pods[key] for key in self._context.cluster.pods_on(node) if key in pods]

    def take(self, changed: Changed, now_s: float) -> None:
        """Nodes that changed are listened to at the next turn, burn-ins as well."""
        if changed.kind is kinds.NODE and self._dirty is not None:
            self._dirty.update(change.object.metadata.name for change in changed.changes)
        elif changed.kind is kinds.POD:
            for change in changed.changes:
                is_gone = change.did is ChangeType.DELETED
                is_burn_in = self._burn_ins.see(change.object, is_gone)
                self._has_news |= is_burn_in or (not is_gone and self._termination_messages.see(change.object))

    def heard(self, written: Written, now_s: float) -> None:
        """What was to be stored is, or not; whatever else failed is asked for again when it may be."""
        if written.error is not None and written.key.startswith(PREFIX):
            _log.warning("%s: %s", written.key.removeprefix(PREFIX), written.error)
        if written.key == _SAVE:
            self._is_waiting = False
            if written.error is None:
                self._is_unsaved = False
            elif isinstance(written.error, Conflict):
                self._is_waiting = self._context.writes.ask(_LOAD, self._read_again, now_s)
        elif written.key == _LOAD:
            self._is_waiting = False
            if written.error is None:  # another memory than ours counts; what is not in it, nodes still say
                self.memory = self._recall(self._stored) if self._stored.text else self.memory
                self._is_unsaved, self._dirty, self._tick_s = not self._stored.text, None, -math.inf

    def suspect(self, node: NodeName, job: JobId, why: str) -> None:
        """Who watches a job thinks that a node holds it up. For any thread; it is heard at the next turn."""
        self._suspects.put((node, job, why))

    async def _read_again(self, api: Api) -> None:
        self._stored = await load_state(api, self._options.namespace, self._options.memory_name)

    async def _write(self, api: Api, text: str) -> None:
        told = StoredState(text, self._stored.version)
        self._stored = await save_state(api, self._options.namespace, self._options.memory_name, told)

    def excuse(self, job: JobId, began_s: float, failed_s: float, now_s: float) -> str | None:
        """Why a failure is not the job's own; empty: it is. None: that is not known yet.

        Programs die of their GPU faster than the agent can read and report what the driver said of it. And who
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
        return not (self._is_unsaved or self._is_waiting or self._dirty) and self._marker.is_done

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
            self._is_waiting = self._context.writes.ask(_SAVE, do, now_s)
            return
        self._act(now_s)

    def _hears(self, now_s: float) -> bool:
        self._now_s = now_s
        memory, has_news = self.memory, self._has_news or now_s >= self._tick_s
        orders: list[Order] = []
        if self._dirty is None:
            self._look_first()
            has_news = True
        assert self._dirty is not None
        self._marker.doubt(self._dirty)
        for name in self._dirty:
            node = self._observed.nodes.get(name)
            if node is None:
                has_news |= name in memory.book.members
                memory.forget(name)
                continue
            is_news, ordered = self._report_reader.hear(memory, node, now_s)
            has_news |= is_news
            orders += ordered
        self._dirty, self._has_news = set(), False
        while not self._suspects.empty():
            suspect, job, why = self._suspects.get()
            # By what the ranks of a tenant's job report.
            finding = Finding(now_s, suspect, Source.BEHAVIOUR, text=why, jobs=(job,), is_hearsay=True)
            self._count(finding)
            orders += memory.book.found(finding)
            has_news = True
        if has_news:
            orders += self._termination_messages.hear(memory, now_s)
            orders += self._burn_ins.conclude(memory.book, now_s)
            orders += memory.book.passes(now_s, self._idle())
            for order in orders:
                if isinstance(order, RestartJob):
                    self._evictor.note(memory, order, now_s)
            self._evictor.forget_done(memory, now_s)
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
            and not self._jobs_on_nodes.on(target.node, None if target.gpu == WHOLE_NODE else target.gpu)
        ]

    def _act(self, now_s: float) -> None:
        book = self.memory.book
        if self._is_due:
            self._marker.doubt(target.node for target in book.records)
        has_settled, again_s = self._marker.drive(self.memory, now_s)
        self._is_due |= has_settled
        if not self._is_due:
            self._tick_s = min(self._tick_s, again_s)
            return
        nodes = self._observed.nodes
        self._events.tell(book.records, nodes, now_s)
        records = {target: book.look(target) for target in book.records}
        alerts = tuple(order for order in book.standing() if isinstance(order, Alert))
        self.snapshot = Snapshot(records, dict(book.cordons), alerts, dict(self._found))
        closed = {target.node for target in book.out if target.gpu == WHOLE_NODE}
        taints = {name: {one.key for one in nodes[name].spec.taints} for name in closed & nodes.keys()}
        shut = {name for name, keys in taints.items() if names.UNHEALTHY in keys}
        is_left = self._evictor.drive(self.memory, shut, now_s) and shut == closed
        self._burn_ins.drive(book, now_s)
        self._is_due, self._tick_s = False, min(again_s, self._next_tick_s(is_left, now_s))

    def _next_tick_s(self, is_left: bool, now_s: float) -> float:
        records = self.memory.book.records.values()
        busy = [one for one in records if one.state is not State.HEALTHY]
        if not busy and is_left:
            return math.inf
        ends_s = min((one.ends_s for one in busy if one.state is State.PROBATION), default=math.inf)
        waits = not is_left or any(one.state is State.BURN_IN for one in busy)
        return min(max(ends_s, now_s), now_s + (_SOON_S if waits else _LOOK_AGAIN_S))
