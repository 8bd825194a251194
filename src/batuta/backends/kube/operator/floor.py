"""All that is observed and all jobs, in the engine's thread: changes come in, events and writes go out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from batuta.backends.kube import objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.tenant import is_over, pod_key
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.client.known import Change, Did
from batuta.backends.kube.operator.desk import Desk
from batuta.backends.kube.operator.gang_run import GangRun
from batuta.backends.kube.operator.inbox import Changed, Written
from batuta.backends.kube.operator.node_desk import NodeDesk
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.pod_job import seconds
from batuta.backends.kube.operator.referred import Referred, Taker
from batuta.backends.kube.operator.roster import Roster
from batuta.backends.kube.operator.run import Known, Run, Site
from batuta.backends.kube.operator.unified_run import UnifiedRun
from batuta.backends.kube.operator.usher import BIND, Turned, Usher
from batuta.backends.kube.operator.watched import UNIFIED_JOB
from batuta.backends.kube.progress.heard import Heard
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core import event as ev
from batuta.core.cluster import NodeName
from batuta.core.job import JobId, JobState

STUCK_AFTER_S = 60.0
"""A pod that should have ended so long ago is not waited for: its node hangs, or somebody holds it back."""
TRY_EVERY_S = 1.0
"""Pods that the binder alone has refused are tried again so often at most."""


class Floor:
    """Drives every job towards what the World wants of it, and tells the World what becomes of it."""

    def __init__(
        self,
        site: Site,
        usher: Usher,
        observed: Observed,
        nodes: NodeDesk,
        known: Mapping[JobId, Known],
        namespaces: Collection[str] = (),
    ) -> None:
        """`known`: jobs that the World has from before. They are looked for; who is not found is over.

        `namespaces`: where jobs may be; pods of others are none of ours. Empty for everywhere.
        """
        self._roster = Roster(site, observed, known, namespaces)
        self.runs: dict[JobId, Run] = self._roster.runs
        """All jobs that there are now."""
        self.desks: list[Desk] = []
        self._site = site
        self._usher = usher
        self._observed = observed
        self._cluster: Cluster = site.cluster
        self._nodes = nodes
        self._referred = Referred(observed, site.cluster, self.runs)
        self._dirty: dict[JobId, None] = {}
        self._due: dict[JobId, float] = {}
        """When runs want to be driven even if nothing happens."""
        self._has_more_room = False
        """Whether a pod or node has come or gone since those were tried that the binder has refused."""
        self._try_s = -math.inf
        self._takers: dict[Kind[Any], Callable[[Change[Any], float], None]] = {
            kinds.POD: self._pod,
            kinds.NODE: self._node,
            kinds.NODE_TOPOLOGY: self._topology,
            UNIFIED_JOB: self._unified_job,
            **{kind: partial(self._concern, taker) for kind, taker in self._referred.takers.items()},
        }

    # ------------------------------------------------------------------------------------ what comes in

    def take(self, changed: Changed, now_s: float) -> None:
        """Takes in what the API server has shown."""
        taker = self._takers.get(changed.kind)
        if taker is not None:
            for change in changed.changes:
                taker(change, now_s)
        for desk in self.desks:
            desk.take(changed, now_s)

    def heard(self, written: Written, now_s: float) -> None:
        """Takes in the answer to a write."""
        self._site.writes.heard(written, now_s)
        if written.key.startswith(BIND):
            self._turn_away(self._usher.heard(written, now_s), now_s)
            return
        job, _, what = written.key.partition("//")
        run = self.runs.get(job)
        if run is not None:
            # Whoever asked for it looks again: for what could not be written meanwhile, or has to be again.
            if written.error is not None and isinstance(run, UnifiedRun):
                run.failed(what, written.error.message)
            self.touch(job)
            return
        for desk in self.desks:
            desk.heard(written, now_s)

    def listened(self, heard: Heard, now_s: float) -> None:
        """Takes in what a job has said in its log."""
        run = self.runs.get(heard.job)
        if isinstance(run, UnifiedRun) and run.hear(heard, now_s):
            self.touch(heard.job)

    def touch(self, job: JobId) -> None:
        """Something else is wanted of a job, or has happened to it."""
        self._dirty[job] = None

    def job_of(self, pod: str) -> JobId | None:
        """Whose a pod is."""
        run = self._roster.run_of(pod)
        return None if run is None else run.id

    def finish_first_look(self, now_s: float) -> None:
        """Everything has been listed once: jobs and nodes of the World that were not found are gone."""
        self._nodes.finish_first_look(now_s)
        self._roster.finish_first_look()
        self.drive(now_s)
        for job in self._roster.missing():
            detail = "it was gone when the operator started"
            self._site.say(ev.JobEnded(now_s, job, JobState.CANCELLED, "kubernetes", detail=detail))

    # -------------------------------------------------------------------------------------- one turn

    def drive(self, now_s: float) -> None:
        """Does everything that can be done now."""
        for owner in filter(None, map(self._roster.run_of, self._cluster.tick(now_s))):
            self.touch(owner.id)
        for key in self._site.writes.due(now_s):
            self.touch(key.partition("//")[0])
        self._turn_all_away(self._usher.retry(now_s), now_s)
        self._dirty.update(dict.fromkeys(job for job, due_s in self._due.items() if due_s <= now_s))
        self._try_again(now_s)
        tried: set[JobId] = set()
        while self._dirty:
            turn, self._dirty = self._dirty, {}
            tried.update(turn)
            for job in turn:
                run = self.runs.get(job)
                if run is not None:
                    self._drive(run, now_s)
            self._turn_all_away(self._usher.serve(partial(self._is_being_left, now_s), now_s), now_s)
        self._tell_refused(tried, now_s)
        self._tell_others(now_s)
        for desk in self.desks:
            desk.drive(now_s)
        self._site.writes.send()
        self._site.listening.send()

    def _drive(self, run: Run, now_s: float) -> None:
        was_booked = run.is_booked
        run.drive(now_s)
        self._note_due(run)
        if run.is_booked != was_booked:
            for node in filter(None, map(self._cluster.node_of, run.pods())):
                self._nodes.doubt(node)
        if run.is_over:
            self._drop(run)

    def _note_due(self, run: Run) -> None:
        if run.due_s < math.inf:
            self._due[run.id] = run.due_s
        else:
            self._due.pop(run.id, None)

    def next_s(self) -> float:
        """When something is to be done even if nothing happens until then."""
        try_s = self._try_s if self._has_more_room and self._usher.refusals else math.inf
        due_s = min(self._due.values(), default=math.inf)
        desks_s = min((desk.next_s() for desk in self.desks), default=math.inf)
        return min(due_s, try_s, desks_s, self._site.writes.next_s(), self._usher.next_s())

    def _try_again(self, now_s: float) -> None:
        """There is more room than before: whom the binder has refused asks again, but not all the time."""
        if not self._has_more_room or not self._usher.refusals:
            return
        is_time = now_s >= self._try_s
        for job in self._usher.refusals:
            if is_time or self.runs[job].is_urgent:
                self.touch(job)
        if is_time:
            self._has_more_room, self._try_s = False, now_s + TRY_EVERY_S

    def _tell_refused(self, jobs: Iterable[JobId], now_s: float) -> None:
        """Lets the pods say why they wait for which the binder alone has found no node."""
        for job in jobs:
            run, refusal = self.runs.get(job), self._usher.refusals.get(job)
            if isinstance(run, GangRun) and refusal is not None and run.waits(refusal.message):
                run.tell_why(now_s)
                self._note_due(run)

    def _turn_all_away(self, turned: Iterable[Turned], now_s: float) -> None:
        for one in turned:
            self._turn_away(one, now_s)

    def _turn_away(self, turned: Turned | None, now_s: float) -> None:
        if turned is not None and turned.party.job in self.runs:
            self.runs[turned.party.job].refused(turned.why, turned.nodes, now_s)
            self.touch(turned.party.job)

    def _is_being_left(self, now_s: float, node: NodeName) -> bool:
        """Whether a pod is on its way from a node, so that there will be more room soon."""
        return any(self._is_leaving(key, now_s) for key in self._cluster.pods_on(node))

    def _is_leaving(self, key: str, now_s: float) -> bool:
        pod, run = self._observed.pods.get(key), self._roster.run_of(key)
        if pod is None or is_over(pod):
            return False
        deleted = pod.metadata.deletion_timestamp
        if run is None:
            # A job that is over and forgotten, or somebody else's pod. The time is when its grace ends.
            return bool(deleted) and now_s < seconds(deleted) + STUCK_AFTER_S
        return bool(deleted) or run.leaves(pod)

    # ------------------------------------------------------------------------------------------- pods

    def _pod(self, change: Change[objects.Pod], now_s: float) -> None:
        pod = change.object
        key = self._observed.note(self._observed.pods, change)
        node = pod.spec.node_name
        if change.did is Did.DELETED:
            self._cluster.pod_gone(key)
            self._turn_away(self._usher.lost(pod), now_s)
        else:
            self._cluster.pod_set(pod)
            if node:
                self._turn_away(self._usher.saw(pod), now_s)
        if node and (change.did is Did.DELETED or is_over(pod)):
            self._dirty.update(dict.fromkeys(self._usher.left(node)))
            self._has_more_room = True
        elif node and (change.old is None or not change.old.spec.node_name):
            self._has_more_room = True  # for those that want to be near it
        self._note_owner(pod, change.did is Did.DELETED)

    def _note_owner(self, pod: objects.Pod, is_gone: bool) -> None:
        """Lets the run look that a pod belongs to. What others hold of a node is the World's business too."""
        run = self._roster.lose(pod) if is_gone else self._roster.see(pod)
        node = pod.spec.node_name
        if node and (is_gone or run is None or not run.holds(pod_key(pod))):
            self._nodes.doubt(node)
        if run is not None:
            self.touch(run.id)

    def _drop(self, run: Run) -> None:
        self._due.pop(run.id, None)
        self._usher.forget(run.id)
        self._site.listening.to(run.id, None)
        for node in filter(None, map(self._cluster.node_of, run.pods())):
            self._nodes.doubt(node)
        if self._roster.drop(run):
            self.touch(run.id)

    # ---------------------------------------------------------------------------------- other objects

    def _unified_job(self, change: Change[UnifiedJob], now_s: float) -> None:
        key = self._observed.note(self._observed.unified_jobs, change)
        if change.did is not Did.DELETED:
            self._roster.meet(change.object)
            self.touch(key)
        elif isinstance(run := self.runs.get(key), UnifiedRun):
            run.vanish()
            self.touch(key)

    def _concern(self, taker: Taker, change: Change[Any], now_s: float) -> None:
        for job in taker(change):
            if job in self.runs:
                self.touch(job)

    # ------------------------------------------------------------------------------------------ nodes

    def _node(self, change: Change[objects.Node], now_s: float) -> None:
        self._nodes.node(change, now_s)
        self._has_more_room = True

    def _topology(self, change: Change[objects.NodeResourceTopology], now_s: float) -> None:
        self._nodes.topology(change, now_s)
        self._has_more_room = True

    def _tell_others(self, now_s: float) -> None:
        for node in self._usher.given:
            self._nodes.doubt(node)
        self._usher.given.clear()
        self._nodes.tell_others(self._booked_on, now_s)

    def _booked_on(self, node: NodeName) -> set[str]:
        """The pods on a node that the World knows as a job's."""
        pods = ((key, self._roster.run_of(key)) for key in self._cluster.pods_on(node))
        return {key for key, run in pods if run is not None and run.holds(key)}
