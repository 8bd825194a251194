"""Bring the replicas of a UnifiedJob to their places together, and end them in order.

`JobCompletion` reports the end once and cleans up; `FailureAttribution` asks whether the job is at fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.jobtypes.job_type import JobStatus, JobType, Observed, Outcome, Run
from batuta.backends.kube.operator.children import Children
from batuta.backends.kube.operator.context import PodGroup, ReconcileContext
from batuta.backends.kube.operator.events import EventRecorder
from batuta.backends.kube.operator.gangs import seconds
from batuta.backends.kube.operator.run_state import (
    AdoptedRun,
    GangStatus,
    Places,
    PodSet,
    RunState,
    gang_status,
    resume_run,
)
from batuta.backends.kube.operator.unified_job_status import DEADLINE, Outlook, ending_of
from batuta.backends.kube.progress.trainer_session import TrainerSession
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement
from batuta.core.job import DesiredState, Job, JobId, JobState
from batuta.core.reason import Reason
from batuta.engine.jobs.outcome import Outcome as RunOutcome
from batuta.engine.jobs.outcome import RunEnd
from batuta.engine.jobs.reconcile import Fit, ObservedRun, RunPhase, StopProgress


@dataclass(frozen=True, slots=True)
class Started:
    """All members run, and none is surplus: the run has started, or has its new size."""

    run: Run
    places: Places


@dataclass(frozen=True, slots=True)
class MisplacedPod:
    """Another scheduler has bound a replica to this node, which is not its own."""

    replica: int
    node: NodeName


Became: TypeAlias = JobStatus | Started | MisplacedPod
"""What has become of a run: it goes on or is over, or something is to be told of it."""
_GOES_ON = JobStatus()


class ReplicaController:
    """One job, through all its starts. It decides nothing: what has become of a run is handed back."""

    def __init__(
        self,
        context: ReconcileContext,
        pod_set: PodSet,
        run_state: RunState,
        children: Children,
        session: TrainerSession,
    ) -> None:
        self._context = context
        self._pod_set = pod_set
        self._run_state = run_state
        self._children = children
        self._session = session
        self.trouble = ""
        """Why its children could not all be written when they were brought on last."""
        self.due_s = math.inf
        """When to look again, since it was last asked whether the members stay."""

    def seen(self, uj: UnifiedJob) -> Observed:
        return self._children.seen(uj, self._pod_set.pods.values())

    # -------------------------------------------------------------------------------------------- they come

    def take_up(
        self, uj: UnifiedJob, kind: JobType, job: Job, planned: Placement | None, now_s: float
    ) -> AdoptedRun | None:
        """Goes on with the run that an operator before this one had begun, if there is one that can."""
        found = resume_run(uj, kind, self._pod_set, planned)
        if found is not None:
            self._run_state.take_up(found, kind)
            if self._run_state.has_started:
                self._begin(kind, job, now_s)
        return found

    def bring(
        self, uj: UnifiedJob, kind: JobType, job: Job, workers: Places, dressed: UnifiedJob, now_s: float
    ) -> Became:
        """Does the next step to the places that are wanted, or raises Unmakeable.

        `dressed`: the object with a template that tolerates all that its pods may.
        """
        if self._run_state.aim(uj, kind, workers):
            self._session.ended(now_s)
        run, seen = self._run_state.run, self.seen(uj)
        assert run is not None
        status = kind.status(uj, run, seen)
        if status.outcome is not Outcome.RUNNING:
            return status
        self._children.bring(kind, dressed, run, seen, now_s)
        self.trouble = self._children.trouble
        self.due_s = min(self.due_s, self._children.due_s)
        return self._take_seats(uj, kind, job, now_s)

    def _take_seats(self, uj: UnifiedJob, kind: JobType, job: Job, now_s: float) -> Became:
        """All members are there: those without a place get theirs together."""
        found = gang_status(self._run_state, self._pod_set, kind)
        if found.lost:
            gone = f"replica {', '.join(map(str, found.lost))} is gone"
            return JobStatus(outcome=Outcome.DISRUPTED, message=gone)
        if found.astray is not None:
            return MisplacedPod(*found.astray)
        if found.is_full and found.waiting:
            self._ask_for_seats(uj, job, found)
        if found.is_full and found.are_seated:
            return self._settle(kind, job, found, now_s)
        return _GOES_ON

    def _ask_for_seats(self, uj: UnifiedJob, job: Job, found: GangStatus) -> None:
        assert self._run_state.run is not None
        key, since_s = f"{uj.id}#{self._run_state.run.start}", seconds(uj.metadata.creation_timestamp)
        self._context.request_binding(PodGroup(key, uj.id, found.waiting, job.priority, since_s))

    def _settle(self, kind: JobType, job: Job, found: GangStatus, now_s: float) -> Became:
        """All have a place."""
        run_state = self._run_state
        assert run_state.run is not None
        run_state.stood = run_state.places
        if run_state.has_started or not found.is_exact or not found.have_begun:
            return _GOES_ON
        run_state.has_started, run_state.ran = True, run_state.places
        self._begin(kind, job, now_s)
        return Started(run_state.run, run_state.places)

    def _begin(self, kind: JobType, job: Job, now_s: float) -> None:
        """From now on it is listened to what the run reports, which began when its last pod was started."""
        assert self._run_state.run is not None
        members = self._run_state.members(kind).values()
        begun_s = max((seconds(pod.status.start_time) for pod in members), default=0.0) or now_s
        self._session.began(job, self._run_state.run.start, self._run_state.places, min(begun_s, now_s))

    # ---------------------------------------------------------------------------------------------- they go

    def observe(
        self, uj: UnifiedJob, kind: JobType, workers: Places | None, deadline_s: float, now_s: float
    ) -> ObservedRun | None:
        """Return the run as it relates to these places; None when one is wanted there and there is none.

        Without places that are wanted, whatever is left of earlier runs counts as a run that has to go.
        """
        self.due_s = math.inf
        run_state, session = self._run_state, self._session
        run, is_gone = run_state.run, run_state.run is None or run_state.is_spent
        if workers is not None and is_gone:
            return None
        stop = StopProgress.ASKED if session.is_asked else StopProgress.NO
        phase = RunPhase.RUNNING if run_state.has_started else RunPhase.STARTING
        if workers is not None and run_state.keeps_members(uj, kind, workers):
            return ObservedRun(phase, Fit.SAME, stop, is_announced=run_state.has_started)
        if run is None or is_gone or not run_state.ran:
            return ObservedRun(phase, Fit.RESTART)
        status = kind.status(uj, run, self.seen(uj))
        if status.outcome is Outcome.SUCCEEDED:
            succeeded = RunOutcome(RunEnd.SUCCEEDED, status.exit_code, status.message)
            return ObservedRun(RunPhase.OVER, Fit.RESTART, outcome=succeeded)
        if status.outcome is not Outcome.RUNNING:
            # It has to go anyway: to judge it would only keep others from its GPUs.
            return ObservedRun(RunPhase.FAILING, Fit.RESTART)
        return ObservedRun(
            phase,
            Fit.RESTART,
            stop,
            can_save=session.can_save(uj, self._pods_of(run)),
            has_saved=session.has_saved(now_s),
            deadline_s=deadline_s,
        )

    def _pods_of(self, run: Run) -> list[objects.Pod]:
        start = str(run.start)
        return [pod for pod in self._pod_set.pods.values() if pod.metadata.labels.get(names.START) == start]

    def request_checkpoint(self, uj: UnifiedJob, now_s: float) -> None:
        """Asks all pods of the run to save."""
        assert self._run_state.run is not None
        self._session.request_checkpoint(uj, self._pods_of(self._run_state.run), now_s)

    def repeat_request(self, uj: UnifiedJob, now_s: float) -> None:
        """Sees to it that all pods of the run show the request while it is waited for."""
        if self._session.is_asking and self._run_state.run is not None:
            self._session.repeat_request(uj, self._pods_of(self._run_state.run), now_s)

    def has_last_words(self, kind: JobType, job: Job, now_s: float) -> bool:
        """Whether the end of what a run that is over has said is still to be heard: its result, say."""
        if self._run_state.run is None:
            return False
        if not self._run_state.ran:
            self._run_state.ran = self._run_state.places
            self._begin(kind, job, now_s)  # it finished before it was seen running
        has_more = self._session.has_more_to_say(kind, self._pod_set.pods.values(), now_s)
        self.due_s = min(self.due_s, self._session.due_s)
        return has_more

    def stop(self, uj: UnifiedJob, kind: JobType, keep_waiting: bool, now_s: float) -> bool:
        """Gives all places back; whether no pod has one any more.

        `keep_waiting`: pods that have no place stay, and serve for the next try.
        """
        self._run_state.leave()
        self._session.ended(now_s)
        if keep_waiting and self._run_state.run is not None and not self._pod_set.has_places(kind):
            return False
        self._run_state.is_spent = True
        is_clear = self.clear(uj, kind, now_s)
        if is_clear:
            self._run_state.end()
        return is_clear

    def clear(self, uj: UnifiedJob, kind: JobType | None, now_s: float, *, keep_over: bool = False) -> bool:
        """Asks for the end of everything that holds a place; whether nothing does."""
        without = self._run_state.without_replicas(uj)
        return self._children.clear(kind, uj, without, self.seen(uj), now_s, keep_over)


class JobCompletion:
    """One job's."""

    def __init__(
        self,
        context: ReconcileContext,
        outlook: Outlook,
        recorder: EventRecorder,
        children: Children,
        replica_controller: ReplicaController,
    ) -> None:
        self._context = context
        self._outlook = outlook
        self._recorder = recorder
        self._children = children
        self._replica_controller = replica_controller
        self.is_told = False
        """Nothing more is to be said to the World."""
        self.has_vanished = False
        """The object is gone: there is nothing to write to."""
        self.is_silent = False
        """It was finished when it was first seen: there is nothing to be said to people."""
        self._is_announced = False

    def announce(self, uj: UnifiedJob, now_s: float) -> None:
        """It is going, and its pods may take long: meanwhile nothing is planned for it."""
        if not self._is_announced:
            self._is_announced = True
            self._context.say(ev.JobWished(now_s, uj.id, DesiredState.CANCEL, cause="kubernetes"))

    def tell(
        self,
        uj: UnifiedJob,
        state: JobState,
        detail: str,
        exit_code: int | None,
        result: str | None,
        now_s: float,
    ) -> None:
        """Says to the World and to people how it ended."""
        self._outlook.ended(state, detail, now_s)
        if result is not None:
            self._context.keep_result(uj.id, result)
        limit_s = uj.spec.active_deadline_seconds
        limited = limit_s is not None and self._outlook.end_reason == DEADLINE
        self._context.say(
            ev.JobEnded(
                now_s,
                uj.id,
                state,
                "kubernetes",
                exit_code,
                detail,
                reason=Reason.TIME_LIMIT if limited else None,
                evidence=(("limit_s", float(limit_s or 0.0)),) if limited else None,
            )
        )
        self._context.past.add(uj.id)
        self.is_told = True
        if not self.is_silent and not self.has_vanished:
            self._recorder.ended(uj, state, detail, now_s)

    def find(self, uj: UnifiedJob, now_s: float) -> None:
        """It was finished before this operator saw it: what there is to be said of it was said."""
        self.is_silent = self.is_told = True
        self._outlook.ended(ending_of(uj), uj.status.message, now_s)

    def tidy(self, uj: UnifiedJob, kind: JobType | None, now_s: float) -> None:
        """No pod holds a GPU for a finished job; finished pods stay so that their logs can be read."""
        if self._outlook.end is not None and self._outlook.end[0] is JobState.SUCCEEDED:
            self._children.delete_pods(uj, self._replica_controller.seen(uj).pods, now_s)
        else:
            self._replica_controller.clear(uj, None if self.has_vanished else kind, now_s, keep_over=True)

    def rest(self, uj: UnifiedJob, kind: JobType | None, now_s: float) -> float:
        """What it left behind ends, and the object is deleted in time; when to look again for that."""
        self.tidy(uj, kind, now_s)
        goes_s = expires_s(uj)
        if now_s < goes_s:
            return goes_s
        self._children.delete_job(uj, now_s)
        return math.inf


