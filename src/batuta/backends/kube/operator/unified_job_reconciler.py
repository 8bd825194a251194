"""Reconcile one UnifiedJob: its spec and the World's placement become children, their state becomes events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.bounded_text import read_time
from batuta.backends.kube.jobtypes.job_type import JobStatus, JobType, Outcome, Run
from batuta.backends.kube.operator.cache import ObjectCache, delete_unified_job
from batuta.backends.kube.operator.context import KnownJob, ReconcileContext, placement_from
from batuta.backends.kube.operator.replica_controller import (
    Children,
    MisplacedPod,
    ReplicaController,
    Started,
    Unmakeable,
)
from batuta.backends.kube.operator.run_state import PodSet, RunState
from batuta.backends.kube.operator.unified_job_status import (
    DEADLINE,
    EventReason,
    EventRecorder,
    Outlook,
    StatusWriter,
    counted,
    ending_of,
)
from batuta.backends.kube.progress.log_lines import LogReport
from batuta.backends.kube.progress.trainer_session import TrainerSession, grace_s
from batuta.backends.kube.unified_job.model import UnifiedJob, with_tolerations
from batuta.backends.kube.unified_job.to_job import JobRequest, read_request, settle_size
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement
from batuta.core.job import DesiredState, Job, JobId, JobState, SizeChoice
from batuta.core.reason import Reason
from batuta.engine.fence import sentence
from batuta.engine.jobs import reconcile as jobs
from batuta.engine.jobs.outcome import Outcome as RunOutcome
from batuta.engine.jobs.outcome import RunEnd

_ENDS: Final = {Outcome.SUCCEEDED: RunEnd.SUCCEEDED, Outcome.FAILED: RunEnd.FAILED, Outcome.DISRUPTED: RunEnd.LOST}
_ASK_AGAIN_S: Final = 0.25  # before it is asked again whether a failure is the job's own


class UnifiedJobReconciler:
    """Level-triggered: whatever is there when it is driven, it does the next step towards what is wanted."""

    is_urgent = False

    def __init__(
        self, context: ReconcileContext, observed: ObjectCache, job: UnifiedJob, known: KnownJob | None = None
    ) -> None:
        self.id: JobId = job.id
        self.wanted: Placement | None = None if known is None else known.placement
        self.is_ending = known is not None and known.is_ending
        self.is_over = False
        self.uj = job
        self.outlook = Outlook()  # what the World thinks of it, for the status
        self.failures = job.status.failures
        self._context = context
        self._observed = observed
        self._pod_set = PodSet(job.metadata.uid)
        self._run_state = RunState(self._pod_set)
        self._children = Children(context, observed)
        self._session = TrainerSession(context, job.id)
        self._replica_controller = ReplicaController(context, self._run_state, self._children, self._session)
        self._status = StatusWriter(context)
        self._recorder = EventRecorder(context)
        self._request: JobRequest | None = None  # what the World knows of it; None while it does not
        self.size_choice: SizeChoice | None = None
        """Why it asks for the size that it does, where its user left that open."""
        if known is not None:
            self._request = JobRequest(known.job, DesiredState.PARK if known.is_parked else DesiredState.RUN)
            self.size_choice = known.job.size_choice
        self._tolerations: tuple[dict[str, Any], ...] = ()
        """What its pods tolerate beyond what their template says, from the admission gate."""
        self._is_told = False  # it is over, and nothing more is to be said to the World
        self._has_vanished = False  # the object is gone: there is nothing to write to
        self._is_silent = False  # it was finished when it was first seen: there is nothing to be said to people
        self._is_announced = False  # the World knows that it is going
        self._deadline_s = math.inf  # until when the checkpoint that was asked for is waited for
        self._has_looked = False  # it was looked for a run that an operator before this one had begun
        self._refusals = 0
        self._attempt = (-1, 0.0)  # the start that is on its way, and since when
        self._failed_s = math.inf  # when that was first seen to have failed
        self.due_s = math.inf  # when it wants to be driven even if nothing happens

    def pods(self) -> Mapping[str, objects.Pod]:
        return self._pod_set.pods

    def see(self, pod: objects.Pod) -> None:
        self._pod_set.see(pod)

    def lose(self, key: str) -> None:
        self._pod_set.lose(key)

    def look(self, job: UnifiedJob | None) -> None:
        """The object has changed; None: it is gone."""
        if job is None or job.metadata.uid != self.uj.metadata.uid:
            self._has_vanished = True
        else:
            self.uj = job

    def failed(self, write: str, why: str) -> None:
        """A write did not work, and is tried again when it may be."""
        self._children.failed(write, why)
        self._status.failed(write)
        self._session.failed(write)

    def hear(self, heard: LogReport, now_s: float) -> bool:
        """Its script has said something in the log; whether it shall be driven for that."""
        return self._session.hear(heard, now_s, is_alive=self.is_booked)

    @property
    def result(self) -> str | None:
        return self._session.result or self.uj.status.result

    @property
    def _job(self) -> Job | None:
        return None if self._request is None else self._request.job

    @property
    def run(self) -> Run | None:
        return self._run_state.run

    @property
    def has_started(self) -> bool:
        return self._run_state.has_started

    @property
    def replicas(self) -> int:
        return 0 if self.run is None or self.wanted is None else self.run.target

    def leaves(self, pod: objects.Pod) -> bool:
        if self.wanted is None or pod.metadata.deletion_timestamp or self._session.is_asking:
            return True
        return self._run_state.leaves(pod, self._kind)

    @property
    def is_booked(self) -> bool:
        """It was understood, and is not over."""
        return self._job is not None and not self._is_told

    @property
    def is_settled(self) -> bool:
        """Whether it is over, its object says so, and nothing of it is left that could still change."""
        return (
            self._is_told
            and not self._has_vanished
            and not self.uj.metadata.deletion_timestamp
            and (self._is_silent or self._status.is_shown)
            and self.uj.is_over
            and all(map(is_over, self._pod_set.pods.values()))
        )

    @property
    def expires_s(self) -> float:
        """When its object is to be deleted, if it is over: by its user's own word."""
        ttl_s, ended_s = self.uj.spec.ttl_seconds_after_finished, read_time(self.uj.status.completion_time)
        return math.inf if ttl_s is None or not ended_s else ended_s + ttl_s

    def holds(self, key: str) -> bool:
        """The World knows of its workers; launchers have no GPUs and are placed by the binder alone."""
        pod, kind = self.pods().get(key), self._kind
        return self.is_booked and pod is not None and kind is not None and kind.replica_of(pod) is not None

    def want(self, placement: Placement | None) -> None:
        """The World has decided where it shall be; None for nowhere. It waits to hear of a start again."""
        self.wanted = placement
        self._run_state.has_started = False

    def refused(self, why: str, nodes: Iterable[NodeName], now_s: float) -> None:
        """New members of a running job go, and it stays as it was; a job that was starting waits again."""
        if self._job is None or self.run is None:
            return
        self._refusals += 1
        pause_s = self._context.timing.refusal_backoff.pause_s(self._refusals)
        avoid, not_before_s = tuple(sorted(set(nodes))), now_s + pause_s
        self.outlook.cause = why
        self._recorder.tell(self.uj, EventReason.NOT_PLACED, why, now_s)
        if self._run_state.can_go_back(self._kind):
            self.wanted = self._run_state.go_back()
            self._context.say(
                ev.JobFound(now_s, self.id, self.wanted, True, not_before_s, avoid, cause="binder", detail=why)
            )
        else:
            self.wanted = None
            self._context.say(ev.JobInterrupted(now_s, self.id, "binder", not_before_s, detail=why, avoid=avoid))

    def broke(self, error: Exception, now_s: float) -> None:
        """The last turn failed by a fault of ours: its object says so until one works."""
        self.outlook.fault = f"a fault of the operator, not of the job: {sentence(error)} (its log has the details)"
        if not self._has_vanished and not self._is_silent:
            self._status.write(self, now_s)

    def drive(self, now_s: float) -> None:
        self.due_s, self.outlook.fault = math.inf, ""
        if self.uj.spec.managed_by not in ("", names.MANAGED_BY):
            self.is_over = self._has_vanished
            return
        meta = self.uj.metadata
        if self._has_vanished or meta.deletion_timestamp or self._observed.is_going(meta.namespace):
            self._go(now_s)
        elif self._is_told or self.uj.is_over:
            self._rest(now_s)
        elif self._read_spec(now_s) or self._job is not None:
            self._work(now_s)
        self._session.listen(self._kind, self._pod_set.pods.values())
        self.due_s = min(self.due_s, self._session.watch(meta.labels, now_s))
        if not self._has_vanished and not self._is_silent:
            self._status.write(self, now_s)
            self.due_s = min(self.due_s, self._status.due_s)

    def _read_spec(self, now_s: float) -> bool:
        """Tells the World what is wanted now. False when that is not understood, or the gate forbids it."""
        before, request = self._request, self._pass_gate()
        self.outlook.faults = request.faults
        if request.job is None:
            if request.faults:
                self._recorder.tell(self.uj, EventReason.INVALID, "; ".join(request.faults), now_s)
            return False
        self._request = request
        if before is None:
            self._come(request.job, now_s)
        elif request.job != before.job:
            self._context.say(ev.JobChanged(now_s, request.job, cause="kubernetes"))
        if before is None or request.job != before.job:
            self._session.changed(request.job)
        if request.wish is not (DesiredState.RUN if before is None else before.wish):
            self._context.say(ev.JobWished(now_s, self.id, request.wish, cause="kubernetes"))
        return True

    def _pass_gate(self) -> JobRequest:
        """What the World shall know of it after the admission gate."""
        request = read_request(self.uj, self._observed.priorities, self._observed.workload_priorities)
        if request.job is not None:
            job, self.size_choice = settle_size(self.uj, request.job, self.size_choice, self._context.choose)
            request = replace(request, job=job)
        is_inside = self._request is not None or bool(self._pod_set.pods)
        passed = self._context.gate(self.uj, request, is_inside)
        self.outlook.waiting, self._tolerations = passed.waiting, passed.tolerations
        if passed.waiting is not None and self._request is not None:
            return replace(passed.asked, job=self._request.job)  # it is parked as the World knows it
        return passed.asked

    def _come(self, job: Job, now_s: float) -> None:
        if job.id in self._context.past:
            self._context.past.discard(job.id)
            self._context.keep_result(job.id, "null")  # what another job of this name gave is not its own
            self._context.say(ev.JobForgotten(now_s, job.id))
        self._context.say(ev.JobSubmitted(now_s, job, cause="kubernetes"))
        if self.size_choice is not None:
            self._recorder.tell(self.uj, EventReason.SIZE_CHOSEN, self.size_choice.sentence, now_s)

    def _be_found(self, now_s: float) -> None:
        """Takes up the run that an operator before this one had begun."""
        job, kind = self._job, self._kind
        if job is None or kind is None or self.is_ending:
            return
        found = self._replica_controller.take_up(self.uj, kind, job, self.wanted, now_s)
        if found is None:
            return
        self._recorder.size = len(found.stood)  # as was told before
        placement = placement_from(found.places)
        if self.has_started or self.wanted != placement:
            self._context.say(ev.JobFound(now_s, self.id, placement, self.has_started, cause="kubernetes"))
        self.wanted = placement

    def _work(self, now_s: float) -> None:
        """Brings it on towards what the World wants: observes, asks what comes next, and carries that out."""
        job, kind = self._job, self._kind
        limit_s, began_s = self.uj.spec.active_deadline_seconds, read_time(self.uj.status.start_time)
        self.due_s = began_s + limit_s if limit_s is not None and began_s else math.inf
        if now_s >= self.due_s:
            self._reconcile(jobs.Observed(time_limit="it ran longer than activeDeadlineSeconds"), now_s)
            return
        if job is None or kind is None:
            return
        if not self._has_looked:
            self._reconcile(jobs.Observed(jobs.ObservedRun(is_adopted=False)), now_s)
        workers = None if self.wanted is None else self.wanted.workers(job.gpus_per_replica)
        run = self._replica_controller.observe(self.uj, kind, workers, self._deadline_s, now_s)
        is_done = run is not None and run.outcome is not None
        if not is_done or not self._replica_controller.has_last_words(kind, job, now_s):
            self._reconcile(jobs.Observed(run, failures=self.failures), now_s)
            if self._session.is_asking:
                self._session.repeat_request(self.uj, self._run_state.pods(), now_s)
        self.due_s = min(self.due_s, self._replica_controller.due_s)

    def _reconcile(self, observed: jobs.Observed, now_s: float) -> None:
        desired = jobs.Desired(
            self.wanted,
            is_ending=self.is_ending,
            saves_on_request=True,
            # The kubelet sees to it that pods end in time.
            grace=jobs.Grace(checkpoint_s=grace_s(self.uj), stop_s=math.inf),
            restart=jobs.RestartPolicy(self.uj.spec.backoff_limit, self._context.timing.restart_backoff),
        )
        decision = jobs.reconcile(desired, observed, now_s)
        self._deadline_s, self.due_s = decision.deadline_s, min(self.due_s, decision.due_s)
        for action in decision.actions:
            self._carry_out(action, now_s)

    def _carry_out(self, action: jobs.Action, now_s: float) -> None:
        match action:
            case jobs.Conclude(state, outcome):
                if outcome.end is RunEnd.TIME_LIMIT:
                    self.outlook.end_reason = DEADLINE
                detail = outcome.detail or ("it was cancelled" if state is JobState.CANCELLED else "")
                self._end(state, detail, now_s, outcome.exit_code)
            case jobs.GiveUp(outcome, failures):
                self.wanted, self.failures = None, failures
                self.outlook.cause = outcome.detail
                detail = f"{outcome.detail}; it failed {counted(failures, 'time')}"
                self._end(JobState.FAILED, detail, now_s, outcome.exit_code)
            case jobs.Adopt():
                self._has_looked = True
                self._be_found(now_s)
            case jobs.Start() | jobs.Maintain():
                self._bring(now_s)
            case jobs.Stay():
                self._session.stays()
                self._bring(now_s)
            case jobs.RequestCheckpoint():
                self._session.request_checkpoint(self.uj, self._run_state.pods(), now_s)
            case jobs.Stop():
                self._session.stop_waiting()
                if self.wanted is None or self.is_ending:
                    self._stop(now_s)
                else:
                    self._bring(now_s)  # by another start, which replaces this one
            case jobs.BackOff(outcome, not_before_s):
                self._interrupt(outcome, not_before_s, now_s)
                self._stop(now_s)

    def _bring(self, now_s: float) -> None:
        job, kind = self._job, self._kind
        assert self.wanted is not None
        assert job is not None
        assert kind is not None
        workers = self.wanted.workers(job.gpus_per_replica)
        tolerated = (*self._tolerations, *self._context.tolerations(self.id))
        tolerant = with_tolerations(self.uj, tolerated) if tolerated else self.uj
        try:
            became = self._replica_controller.bring(self.uj, kind, job, workers, tolerant, now_s)
        except Unmakeable as error:
            self._settle(RunOutcome(RunEnd.FAILED_SETUP, detail=str(error)), now_s)
            return
        self.outlook.trouble = self._children.trouble
        if self.run is not None and self.run.start != self._attempt[0]:
            self._attempt, self._failed_s = (self.run.start, now_s), math.inf
        match became:
            case Started():
                self._refusals, self.outlook.cause = 0, ""
                self._context.say(ev.JobStarted(now_s, self.id, cause="kubernetes"))
                self._recorder.started(self.uj, became.run, became.places, now_s)
            case MisplacedPod(replica, node):
                self.refused(f"another scheduler has bound replica {replica} to node {node}", (), now_s)
                self.due_s = now_s  # what was decided on now is done at once
            case JobStatus():
                if (outcome := self._outcome_of(became, job, kind, now_s)) is not None:
                    self._settle(outcome, now_s)

    def _outcome_of(self, status: JobStatus, job: Job, kind: JobType, now_s: float) -> RunOutcome | None:
        """How the run has ended; None while it goes on, or while that is not known yet."""
        end = _ENDS.get(status.outcome)
        if end is RunEnd.SUCCEEDED and self._replica_controller.has_last_words(kind, job, now_s):
            return None
        message = status.message
        if end is RunEnd.FAILED:
            self._failed_s = min(self._failed_s, now_s)
            excuse = self._context.excuse(self.id, self._attempt[1], self._failed_s, now_s)
            if excuse is None:
                self.due_s = min(self.due_s, now_s + _ASK_AGAIN_S)
                return None
            if excuse:
                end, message = RunEnd.LOST, f"{message} ({excuse})"
        return None if end is None else RunOutcome(end, status.exit_code, message)

    def _settle(self, outcome: RunOutcome, now_s: float) -> None:
        """A run that is over is the end of the job, or it waits for another start."""
        failures = self.failures + (outcome.end is RunEnd.FAILED)
        # Only failures of its own make it wait: a cluster that takes pods away gives others.
        streak = failures if outcome.end is RunEnd.FAILED else 0
        ended = jobs.ObservedRun(jobs.RunPhase.OVER, outcome=outcome, streak=streak)
        self._reconcile(jobs.Observed(ended, failures=failures), now_s)

    def _interrupt(self, outcome: RunOutcome, not_before_s: float, now_s: float) -> None:
        self.wanted = None
        self.outlook.cause = outcome.detail
        self.failures += outcome.end is RunEnd.FAILED
        self._recorder.tell(self.uj, EventReason.INTERRUPTED, outcome.detail, now_s)
        self._context.say(
            ev.JobInterrupted(now_s, self.id, "kubernetes", not_before_s, outcome.exit_code, detail=outcome.detail)
        )
        self._run_state.leave()

    def _stop(self, now_s: float) -> None:
        """Gives its places back. A job that is being ended is over when its pods are gone."""
        assert self._kind is not None
        self._recorder.stopped(self.uj, 0 if self.is_ending else len(self._run_state.stood), now_s)
        keep_waiting = self._refusals > 0 and not self.is_ending
        if self._replica_controller.stop(self.uj, self._kind, keep_waiting, now_s) and self.is_ending:
            self._reconcile(jobs.Observed(), now_s)

    def _end(self, state: JobState, detail: str, now_s: float, exit_code: int | None = None) -> None:
        """Says to the World and to people how it ended, once, and cleans up."""
        self.wanted = None
        self.outlook.progresses(self._session.progress, None, now_s)  # the World forgets it with the job
        self.outlook.end = state, detail, now_s
        if self.result is not None:
            self._context.keep_result(self.id, self.result)
        reason, evidence = None, None
        limit_s = self.uj.spec.active_deadline_seconds
        if limit_s is not None and self.outlook.end_reason == DEADLINE:
            reason, evidence = Reason.TIME_LIMIT, (("limit_s", float(limit_s)),)
        self._context.say(
            ev.JobEnded(now_s, self.id, state, "kubernetes", exit_code, detail, reason=reason, evidence=evidence)
        )
        self._context.past.add(self.id)
        self._is_told = True
        if not self._is_silent and not self._has_vanished:
            self._recorder.ended(self.uj, state, detail, now_s)
        self._tidy(now_s)

    def _tidy(self, now_s: float) -> None:
        """No pod holds a GPU for a finished job; finished pods stay so that their logs can be read."""
        if self.outlook.end is not None and self.outlook.end[0] is JobState.SUCCEEDED:
            self._children.delete_pods(self.uj, self._pod_set.pods.values(), now_s)
        else:
            kind = None if self._has_vanished else self._kind
            self._replica_controller.clear(self.uj, kind, now_s, keep_over=True)

    def _rest(self, now_s: float) -> None:
        """It is finished: what it left behind ends, and the object is deleted in time."""
        if self.outlook.end is None:
            # It was finished before this operator saw it: what there is to be said to people was said.
            self._is_silent = self._is_told = True
            self.outlook.end = ending_of(self.uj), self.uj.status.message, now_s
            if self._job is not None:
                # The World still has it: another operator finished it and was killed before it reported that.
                self._end(ending_of(self.uj), self.uj.status.message, now_s)
        self._tidy(now_s)
        if now_s < self.expires_s:
            self.due_s = self.expires_s
        else:
            self.due_s = math.inf
            delete_unified_job(self._context.writes, self.id, self.uj.metadata.uid, now_s)

    def _go(self, now_s: float) -> None:
        """The object is gone or going: so are its pods, and then the job is over."""
        if self.is_booked and not self._is_announced:
            # Its pods may take long: meanwhile nothing is planned for it.
            self._is_announced = True
            self._context.say(ev.JobWished(now_s, self.id, DesiredState.CANCEL, cause="kubernetes"))
        self.wanted = None
        if self._replica_controller.clear(self.uj, None if self._has_vanished else self._kind, now_s):
            if self.is_booked:
                self._end(JobState.CANCELLED, "its UnifiedJob was deleted", now_s)
            self.is_over = self._has_vanished

    @property
    def _kind(self) -> JobType | None:
        """Its type; None, and a fault that people see, when the operator has no such type."""
        name = self.uj.spec.job_type
        found = self._context.job_types.get(name)
        if found is None:
            self.outlook.faults = (f"spec.jobType: {self._context.job_types.why_not(name)}",)
        return found

    def live_pods(self) -> list[objects.Pod]:
        return list(self._pod_set.workers(self._kind).values()) if self._job is not None else []
