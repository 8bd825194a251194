"""All that is observed and all jobs, in the engine's thread: changes come in, events and writes go out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.tenant import is_over, pod_key
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.known import Change, Did
from batuta.backends.kube.operator.desk import Desk
from batuta.backends.kube.operator.gang_run import GangRun
from batuta.backends.kube.operator.gangs import GangId, gang_of
from batuta.backends.kube.operator.inbox import Changed, Written
from batuta.backends.kube.operator.node_desk import NodeDesk
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.run import Known, Run, Site
from batuta.backends.kube.operator.unified_run import UnifiedRun
from batuta.backends.kube.operator.usher import BIND, Turned, Usher
from batuta.backends.kube.operator.watched import UNIFIED_JOB, WORKLOAD_GROUP
from batuta.backends.kube.progress.heard import Heard
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core import event as ev
from batuta.core.cluster import NodeName
from batuta.core.job import JobId, JobState

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
        self.runs: dict[JobId, Run] = {}
        self.desks: list[Desk] = []
        self._site = site
        self._usher = usher
        self._observed = observed
        self._cluster: Cluster = site.cluster
        self._nodes = nodes
        self._known = dict(known)
        self._namespaces = frozenset(namespaces)
        self._run_of: dict[str, JobId] = {}
        """By key of a pod: the run that it belongs to."""
        self._orphans: dict[JobId, dict[str, objects.Pod]] = {}
        """Pods of UnifiedJobs that nobody has shown us yet."""
        self._spent: dict[JobId, dict[str, objects.Pod]] | None = {}
        """At the first look, pods that are over: their gang may go on. None when all have been looked at."""
        self._dirty: dict[JobId, None] = {}
        self._due: dict[JobId, float] = {}
        """When runs want to be driven even if nothing happens."""
        self._has_more_room = False
        """Whether a pod or node has come or gone since those were tried that the binder has refused."""
        self._try_s = -math.inf
        self._takers: dict[Any, Callable[[Change[Any], float], None]] = {
            kinds.POD: self._pod,
            kinds.NODE: self._node,
            UNIFIED_JOB: self._unified_job,
            kinds.JOB: self._job,
            kinds.JOB_SET: self._job_set,
            kinds.MPI_JOB: self._mpi_job,
            kinds.POD_GROUP: self._pod_group,
            WORKLOAD_GROUP: self._workload_group,
            kinds.NODE_TOPOLOGY: self._topology,
            kinds.PRIORITY_CLASS: self._priority,
            kinds.NAMESPACE: self._namespace,
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

    def finish_first_look(self, now_s: float) -> None:
        """Everything has been listed once: jobs and nodes of the World that were not found are gone."""
        self._nodes.finish_first_look(now_s)
        self._spent = None
        self.drive(now_s)
        for job in self._known:
            if job not in self.runs:
                detail = "it was gone when the operator started"
                self._site.say(ev.JobEnded(now_s, job, JobState.CANCELLED, "kubernetes", detail=detail))
        self._known.clear()

    # -------------------------------------------------------------------------------------- one turn

    def drive(self, now_s: float) -> None:
        """Does everything that can be done now."""
        for key in self._cluster.tick(now_s):
            self._touch_pod(key)
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
            self._turn_all_away(self._usher.serve(self._is_being_left, now_s), now_s)
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

    def _is_being_left(self, node: NodeName) -> bool:
        """Whether a pod of ours is on its way from a node, so that there will be more room soon."""
        return any(
            key in self._run_of and self._is_leaving(self._observed.pods.get(key))
            for key in self._cluster.pods_on(node)
        )

    def _is_leaving(self, pod: objects.Pod | None) -> bool:
        if pod is None or is_over(pod):
            return False
        run = self.runs.get(self._run_of.get(f"{pod.metadata.namespace}/{pod.metadata.name}", ""))
        if pod.metadata.deletion_timestamp or run is None:
            return bool(pod.metadata.deletion_timestamp)
        if isinstance(run, UnifiedRun):
            return run.leaves(pod)
        # Pods that the binder placed alone, which the World does not know, stay where they are.
        return run.wanted is None and isinstance(run, GangRun) and run.is_booked

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
        job = self._run_of.get(key) or self._owner_of(pod)
        if not job:
            self._note_orphan(key, change)
            if node:
                self._nodes.doubt(node)
            return
        if change.did is Did.DELETED:
            self._run_of.pop(key, None)
            if job in self.runs:
                self.runs[job].lose(key)
            if node:
                self._nodes.doubt(node)
        else:
            self._run_of[key] = job
            self.runs[job].see(pod)
            if node and not self.runs[job].holds(key):
                self._nodes.doubt(node)
        self.touch(job)

    def _note_orphan(self, key: str, change: Change[objects.Pod]) -> None:
        """Keeps the pods of a UnifiedJob that is not known, in case that it comes."""
        meta = change.object.metadata
        name = meta.labels.get(names.JOB_NAME)
        if name is not None:
            job = f"{meta.namespace}/{name}"
            if change.did is not Did.DELETED:
                self._orphans.setdefault(job, {})[key] = change.object
            elif self._orphans.get(job, {}).pop(key, None) and not self._orphans[job]:
                del self._orphans[job]

    def _owner_of(self, pod: objects.Pod) -> JobId:
        """The run that a pod belongs to, made if need be; empty for a pod that is no business of ours."""
        meta = pod.metadata
        name = meta.labels.get(names.JOB_NAME)
        if name is not None:
            job = f"{meta.namespace}/{name}"
            if job in self.runs:
                return job
            # Its job is gone, or was not listed yet.
            return ""
        if pod.spec.scheduler_name != names.SCHEDULER:
            return ""
        if self._namespaces and meta.namespace not in self._namespaces:
            return ""
        gang = gang_of(pod)
        job = str(gang)
        if job not in self.runs:
            if (is_over(pod) or meta.deletion_timestamp) and job not in self._known:
                if self._spent is not None and is_over(pod):
                    self._spent.setdefault(job, {})[pod_key(pod)] = pod
                return ""  # nothing begins with it
            run = self.runs[job] = GangRun(self._site, gang, self._known.pop(job, None))
            for key, spent in (self._spent or {}).pop(job, {}).items():
                self._run_of[key] = job
                run.see(spent)
        return job

    def _touch_pod(self, key: str) -> None:
        job = self._run_of.get(key)
        if job:
            self.touch(job)

    def _drop(self, run: Run) -> None:
        del self.runs[run.id]
        self._due.pop(run.id, None)
        self._usher.forget(run.id)
        self._site.listening.to(run.id, None)
        for key in run.pods():
            self._run_of.pop(key, None)
            node = self._cluster.node_of(key)
            if node:
                self._nodes.doubt(node)
        again = self._observed.unified_jobs.get(run.id)
        if again is not None:
            self._meet(run.id, again)  # another one of the same name came while this one went

    # ---------------------------------------------------------------------------------- other objects

    def _unified_job(self, change: Change[Any], now_s: float) -> None:
        key = self._observed.note(self._observed.unified_jobs, change)
        run = self.runs.get(key)
        if change.did is Did.DELETED:
            if isinstance(run, UnifiedRun):
                run.vanish()
                self.touch(key)
            return
        if isinstance(run, UnifiedRun):
            run.look(change.object)
            self.touch(key)
        else:
            self._meet(key, change.object)

    def _meet(self, key: JobId, job: UnifiedJob) -> None:
        run = UnifiedRun(self._site, self._observed, job, self._known.pop(key, None))
        self.runs[key] = run
        for pod in self._orphans.pop(key, {}).values():
            self._run_of[f"{pod.metadata.namespace}/{pod.metadata.name}"] = key
            run.see(pod)
        self.touch(key)

    def _job(self, change: Change[objects.Batch], now_s: float) -> None:
        key = self._observed.note(self._observed.jobs, change)
        self._touch_owner("job", key, change.object)

    def _job_set(self, change: Change[objects.Batch], now_s: float) -> None:
        key = self._observed.note(self._observed.job_sets, change)
        self._touch_owner("jobset", key, change.object)

    def _mpi_job(self, change: Change[objects.Batch], now_s: float) -> None:
        key = self._observed.note(self._observed.mpi_jobs, change)
        self._touch_owner("mpijob", key, change.object)

    def _pod_group(self, change: Change[objects.PodGroup], now_s: float) -> None:
        key = self._observed.note(self._observed.pod_groups, change)
        self._touch_gang("podgroup", key)

    def _workload_group(self, change: Change[objects.Batch], now_s: float) -> None:
        key = self._observed.note(self._observed.workload_groups, change)
        self._touch_gang("workload", key)

    def _priority(self, change: Change[objects.PriorityClass], now_s: float) -> None:
        name = self._observed.note(self._observed.priorities, change)
        for key, uj in self._observed.unified_jobs.items():
            if uj.spec.priority_class_name == name:
                self.touch(key)

    def _namespace(self, change: Change[objects.Batch], now_s: float) -> None:
        name = self._observed.note(self._observed.namespaces, change)
        if change.did is Did.DELETED:
            self._cluster.namespace_gone(name)
        else:
            self._cluster.namespace_set(name, change.object.metadata.labels)
        if change.object.metadata.deletion_timestamp:
            self._dirty.update(dict.fromkeys(job for job in self.runs if job.startswith(f"{name}/")))

    def _touch_owner(self, kind: str, key: str, owner: objects.Batch) -> None:
        name = owner.metadata.labels.get(names.JOB_NAME)
        if name is not None:
            job = f"{owner.metadata.namespace}/{name}"
            if job in self.runs:
                self.touch(job)
        self._touch_gang(kind, key)

    def _touch_gang(self, kind: str, key: str) -> None:
        namespace, _, name = key.partition("/")
        job = str(GangId(namespace, kind, name))
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
        found: set[str] = set()
        for key in self._cluster.pods_on(node):
            run = self.runs.get(self._run_of.get(key, ""))
            if run is not None and run.holds(key):
                found.add(key)
        return found