def expires_s(uj: UnifiedJob) -> float:
    """When the object of a job that is over is to be deleted, by its user's own word."""
    ttl_s, ended_s = uj.spec.ttl_seconds_after_finished, seconds(uj.status.completion_time or "")
    return math.inf if ttl_s is None or not ended_s else ended_s + ttl_s


def deadline_s(uj: UnifiedJob) -> float:
    """When a job has run too long, by its user's own word."""
    limit_s, began_s = uj.spec.active_deadline_seconds, seconds(uj.status.start_time or "")
    return began_s + limit_s if limit_s is not None and began_s else math.inf


_AGAIN_S: Final = 0.25


class FailureAttribution:
    """One job's, through all its starts."""

    def __init__(self, context: ReconcileContext, job: JobId) -> None:
        self._context = context
        self._job = job
        self._start = -1
        self._began_s = 0.0
        """When the run was first on its way that goes on now."""
        self._failed_s = math.inf
        self.due_s = math.inf
        """When to ask again."""

    def begins(self, start: int, now_s: float) -> None:
        """This start is on its way; it may be said again and again."""
        if start != self._start:
            self._start, self._began_s = start, now_s
            self._failed_s = math.inf

    def excuse(self, now_s: float) -> str | None:
        """Why a failure is not the run's own; empty: it is. None: it is not known yet, ask again."""
        self._failed_s = min(self._failed_s, now_s)
        found = self._context.excuse(self._job, self._began_s, self._failed_s, now_s)
        self.due_s = now_s + _AGAIN_S if found is None else math.inf
        return found
