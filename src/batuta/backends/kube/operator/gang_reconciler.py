"""Reconcile a gang of pods without a UnifiedJob: one rigid job of the World, bound where the World places it.

While it waits, its pods show why: in the condition that kube-scheduler writes, and in an event.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import pod_key
from batuta.backends.kube.bounded_text import read_time
from batuta.backends.kube.client.api import Api, Patch
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.crd import time_text
from batuta.backends.kube.operator.context import KnownJob, PodGroup, PodPlacement, ReconcileContext, placement_from
from batuta.backends.kube.operator.gangs import GangId, GangPods, assign_pods, job_of
from batuta.backends.kube.operator.workqueue import build_event, create_event, delete_object, reference
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement, Span
from batuta.core.job import DesiredState, Job, JobId, JobState
from batuta.engine.jobs import reconcile as jobs
from batuta.engine.jobs.outcome import Outcome, RunEnd

UNSCHEDULABLE: Final = "Unschedulable"
TELL_EVERY_S: Final = 30.0
PATIENCE_S: Final = 5.0  # missing members are not reported for so long: they are just being created
BEFORE_ALL: Final = 2**31  # a priority that no pod can have


@dataclass(slots=True, eq=False)
class PendingNotice:
    """What one gang has to say. Methods that return a time may be called again then, to say the rest."""

    context: ReconcileContext
    job: JobId
    refusal: str = ""  # why the last binding was refused; empty since one succeeded
    _why: str = ""
    _told_s: float = -math.inf
    _missing_s: float = math.inf  # since when members were missing first

    def set(self, why: str) -> bool:
        if self.refusal:
            why = f"{why}; when it was tried: {self.refusal}"
        is_news, self._why = why != self._why, why
        return is_news

    def drop(self) -> None:
        """There is nothing to be said; what comes next is said at once."""
        self._why, self._told_s = "", -math.inf

    def tell(self, pods: Iterable[objects.Pod], now_s: float) -> float:
        """Writes it on those of the pods that have no node."""
        told = [pod for pod in pods if not pod.spec.node_name and not _shows(pod, self._why)]
        if not self._why or not told:
            return math.inf
        if now_s < self._told_s + TELL_EVERY_S:
            return self._told_s + TELL_EVERY_S
        self._told_s = now_s
        for pod in told:
            do = partial(_tell, pod, self._why, now_s)
            self.context.writes.ask(f"{self.job}//waits/{pod.metadata.uid}", do, now_s)
        return math.inf

    def tell_missing(self, size: int | None, pods: Sequence[objects.Pod], now_s: float) -> float:
        """Says that members are missing, when they do not come soon."""
        self._missing_s = min(self._missing_s, now_s)
        if now_s < self._missing_s + PATIENCE_S:
            return self._missing_s + PATIENCE_S
        whole = f"of {size} pods" if size is not None else "pods of an unknown number"
        self._why = f"{len(pods)} {whole} of its gang are there; they start together"
        return self.tell(pods, now_s)


@dataclass(slots=True, eq=False)
class UnplannedPlacements:
    """One gang's. While a part of it is bound it goes before all others, and keeps what becomes free.

    When an operator is killed, there is room for all that it was binding; so one of the gangs that are partly
    bound can always be made whole, and they never wait for each other in a circle.
    """

    context: ReconcileContext
    job: JobId
    not_before_s: float = 0.0  # after a refusal: until then it is no use to ask again
    _refusals: int = 0
    _partly_s: float | None = None  # since when only a part of it is bound

    @property
    def is_partly_bound(self) -> bool:
        return self._partly_s is not None

    def note_partly_bound(self, is_partly: bool, now_s: float) -> None:
        if not is_partly:
            self._partly_s = None
        elif self._partly_s is None:
            self._partly_s = now_s

    def back_off(self, now_s: float) -> None:
        self._refusals += 1
        self.not_before_s = now_s + self.context.timing.refusal_backoff.pause_s(self._refusals)

    def forget_refusals(self) -> None:
        self._refusals, self.not_before_s = 0, 0.0

    def ask(self, key: str, pods: Iterable[objects.Pod], now_s: float) -> float:
        """Requests places for all pods without a node together; if it is too soon, when to ask again."""
        waiting = tuple(PodPlacement(pod, None) for pod in pods if not pod.spec.node_name)
        if not waiting:
            return math.inf
        if now_s < self.not_before_s:
            return self.not_before_s
        first = waiting[0].pod
        priority, keeps_until_s = first.spec.priority, 0.0
        if self._partly_s is not None:
            priority, keeps_until_s = BEFORE_ALL, self._partly_s + self.context.timing.gang_timeout_s
        since_s = read_time(first.metadata.creation_timestamp) or 0.0
        self.context.request_binding(PodGroup(key, self.job, waiting, priority, since_s, keeps_until_s))
        return math.inf


class GangReconciler:
    """A gang, or one pod. The binder alone places pods that are unlike each other, and pods without GPUs.

    The binder also places the members that are missing in a gang of which a part is bound without a plan. A bound pod
    cannot be taken back without killing it: the World has such a gang parked, and counts what it holds as used by
    others, until the gang is whole.
    """

    def __init__(self, context: ReconcileContext, gang: GangId, known: KnownJob | None = None) -> None:
        self.id: JobId = str(gang)
        self.wanted: Placement | None = None if known is None else known.placement
        self.is_ending = known is not None and known.is_ending
        self.is_over = False
        self._context = context
        self._pods = GangPods(gang, context.owners, context.has_node)
        self._notice = PendingNotice(context, self.id)
        self._unplanned = UnplannedPlacements(context, self.id)
        self._job = None if known is None else known.job
        self._is_unsure = known is not None
        self._parked_s: float | None = None  # since when the World has it parked; None while it plans for it
        self._extra: set[str] = set()  # pods that came on top of the members that the World knows, by key
        self._has_started = False
        self.due_s = math.inf

    def pods(self) -> Mapping[str, objects.Pod]:
        return self._pods.by_key

    def see(self, pod: objects.Pod) -> None:
        self._pods.by_key[pod_key(pod)] = pod

    def lose(self, key: str) -> None:
        self._pods.by_key.pop(key, None)
        self._extra.discard(key)

    def want(self, placement: Placement | None) -> None:
        self.wanted = placement
        self._has_started = False

    def refused(self, why: str, nodes: Iterable[NodeName], now_s: float) -> None:
        """The others wait again. If some are bound by now, those stay, and the gang is completed."""
        self._unplanned.back_off(now_s)
        self._notice.refusal = why
        if self._job is None or self._parked_s is not None or self._has_started:
            return
        self.wanted = None
        if self._pods.bound():
            self._park(why, now_s)
            return
        avoid, not_before_s = tuple(sorted(set(nodes))), self._unplanned.not_before_s
        self._context.say(ev.JobInterrupted(now_s, self.id, "binder", not_before_s, detail=why, avoid=avoid))

    def leaves(self, pod: objects.Pod) -> bool:
        return self.is_booked and self.wanted is None

    def waits(self, why: str) -> bool:
        """It waits, and this is why; whether that is news."""
        return self._notice.set(why)

    @property
    def is_booked(self) -> bool:
        return self._job is not None and self._parked_s is None

    def holds(self, key: str) -> bool:
        return self.is_booked and key not in self._extra

    @property
    def is_urgent(self) -> bool:
        return self._unplanned.is_partly_bound

    def drive(self, now_s: float) -> None:
        self.due_s = math.inf
        staying = self._pods.staying()
        if self._job is None:
            self._come(staying, now_s)
        elif outcome := self._pods.outcome(self.is_ending):
            self._reconcile(outcome, now_s)
        elif not staying:
            self._park("its pods are gone", now_s)
        else:
            self._give_up_lost(staying, now_s)
            if self._is_unsure:
                self._reconcile(None, now_s)
            if self._parked_s is not None:
                self._become_whole(self._job, staying, now_s)
            else:
                self._reconcile(None, now_s)

    def _reconcile(self, outcome: Outcome | None, now_s: float) -> None:
        """Asks what comes next, and carries it out. It has no restarts: its owner makes pods again."""
        is_deleted = outcome is not None and outcome.end is RunEnd.STOPPED
        # The kubelet sees to it that pods end in time, and pods of others are not asked to save.
        desired = jobs.Desired(self.wanted, is_ending=self.is_ending or is_deleted, grace=jobs.Grace(stop_s=math.inf))
        run = jobs.ObservedRun(
            jobs.RunPhase.RUNNING if self._has_started else jobs.RunPhase.STARTING,
            jobs.Fit.RESTART if self.wanted is None else jobs.Fit.SAME,
            is_adopted=outcome is not None or not self._is_unsure,
            is_announced=self._has_started,
            outcome=outcome,
        )
        has_failed = outcome is not None and outcome.end is RunEnd.FAILED
        for action in jobs.reconcile(desired, jobs.Observed(run, failures=int(has_failed)), now_s).actions:
            self._carry_out(action, now_s)

    def _carry_out(self, action: jobs.Action, now_s: float) -> None:
        assert self._job is not None
        match action:
            case jobs.Adopt():
                self._take_up(self._job, now_s)
            case jobs.Maintain():
                assert self.wanted is not None
                self._take_seats(self._job, self.wanted, self._pods.staying(), now_s)
            case jobs.Stop():
                self._clear(self._pods.staying(), now_s)
            case jobs.Conclude(state, outcome):
                self._leave(state, outcome.detail, now_s)
            case jobs.GiveUp(outcome):
                self._leave(JobState.FAILED, outcome.detail, now_s)

    def _come(self, staying: Sequence[objects.Pod], now_s: float) -> None:
        """Becomes a job of the World once all members are there."""
        if not staying:
            self.is_over = not self._pods.alive()
            return
        first, bound = staying[0], self._pods.bound()
        size = self._pods.size(first)
        if any(pod.spec.scheduling_gates for pod in staying):
            return
        if not bound and (size is None or len(staying) < size):
            self._look_again(self._notice.tell_missing(size, staying, now_s))
            return
        cls = self._context.cluster.class_of(first)
        alike = all(self._context.cluster.class_of(pod) is cls for pod in staying)
        unclear = size is None or len(staying) < size or any(not span.gpus for span in bound.values())
        if not alike or not (cls.gpus or cls.share) or (bound and unclear):
            # Unlike, without GPUs, partly over, or bound by another scheduler: the World cannot plan it.
            self._unplanned.note_partly_bound(bool(bound) and len(bound) < len(staying), now_s)
            self._look_again(self._unplanned.ask(self.id, staying, now_s))
            self._look_again(self._notice.tell(staying, now_s))
            return
        assert size is not None
        self._job = job_of(self.id, first, cls, max(size, len(bound)))
        if self.id in self._context.past:
            self._context.past.discard(self.id)
            self._context.say(ev.JobForgotten(now_s, self.id))
        self._context.say(ev.JobSubmitted(now_s, self._job, cause="kubernetes"))
        self._notice.drop()
        self._take_up(self._job, now_s)
        if self._parked_s is not None:
            self._become_whole(self._job, staying, now_s)

    def _take_up(self, job: Job, now_s: float) -> None:
        """Tells the World of pods that were bound before it looked."""
        self._is_unsure = False
        bound = self._pods.bound()
        if not bound:
            return
        members = job.replicas
        if self.wanted is not None:
            assignment = assign_pods(bound, self.wanted.workers(job.gpus_per_replica))
            if not assignment.free or not assignment.leave:
                # As planned, if not all of them yet; pods elsewhere are extra.
                self._extra.update(assignment.leave)
                if not assignment.free:
                    self._be_found(self.wanted, assignment.stay, now_s)
                return
        if len(bound) >= members:
            self._report_bound(members, bound, now_s)
        else:
            self._park("a part of its pods is bound", now_s)

    def _report_bound(self, members: int, bound: Mapping[str, Span], now_s: float) -> None:
        keys = list(bound)
        self._extra = set(keys[members:])
        self._be_found(placement_from([bound[key] for key in keys[:members]]), keys[:members], now_s)

    def _be_found(self, placement: Placement, pods: Iterable[str], now_s: float) -> None:
        self.wanted = placement
        by_key = self._pods.by_key
        self._has_started = all(by_key[key].status.phase == "Running" for key in pods)
        self._context.say(ev.JobFound(now_s, self.id, placement, self._has_started, cause="kubernetes"))

    def _park(self, why: str, now_s: float) -> None:
        """There is nothing to plan: no member is left that could run, or those that run cannot be moved."""
        if self._parked_s is None:
            self._parked_s, self.wanted = now_s, None
            self._context.say(ev.JobInterrupted(now_s, self.id, "kubernetes", detail=why))
            self._context.say(ev.JobWished(now_s, self.id, DesiredState.PARK, cause="kubernetes"))

    def _become_whole(self, job: Job, staying: Sequence[objects.Pod], now_s: float) -> None:
        """Requests places for missing members; the World plans again when all or none have one."""
        assert self._parked_s is not None
        members, bound = job.replicas, self._pods.bound()
        lasting = self._pods.lasting(members) or members
        self._unplanned.note_partly_bound(0 < len(bound) < lasting, now_s)
        if len(bound) >= lasting or (not bound and len(staying) >= lasting):
            self._parked_s = None
            self._context.say(ev.JobWished(now_s, self.id, DesiredState.RUN, cause="kubernetes"))
            if bound:
                self._ask_for(lasting, job, now_s)
                self._report_bound(lasting, bound, now_s)
            return
        late_s = self._parked_s + self._context.timing.gang_timeout_s
        if bound and now_s >= late_s and self._pods.are_made_anew():
            for key in bound:
                self._delete(self._pods.by_key[key], now_s)
            return
        self.due_s = late_s if now_s < late_s else math.inf
        if bound and len(staying) >= lasting:
            self._look_again(self._unplanned.ask(self.id, staying, now_s))
        self._look_again(self._notice.tell(staying, now_s))

    def _take_seats(self, job: Job, wanted: Placement, staying: Sequence[objects.Pod], now_s: float) -> None:
        workers = wanted.workers(job.gpus_per_replica)
        bound = {key: span for key, span in self._pods.bound().items() if key not in self._extra}
        assignment = assign_pods(bound, workers)
        for key in assignment.leave:
            self._delete(self._pods.by_key[key], now_s)
        waiting = [pod for pod in staying if not pod.spec.node_name]
        if len(waiting) >= len(assignment.free) > 0:
            if self._is_held_off(staying, now_s):
                return
            pairs = list(zip(waiting, assignment.free, strict=False))
            self._extra.difference_update(pod_key(pod) for pod, _ in pairs)
            placements = tuple(PodPlacement(pod, workers[k]) for pod, k in pairs)
            self._context.request_binding(PodGroup(self.id, self.id, placements, job.priority, job.submit_s))
        elif assignment.free:
            stay = [workers[k] for k in assignment.stay.values()]
            self._shrink(job, [*stay, *(workers[k] for k in assignment.free[: len(waiting)])], staying, now_s)
        else:
            if not self._has_started:
                self._start(assignment.stay, now_s)
            elif not waiting:
                self._forget_refusals()
            if self._has_started and waiting:
                self._extra.update(map(pod_key, waiting))
                self._look_again(self._unplanned.ask(f"{self.id}+", waiting, now_s))
                self._look_again(self._notice.tell(staying, now_s))

    def _is_held_off(self, staying: Sequence[objects.Pod], now_s: float) -> bool:
        """Whether a member of a gang that runs was refused its place just now: the World knows nothing of it,
        and would never let it wait.
        """
        if not self._has_started or now_s >= self._unplanned.not_before_s:
            return False
        self._notice.set("its place is not free")
        self._look_again(self._notice.tell(staying, now_s))
        self._look_again(self._unplanned.not_before_s)
        return True

    def _shrink(self, job: Job, places: Sequence[Span], staying: Sequence[objects.Pod], now_s: float) -> None:
        """Members have ended while others go on: what they held is free. (Who is only lost comes again.)"""
        members = job.replicas
        if places and len(places) == self._pods.lasting(members) < members:
            self._ask_for(len(places), job, now_s)
            self.wanted, self._has_started = placement_from(places), False
            self._context.say(ev.JobFound(now_s, self.id, self.wanted, cause="kubernetes"))
            assert self._job is not None
            self._take_seats(self._job, self.wanted, staying, now_s)

    def _give_up_lost(self, staying: Sequence[objects.Pod], now_s: float) -> None:
        """Pods on nodes that are gone run no more: with them gone, others are made at once."""
        lost = [pod for pod in staying if pod.spec.node_name and not self._context.has_node(pod.spec.node_name)]
        if lost and self._pods.are_made_anew():
            for pod in lost:
                self._delete(pod, now_s)

    def _ask_for(self, members: int, job: Job, now_s: float) -> None:
        gpus = members * job.gpus_per_replica
        if gpus != job.size:
            self._job = replace(job, size=gpus, min=gpus, max=gpus)
            self._context.say(ev.JobChanged(now_s, self._job, cause="kubernetes"))

    def _start(self, stay: Iterable[str], now_s: float) -> None:
        if all(self._pods.by_key[key].status.phase not in ("", "Pending") for key in stay):
            self._has_started = True
            self._forget_refusals()
            self._context.say(ev.JobStarted(now_s, self.id, cause="kubernetes"))

    def _forget_refusals(self) -> None:
        self._unplanned.forget_refusals()
        self._notice.refusal = ""

    def _clear(self, staying: Sequence[objects.Pod], now_s: float) -> None:
        """The World wants its GPUs: bound pods are deleted; their owner creates others, which wait."""
        self._has_started = False
        for pod in staying:
            if pod.spec.node_name or self.is_ending:
                self._delete(pod, now_s)
        self._look_again(self._notice.tell(staying, now_s))

    def _leave(self, state: JobState, detail: str, now_s: float) -> None:
        self._context.say(ev.JobEnded(now_s, self.id, state, cause="kubernetes", detail=detail))
        self._context.past.add(self.id)
        self.wanted = None
        self._job = None
        self.is_over = True

    def tell_why(self, now_s: float) -> None:
        self._look_again(self._notice.tell(self._pods.staying(), now_s))

    def _look_again(self, due_s: float) -> None:
        self.due_s = min(self.due_s, due_s)

    def _delete(self, pod: objects.Pod, now_s: float) -> None:
        meta = pod.metadata
        self._context.writes.ask(f"{self.id}//delete/{meta.uid}", partial(delete_object, POD, meta), now_s)


def _shows(pod: objects.Pod, message: str) -> bool:
    return any(
        one.type == "PodScheduled" and one.status == "False" and one.message == message for one in pod.status.conditions
    )


async def _tell(pod: objects.Pod, message: str, now_s: float, api: Api) -> None:
    """Writes on a pod why it waits, and an event beside it."""
    meta = pod.metadata
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": UNSCHEDULABLE,
        "message": message,
        "lastTransitionTime": time_text(now_s),
    }
    body = {"status": {"conditions": [condition]}}
    try:
        await api.patch(POD, meta.name, body, meta.namespace, how=Patch.STRATEGIC, subresource="status")
    except NotFound:
        return
    event = build_event(
        reference(POD, meta),
        "FailedScheduling",
        message,
        now_s,
        "Warning",
        said=message,
        action="Scheduling",
        controller=names.SCHEDULER,
    )
    await create_event(event, api)
