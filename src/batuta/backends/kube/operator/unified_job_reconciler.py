"""Reconcile one UnifiedJob: its spec and the World's placement become children, their state becomes events.

`ParkingController` sets `suspend` on jobs that the World has parked because they left their GPUs idle.
Without it the next operator would start them again, and the user could not resume them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.jobtypes.job_type import JobStatus, JobType, Outcome, Run
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.children import Children, Unmakeable
from batuta.backends.kube.operator.context import KnownJob, ReconcileContext
from batuta.backends.kube.operator.events import EventReason, EventRecorder, counted
from batuta.backends.kube.operator.gangs import placement_from
from batuta.backends.kube.operator.replica_controller import (
    FailureAttribution,
    JobCompletion,
    MisplacedPod,
    ReplicaController,
    Started,
    deadline_s,
    expires_s,
)
from batuta.backends.kube.operator.run_state import PodSet, RunState
from batuta.backends.kube.operator.spec_reader import SpecReader
from batuta.backends.kube.operator.unified_job_status import (
    DEADLINE,
    Outlook,
    StatusWriter,
    ending_of,
    is_finished,
)
from batuta.backends.kube.operator.watched_kinds import UNIFIED_JOB
from batuta.backends.kube.operator.workqueue import Changed, WriteQueue, Written
from batuta.backends.kube.progress.log_lines import LogReport
from batuta.backends.kube.progress.trainer_session import TrainerSession, grace_s
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement
from batuta.core.job import Job, JobId, JobState, SizeChoice
from batuta.core.reason import Evidence
from batuta.core.world import World
from batuta.engine.jobs.outcome import Outcome as RunOutcome
from batuta.engine.jobs.outcome import RunEnd
from batuta.engine.jobs.reconcile import (
    Action,
    Adopt,
    BackOff,
    Conclude,
    Desired,
    GiveUp,
    Grace,
    Maintain,
    Observed,
    ObservedRun,
    RequestCheckpoint,
    RestartPolicy,
    RunPhase,
    Start,
    Stay,
    Stop,
    reconcile,
)

_ENDS: Final = {
    Outcome.SUCCEEDED: RunEnd.SUCCEEDED,
    Outcome.FAILED: RunEnd.FAILED,
    Outcome.DISRUPTED: RunEnd.LOST,
}


class UnifiedJobReconciler:
    """Level-triggered: whatever is there when it is driven, it does the next step towards what is wanted."""

    def __init__(
        self, context: ReconcileContext, observed: ObjectCache, job: UnifiedJob, known: KnownJob | None = None
    ) -> None:
        self.id: JobId = job.id
        self.wanted: Placement | None = None if known is None else known.placement
        self.is_ending = known is not None and known.is_ending
        self.is_over = False
        self.uj = job
        self.outlook = Outlook()
        """What the World thinks of it, for the status."""
        self.failures = job.status.failures
        self._context = context
        self._observed = observed
        self._pod_set = PodSet(job.metadata.uid)
        self._run_state = RunState(self._pod_set)
        self._children = Children(context, observed)
        self._session = TrainerSession(context, job.id)
        self._replica_controller = ReplicaController(
            context, self._pod_set, self._run_state, self._children, self._session
        )
        self._status = StatusWriter(context)
        self._recorder = EventRecorder(context)
        self._spec_reader = SpecReader(context, observed, self.outlook, self._recorder, known)
        self._attribution = FailureAttribution(context, job.id)
        self._ending = JobCompletion(context, self.outlook, self._recorder, self._children, self._replica_controller)
        self._deadline_s = math.inf
        """Until when the checkpoint that was asked for is waited for."""
        self._has_looked = False
        """It was looked for a run that an operator before this one had begun."""
        self._refusals = 0
        self.due_s = math.inf
        """When it wants to be driven even if nothing happens."""

    # --------------------------------------------------------------------------------------- what is told

    def pods(self) -> Mapping[str, objects.Pod]:
        return self._pod_set.pods

    def see(self, pod: objects.Pod) -> None:
        self._pod_set.see(pod)

    def lose(self, key: str) -> None:
        self._pod_set.lose(key)

    def look(self, job: UnifiedJob) -> None:
        """The object has changed."""
        if job.metadata.uid != self.uj.metadata.uid:
            self._ending.has_vanished = True
        else:
            self.uj = job

    def vanish(self) -> None:
        """The object is gone."""
        self._ending.has_vanished = True

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
        """What its script has given as its result, as JSON."""
        return self._session.result or self.uj.status.result

    @property
    def size_choice(self) -> SizeChoice | None:
        """Why it asks for the size that it does, where its user left that open."""
        return self._spec_reader.size_choice

    @property
    def run(self) -> Run | None:
        return self._run_state.run

    @property
    def has_started(self) -> bool:
        return self._run_state.has_started

    @property
    def replicas(self) -> int:
        """How many members it shall have."""
        return 0 if self.run is None or self.wanted is None else self.run.target

    def leaves(self, pod: objects.Pod) -> bool:
        """Whether a pod of it gives its place back soon."""
        if self.wanted is None or pod.metadata.deletion_timestamp or self._session.is_asking:
            return True
        return self._run_state.leaves(pod, self._kind)

    @property
    def is_booked(self) -> bool:
        """Whether the World knows it: it was understood, and is not over."""
        return self._spec_reader.job is not None and not self._ending.is_told

    @property
    def is_settled(self) -> bool:
        """Whether it is over, its object says so, and nothing of it is left that could still change."""
        ending = self._ending
        return (
            ending.is_told
            and not ending.has_vanished
            and not self.uj.metadata.deletion_timestamp
            and (ending.is_silent or self._status.is_shown)
            and is_finished(self.uj)
            and all(map(is_over, self._pod_set.pods.values()))
        )

    @property
    def expires_s(self) -> float:
        """When its object is to be deleted, if it is over."""
        return expires_s(self.uj)

    @property
    def is_urgent(self) -> bool:
        return False

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
        if self._spec_reader.job is None or self.run is None:
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

    # ------------------------------------------------------------------------------------------- its turn

    def broke(self, error: Exception, now_s: float) -> None:
        """The last turn failed by a fault of ours: its object says so until one works."""
        self.outlook.fault = f"a fault of the operator, not of the job: {error!r} (its log has the details)"
        if not self._ending.has_vanished and not self._ending.is_silent:
            self._status.write(self, now_s)

    def drive(self, now_s: float) -> None:
        self.due_s, self.outlook.fault = math.inf, ""
        ending = self._ending
        if self.uj.spec.managed_by not in ("", names.MANAGED_BY):
            self.is_over = ending.has_vanished
            return
        meta = self.uj.metadata
        if ending.has_vanished or meta.deletion_timestamp or self._observed.is_going(meta.namespace):
            self._go(now_s)
        elif ending.is_told or is_finished(self.uj):
            self._rest(now_s)
        elif self._hear(now_s):
            self._work(now_s)
        self._session.listen(self._kind, self._pod_set.pods.values())
        self.due_s = min(self.due_s, self._session.watch(meta.labels, now_s))
        if not ending.has_vanished and not ending.is_silent:
            self._status.write(self, now_s)
            self.due_s = min(self.due_s, self._status.due_s)

    def _hear(self, now_s: float) -> bool:
        """Listens to the user; whether there is something to be done."""
        before = self._spec_reader.job
        if not self._spec_reader.hear(self.uj, bool(self._pod_set.pods), now_s):
            return before is not None
        job = self._spec_reader.job
        assert job is not None
        if job != before:
            self._session.changed(job)
        return True

    def _be_found(self, job: Job, now_s: float) -> None:
        """Takes up the run that an operator before this one had begun."""
        kind = self._kind
        if kind is None or self.is_ending:
            return
        found = self._replica_controller.take_up(self.uj, kind, job, self.wanted, now_s)
        if found is None:
            return
        self._recorder.found(len(found.stood))
        placement = placement_from(found.places)
        if self.has_started or self.wanted != placement:
            self._context.say(ev.JobFound(now_s, self.id, placement, self.has_started, cause="kubernetes"))
        self.wanted = placement

    def _work(self, now_s: float) -> None:
        """Brings it on towards what the World wants: observes, asks what comes next, and carries that out."""
        job, kind, latest_s = self._spec_reader.job, self._kind, deadline_s(self.uj)
        self.due_s = latest_s
        if now_s >= latest_s:
            self._reconcile(Observed(time_limit="it ran longer than activeDeadlineSeconds"), now_s)
            return
        if job is None or kind is None:
            return
        if not self._has_looked:
            self._reconcile(Observed(ObservedRun(is_adopted=False)), now_s)
        workers = None if self.wanted is None else self.wanted.workers(job.gpus_per_replica)
        run = self._replica_controller.observe(self.uj, kind, workers, self._deadline_s, now_s)
        is_done = run is not None and run.outcome is not None
        if not is_done or not self._replica_controller.has_last_words(kind, job, now_s):
            self._reconcile(Observed(run, failures=self.failures), now_s)
            self._replica_controller.repeat_request(self.uj, now_s)
        self.due_s = min(self.due_s, self._replica_controller.due_s)

    def _reconcile(self, observed: Observed, now_s: float) -> None:
        decision = reconcile(self._desired(), observed, now_s)
        self._deadline_s, self.due_s = decision.deadline_s, min(self.due_s, decision.due_s)
        for action in decision.actions:
            self._carry_out(action, now_s)

    def _desired(self) -> Desired:
        return Desired(
            self.wanted,
            is_ending=self.is_ending,
            saves_on_request=True,
            # The kubelet sees to it that pods end in time.
            grace=Grace(checkpoint_s=grace_s(self.uj), stop_s=math.inf),
            restart=RestartPolicy(self.uj.spec.backoff_limit, self._context.timing.restart_backoff),
        )

    def _carry_out(self, action: Action, now_s: float) -> None:
        job, kind = self._spec_reader.job, self._kind
        match action:
            case Conclude(state, outcome):
                if outcome.end is RunEnd.TIME_LIMIT:
                    self.outlook.end_reason = DEADLINE
                detail = outcome.detail or ("it was cancelled" if state is JobState.CANCELLED else "")
                self._end(state, detail, now_s, outcome.exit_code)
            case GiveUp(outcome, failures):
                self.wanted, self.failures = None, failures
                self.outlook.cause = outcome.detail
                detail = f"{outcome.detail}; it failed {counted(failures, 'time')}"
                self._end(JobState.FAILED, detail, now_s, outcome.exit_code)
            case _:
                assert job is not None
                assert kind is not None
                self._carry_out_on_run(action, job, kind, now_s)

    def _carry_out_on_run(self, action: Action, job: Job, kind: JobType, now_s: float) -> None:
        match action:
            case Adopt():
                self._has_looked = True
                self._be_found(job, now_s)
            case Start() | Maintain():
                self._bring(job, kind, now_s)
            case Stay():
                self._session.stays()
                self._bring(job, kind, now_s)
            case RequestCheckpoint():
                self._replica_controller.request_checkpoint(self.uj, now_s)
            case Stop():
                self._session.stop_waiting()
                if self.wanted is None or self.is_ending:
                    self._stop(kind, now_s)
                else:
                    self._bring(job, kind, now_s)  # by another start, which replaces this one
            case BackOff(outcome, not_before_s):
                self._interrupt(outcome, not_before_s, now_s)
                self._stop(kind, now_s)

    def _bring(self, job: Job, kind: JobType, now_s: float) -> None:
        assert self.wanted is not None
        workers = self.wanted.workers(job.gpus_per_replica)
        try:
            became = self._replica_controller.bring(
                self.uj, kind, job, workers, self._spec_reader.dressed(self.uj), now_s
            )
        except Unmakeable as error:
            self._settle(RunOutcome(RunEnd.FAILED_SETUP, detail=str(error)), now_s)
            return
        self.outlook.trouble = self._replica_controller.trouble
        if self.run is not None:
            self._attribution.begins(self.run.start, now_s)
        match became:
            case Started():
                self._refusals, self.outlook.cause = 0, ""
                self._context.say(ev.JobStarted(now_s, self.id, cause="kubernetes"))
                self._recorder.started(self.uj, became.run, became.places, now_s)
            case MisplacedPod(replica, node):
                self.refused(f"another scheduler has bound replica {replica} to node {node}", (), now_s)
                self.due_s = now_s  # what was decided on now is done at once
            case JobStatus():
                outcome = self._outcome_of(became, job, kind, now_s)
                if outcome is not None:
                    self._settle(outcome, now_s)

    def _outcome_of(self, status: JobStatus, job: Job, kind: JobType, now_s: float) -> RunOutcome | None:
        """How the run has ended; None while it goes on, or while that is not known yet."""
        end = _ENDS.get(status.outcome)
        if end is RunEnd.SUCCEEDED and self._replica_controller.has_last_words(kind, job, now_s):
            return None
        message = status.message
        if end is RunEnd.FAILED:
            excuse = self._attribution.excuse(now_s)
            if excuse is None:
                self.due_s = min(self.due_s, self._attribution.due_s)
                return None
            if excuse:
                end, message = RunEnd.LOST, f"{message} ({excuse})"
        return None if end is None else RunOutcome(end, status.exit_code, message)

    def _settle(self, outcome: RunOutcome, now_s: float) -> None:
        """A run that is over is the end of the job, or it waits for another start."""
        failures = self.failures + (outcome.end is RunEnd.FAILED)
        # Only failures of its own make it wait: a cluster that takes pods away gives others.
        streak = failures if outcome.end is RunEnd.FAILED else 0
        ended = ObservedRun(RunPhase.OVER, outcome=outcome, streak=streak)
        self._reconcile(Observed(ended, failures=failures), now_s)

    def _interrupt(self, outcome: RunOutcome, not_before_s: float, now_s: float) -> None:
        self.wanted = None
        self.outlook.cause = outcome.detail
        self.failures += outcome.end is RunEnd.FAILED
        self._recorder.tell(self.uj, EventReason.INTERRUPTED, outcome.detail, now_s)
        self._context.say(
            ev.JobInterrupted(now_s, self.id, "kubernetes", not_before_s, outcome.exit_code, detail=outcome.detail)
        )
        self._run_state.leave()

    def _stop(self, kind: JobType, now_s: float) -> None:
        """Gives its places back. A job that is being ended is over when its pods are gone."""
        self._recorder.stopped(self.uj, 0 if self.is_ending else len(self._run_state.stood), now_s)
        keep_waiting = self._refusals > 0 and not self.is_ending
        is_clear = self._replica_controller.stop(self.uj, kind, keep_waiting, now_s)
        if is_clear and self.is_ending:
            self._reconcile(Observed(), now_s)

    # ---------------------------------------------------------------------------------------------- its end

    def _end(self, state: JobState, detail: str, now_s: float, exit_code: int | None = None) -> None:
        self.wanted = None
        self.outlook.progresses(self._session.progress, None, now_s)  # the World forgets it with the job
        self._ending.tell(self.uj, state, detail, exit_code, self.result, now_s)
        self._ending.tidy(self.uj, self._kind, now_s)

    def _rest(self, now_s: float) -> None:
        """It is finished."""
        if self.outlook.end is None:
            self._ending.find(self.uj, now_s)
            if self._spec_reader.job is not None:
                # The World still has it: another operator finished it and was killed before it reported that.
                self._end(ending_of(self.uj), self.uj.status.message, now_s)
        self.due_s = self._ending.rest(self.uj, self._kind, now_s)

    def _go(self, now_s: float) -> None:
        """The object is gone or going: so are its pods, and then the job is over."""
        has_vanished = self._ending.has_vanished
        if self.is_booked:
            self._ending.announce(self.uj, now_s)
        self.wanted = None
        if self._replica_controller.clear(self.uj, None if has_vanished else self._kind, now_s):
            if self.is_booked:
                self._end(JobState.CANCELLED, "its UnifiedJob was deleted", now_s)
            self.is_over = has_vanished

    # ------------------------------------------------------------------------------------------------ parts

    @property
    def _kind(self) -> JobType | None:
        """Its type; None, and a fault that people see, when the operator has no such type."""
        name = self.uj.spec.job_type
        found = self._context.job_types.get(name)
        if found is None:
            self.outlook.faults = (f"spec.jobType: {self._context.job_types.why_not(name)}",)
        return found

    def live_pods(self) -> list[objects.Pod]:
        """Its workers that are not over, once the World knows it."""
        return list(self._pod_set.workers(self._kind).values()) if self._spec_reader.job is not None else []


KEY: Final = "park/"


class ParkingController:
    """Suspends each job once when it is parked; a user who resumes it is heeded. For the engine's thread."""

    def __init__(self, world: World, observed: ObjectCache, writes: WriteQueue) -> None:
        self._world = world
        self._observed = observed
        self._writes = writes
        self._done: dict[JobId, Evidence] = self._parked()
        """What an earlier operator parked is not parked again: its user may have resumed it."""

    def take(self, changed: Changed, now_s: float) -> None:
        """What is parked is known from the World."""

    def heard(self, written: Written, now_s: float) -> None:
        if written.key.startswith(KEY) and written.error is not None:
            self._done.pop(written.key.removeprefix(KEY), None)

    def drive(self, now_s: float) -> None:
        parked = self._parked()
        for job in [job for job in self._done if job not in parked]:
            del self._done[job]
        for job, why in parked.items():
            uj = self._observed.unified_jobs.get(job)
            if self._done.get(job) == why or uj is None:
                continue
            if uj.spec.suspend or self._writes.ask(f"{KEY}{job}", partial(_suspend, uj), now_s):
                self._done[job] = why

    def next_s(self) -> float:
        return math.inf

    def _parked(self) -> dict[JobId, Evidence]:
        return {job: idle.parked for job, idle in self._world.idle.items() if idle.parked}


async def _suspend(uj: UnifiedJob, api: Api) -> None:
    """With its uid, because another job may have the name by now."""
    meta = uj.metadata
    body = {"metadata": {"uid": meta.uid}, "spec": {"suspend": True}}
    try:
        await api.patch(UNIFIED_JOB, meta.name, body, meta.namespace)
    except NotFound:
        return
