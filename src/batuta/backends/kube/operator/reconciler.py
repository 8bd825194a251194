"""The operator's reconcile loop, in the engine's thread: changes come in, events and writes go out.

A `Controller` looks after one concern besides jobs and nodes, such as quota, health or trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from batuta.backends.kube import objects
from batuta.backends.kube.binder.cluster import Cluster, is_over, pod_key
from batuta.backends.kube.bounded_text import read_time
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import JobReconciler, KnownJob, ReconcileContext
from batuta.backends.kube.operator.gang_binder import BIND, BindFailure, GangBinder
from batuta.backends.kube.operator.gang_reconciler import GangReconciler
from batuta.backends.kube.operator.node_controller import NodeController
from batuta.backends.kube.operator.owner_index import ChangeHandler, OwnerIndex, ReferenceIndex
from batuta.backends.kube.operator.placement_claims import PlacementClaims
from batuta.backends.kube.operator.quarantine import Quarantine
from batuta.backends.kube.operator.unified_job_reconciler import UnifiedJobReconciler
from batuta.backends.kube.operator.workqueue import Changed, Unreadable, Written
from batuta.backends.kube.progress.log_lines import LogReport
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.core import event as ev
from batuta.core.cluster import NodeName
from batuta.core.job import JobId, JobState
from batuta.engine.fence import Fence, NoFence


class Controller(Protocol):
    """Gets all changes of the API server, and a turn whenever the reconciler has one. Level-triggered."""

    def take(self, changed: Changed, now_s: float) -> None:
        """Objects have changed; a controller ignores most kinds."""

    def heard(self, written: Written, now_s: float) -> None:
        """A write is done that no job has asked for."""

    def drive(self, now_s: float) -> None:
        """Does everything that can be done now."""

    def next_s(self) -> float:
        """When it wants a turn even if nothing happens."""


STUCK_AFTER_S = 60.0
"""A pod that should have ended so long ago is not waited for: its node hangs, or a finalizer holds it."""
LOOK_AGAIN_S = 30.0  # a job that could not be handled is looked at again after this
JOBS, REPORTS, ANSWERS = "jobs", "progress reports", "answers to writes"
"""Parts that may fail for one job, and hold up no other."""
FOREIGN_USE = "what others use of nodes"
TRY_EVERY_S = 1.0  # pods that the binder alone has refused are tried again so often at most


class Reconciler:
    """Drives every job towards what the World wants of it, and tells the World what becomes of it."""

    def __init__(
        self,
        context: ReconcileContext,
        gang_binder: GangBinder,
        observed: ObjectCache,
        nodes: NodeController,
        known: Mapping[JobId, KnownJob],
        namespaces: Collection[str] = (),
        fence: Fence | None = None,
    ) -> None:
        """`known`: jobs that the World has from before. They are looked for; who is not found is over.

        `namespaces`: where jobs may be; pods of others are none of ours. Empty for everywhere.
        """
        self._fence = fence or NoFence()
        self.quarantine = Quarantine(self._fence, context.writes)
        self._owner_index = OwnerIndex(context, observed, known, namespaces)
        self.runs: dict[JobId, JobReconciler] = self._owner_index.runs  # all jobs that there are now
        self.settled = observed.settled  # UnifiedJobs that are over and done with
        self.controllers: list[Controller] = []
        self._context = context
        self._gang_binder = gang_binder
        self._observed = observed
        self._cluster: Cluster = context.cluster
        self._nodes = nodes
        self._claims = PlacementClaims(context.cluster)
        self._referred = ReferenceIndex(observed, context.cluster, self.runs)
        self._dirty: dict[JobId, None] = {}
        self._due: dict[JobId, float] = {}  # when runs want to be driven even if nothing happens
        self._has_more_room = False
        """Whether a pod or node has come or gone since those were tried that the binder has refused."""
        self._try_s = -math.inf
        self._ended: dict[JobId, None] = {}  # jobs that are over and may be done with
        self.needs: list[Callable[[JobId], bool]] = []  # who still needs a job that is over, beside itself
        self._takers: dict[Kind[Any], Callable[[Change[Any], float], None]] = {
            kinds.NODE: partial(self._node, nodes.node),
            kinds.NODE_TOPOLOGY: partial(self._node, nodes.topology),
            UNIFIED_JOB: self._unified_job,
            **{kind: partial(self._concern, taker) for kind, taker in self._referred.takers.items()},
        }

    def take(self, changed: Changed, now_s: float) -> None:
        """Takes in what the API server has shown."""
        if changed.kind is kinds.POD:
            self._take_pods(changed, now_s)
            return
        taker = self._takers.get(changed.kind, _ignore)
        self.quarantine.take(changed.kind, changed.changes, lambda change: taker(change, now_s), now_s)
        for controller in self.controllers:
            self._hand_to(controller, changed, now_s)

    def _take_pods(self, changed: Changed, now_s: float) -> None:
        """All parts see pods with the GPUs that they are believed to hold."""
        checked: list[Change[Any]] = []

        def take_one(change: Change[Any]) -> None:
            checked.append(self._claims.checked(change))
            self._pod(checked[-1], now_s)

        self.quarantine.take(kinds.POD, changed.changes, take_one, now_s)
        for controller in self.controllers:
            self._hand_to(controller, replace(changed, changes=checked), now_s)

    def _hand_to(self, controller: Controller, changed: Changed, now_s: float) -> None:
        """All changes together; and where that fails one by one, so that one object costs no other its turn."""
        try:
            controller.take(changed, now_s)
        except Exception as error:
            if not changed.changes:
                self._fence.failed(type(controller).__name__, error)

            def take_one(change: Change[Any]) -> None:
                controller.take(replace(changed, changes=(change,)), now_s)

            self.quarantine.take(changed.kind, changed.changes, take_one, now_s)

    def unreadable(self, found: Unreadable, now_s: float) -> None:
        """Takes in that an informer could not decode an object; what was known of it before still holds."""
        if found.is_gone:
            self.quarantine.release(found.kind, found.metadata)
        else:
            self.quarantine.add(found.kind, found.metadata, ValueError(found.why), now_s)

    def heard(self, written: Written, now_s: float) -> None:
        """Takes in the answer to a write."""
        self._context.writes.heard(written, now_s)
        with self._fence.around(ANSWERS):
            self._hear(written, now_s)

    def _hear(self, written: Written, now_s: float) -> None:
        if written.key.startswith(BIND):
            self._refuse(now_s, self._gang_binder.heard(written, now_s))
            return
        job, _, what = written.key.partition("//")
        run = self.runs.get(job)
        if run is not None:
            # Its controller looks again: for what could not be written meanwhile, or has to be again.
            if written.error is not None and isinstance(run, UnifiedJobReconciler):
                run.failed(what, written.error.message)
            self.touch(job)
            return
        self._ask_controllers(lambda controller: controller.heard(written, now_s))

    def listened(self, heard: LogReport, now_s: float) -> None:
        """Takes in what a job has said in its log."""
        run, is_worth = self.runs.get(heard.job), False
        with self._fence.around(REPORTS):
            is_worth = isinstance(run, UnifiedJobReconciler) and run.hear(heard, now_s)
        if is_worth:
            self.touch(heard.job)

    def _ask_controllers(self, act: Callable[[Controller], None]) -> None:
        for controller in self.controllers:
            with self._fence.around(type(controller).__name__):
                act(controller)

    def touch(self, job: JobId) -> None:
        """Something else is wanted of a job, or has happened to it."""
        self._dirty[job] = None

    def job_of(self, pod: str) -> JobId | None:
        run = self._owner_index.run_of(pod)
        return None if run is None else run.id

    def forget(self, job: JobId) -> None:
        run = self.runs.get(job)
        if run is not None and run.is_booked:
            raise ValueError(f"job {job} is not over")
        self._context.past.discard(job)

    def finish_first_look(self, now_s: float) -> None:
        """Everything has been listed once: jobs and nodes of the World that were not found are gone."""
        self._claims.is_first_look = False
        self._nodes.finish_first_look(now_s)
        self._owner_index.finish_first_look()
        self.drive(now_s)
        for job in self._owner_index.missing():
            detail = "it was gone when the operator started"
            self._context.say(ev.JobEnded(now_s, job, JobState.CANCELLED, "kubernetes", detail=detail))

    def drive(self, now_s: float) -> None:
        """Does everything that can be done now."""
        for owner in filter(None, map(self._owner_index.run_of, self._cluster.tick(now_s))):
            self.touch(owner.id)
        for key in self._context.writes.due(now_s):
            self.touch(key.partition("//")[0])
        self._observed.settled.drive(self._context.writes, now_s)
        self._refuse(now_s, *self._gang_binder.retry(now_s))
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
            self._refuse(now_s, *self._gang_binder.serve(partial(self._is_being_left, now_s), now_s))
        self._tell_refused(tried, now_s)
        self._nodes.doubt(*self._gang_binder.given)
        self._gang_binder.given.clear()
        with self._fence.around(FOREIGN_USE):
            self._nodes.tell_others(self._booked_on, now_s)
        self._ask_controllers(lambda controller: controller.drive(now_s))
        self._settle_all(now_s)
        self._context.writes.send()
        self._context.listening.send()

    def guard(self, job: JobId, act: Callable[[], object], now_s: float) -> bool:
        """Does something for one job; whether that worked. What is raised holds up that job, and no other."""
        try:
            act()
        except Exception as error:
            self._break(job, error, now_s)
            return False
        return True

    def _break(self, job: JobId, error: Exception, now_s: float) -> None:
        """A job could not be handled: its object says so, and it is looked at again by and by."""
        error.add_note(f"job {job}")
        run = self.runs.get(job)
        self._due[job] = now_s + LOOK_AGAIN_S
        kind, meta = _shown_on(run)
        self.quarantine.add(kind, meta, error, now_s, step="drive", part=JOBS)
        if isinstance(run, UnifiedJobReconciler):
            with suppress(Exception):  # what is wrong with it may be in its way here, too
                run.broke(error, now_s)

    def _drive(self, run: JobReconciler, now_s: float) -> None:
        was_booked = run.is_booked
        if not self.guard(run.id, partial(run.drive, now_s), now_s):
            return
        if self.quarantine:
            self.quarantine.release(*_shown_on(run), "drive")
        self._note_due(run)
        if run.is_booked != was_booked:
            self._nodes.doubt(*filter(None, map(self._cluster.node_of, run.pods())))
        if run.is_over:
            self._drop(run)
        elif isinstance(run, UnifiedJobReconciler) and run.is_settled:
            self._ended[run.id] = None

    def _note_due(self, run: JobReconciler) -> None:
        if run.due_s < math.inf:
            self._due[run.id] = run.due_s
        else:
            self._due.pop(run.id, None)

    def next_s(self) -> float:
        """When something is to be done even if nothing happens until then."""
        try_s = self._try_s if self._has_more_room and self._gang_binder.refusals else math.inf
        due_s = min(self._due.values(), default=math.inf)
        desks_s = min((controller.next_s() for controller in self.controllers), default=math.inf)
        own_s = min(self._observed.settled.next_s(), self._context.writes.next_s(), self._gang_binder.next_s())
        return min(due_s, try_s, desks_s, own_s)

    def _try_again(self, now_s: float) -> None:
        """There is more room than before: whom the binder has refused asks again, but not all the time."""
        if not self._has_more_room or not self._gang_binder.refusals:
            return
        is_time = now_s >= self._try_s
        for job in self._gang_binder.refusals:
            run = self.runs.get(job)
            if is_time or (run is not None and run.is_urgent):
                self.touch(job)
        if is_time:
            self._has_more_room, self._try_s = False, now_s + TRY_EVERY_S

    def _tell_refused(self, jobs: Iterable[JobId], now_s: float) -> None:
        """Lets the pods say why they wait for which the binder alone has found no node."""
        for job in jobs:
            run, refusal = self.runs.get(job), self._gang_binder.refusals.get(job)
            if isinstance(run, GangReconciler) and refusal is not None and run.waits(refusal.message):
                self.guard(job, partial(run.tell_why, now_s), now_s)
                self._note_due(run)

    def _refuse(self, now_s: float, *failures: BindFailure | None) -> None:
        for failure in filter(None, failures):
            job = failure.pod_group.job
            if job in self.runs:
                self.guard(job, partial(self.runs[job].refused, failure.why, failure.nodes, now_s), now_s)
                self.touch(job)
            if failure.fault is not None:
                self._break(job, failure.fault, now_s)

    def _is_being_left(self, now_s: float, node: NodeName) -> bool:
        return any(self._is_leaving(key, now_s) for key in self._cluster.pods_on(node))

    def _is_leaving(self, key: str, now_s: float) -> bool:
        pod, run = self._observed.pods.get(key), self._owner_index.run_of(key)
        if pod is None or is_over(pod):
            return False
        deleted = pod.metadata.deletion_timestamp
        if run is None:
            # A job that is over and forgotten, or the pod of another owner. The time is when its grace ends.
            return bool(deleted) and now_s < (read_time(deleted) or 0.0) + STUCK_AFTER_S
        leaves: list[bool] = []
        self.guard(run.id, lambda: leaves.append(bool(deleted) or run.leaves(pod)), now_s)
        return leaves == [True]

    def _pod(self, change: Change[objects.Pod], now_s: float) -> None:
        pod = change.object
        key = self._observed.note(self._observed.pods, change)
        node = pod.spec.node_name
        if change.did is ChangeType.DELETED:
            self._cluster.pod_gone(key)
            self._refuse(now_s, self._gang_binder.lost(pod))
        else:
            self._cluster.pod_set(pod)
            if node:
                self._refuse(now_s, self._gang_binder.saw(pod))
        if node and (change.did is ChangeType.DELETED or is_over(pod)):
            self._dirty.update(dict.fromkeys(self._gang_binder.left(node)))
            self._has_more_room = True
        elif node and (change.old is None or not change.old.spec.node_name):
            self._has_more_room = True  # for those that want to be near it
        self._note_owner(pod, change.did is ChangeType.DELETED)

    def _note_owner(self, pod: objects.Pod, is_gone: bool) -> None:
        """Lets the run look that a pod belongs to. What others hold of a node is the World's business too."""
        run = self._owner_index.lose(pod) if is_gone else self._owner_index.see(pod)
        if run is None and is_over(pod):
            self._observed.pods.pop(pod_key(pod), None)  # it holds nothing and has no owner
        node = pod.spec.node_name
        if node and (is_gone or run is None or not run.holds(pod_key(pod))):
            self._nodes.doubt(node)
        if run is not None:
            self.touch(run.id)

    def _settle_all(self, now_s: float) -> None:
        """Puts finished jobs aside. Should their objects change, they are met again."""
        for job in list(self._ended):
            self.guard(job, partial(self._settle, job), now_s)

    def _settle(self, job: JobId) -> None:
        run = self.runs.get(job)
        if not isinstance(run, UnifiedJobReconciler) or not run.is_settled:
            del self._ended[job]
        elif not self._context.writes.is_busy(f"{job}//") and not any(needs(job) for needs in self.needs):
            del self._ended[job]
            self._observed.settle(run.uj, run.pods(), run.expires_s)
            self._context.writes.forget_all(f"{job}//")
            self._drop(run)

    def _drop(self, run: JobReconciler) -> None:
        self._due.pop(run.id, None)
        for key in run.pods():
            if (pod := self._observed.pods.get(key)) is None or is_over(pod):
                self._observed.pods.pop(key, None)
                self._cluster.pod_gone(key)
        self._gang_binder.forget(run.id)
        self._context.listening.to(run.id, None)
        self._nodes.doubt(*filter(None, map(self._cluster.node_of, run.pods())))
        if self._owner_index.drop(run):
            self.touch(run.id)

    def _unified_job(self, change: Change[UnifiedJob], now_s: float) -> None:
        key = self._observed.note(self._observed.unified_jobs, change)
        self._observed.settled.discard(key)
        if change.did is not ChangeType.DELETED:
            self._owner_index.meet(change.object)
            self.touch(key)
        elif isinstance(run := self.runs.get(key), UnifiedJobReconciler):
            run.look(None)
            self.touch(key)

    def _concern(self, taker: ChangeHandler, change: Change[Any], now_s: float) -> None:
        for job in taker(change):
            if job in self.runs:
                self.touch(job)

    def _node(self, take: Callable[[Change[Any], float], None], change: Change[Any], now_s: float) -> None:
        take(change, now_s)
        self._has_more_room = True

    def _booked_on(self, node: NodeName) -> set[str]:
        pods = ((key, self._owner_index.run_of(key)) for key in self._cluster.pods_on(node))
        return {key for key, run in pods if run is not None and run.holds(key)}


def _ignore(change: Change[Any], now_s: float) -> None:
    """Takes a kind that only controllers look at."""


def _shown_on(run: JobReconciler | None) -> tuple[Kind[Any], objects.Meta]:
    """The object on which users look for what became of a job: its UnifiedJob, or a pod of its gang."""
    if isinstance(run, UnifiedJobReconciler):
        return UNIFIED_JOB, run.uj.metadata
    pods = () if run is None else run.pods().values()
    return kinds.POD, next((pod.metadata for pod in pods), objects.Meta())
