"""Reconcile one job: from what is desired and what is observed to the next actions, without doing any.

`reconcile` is a pure function that every backend shares: processes on this machine, UnifiedJobs, and gangs of
plain pods. The backend observes, carries the actions out, and asks again when something has changed or a time
has come. Nothing is assumed done: what an action did shows in the next observation.

    no run, a placement is desired          start, as soon as its GPUs are free
    a run that an earlier controller began  adopt it
    it runs where it should                 announce that once, and keep it so
    it runs elsewhere, or shall end         request a checkpoint if it saves on request, wait, then stop
    it is told to stop and does not         kill it
    it is over                              conclude the job, back off, give up, or let it move on
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto

from batuta.core.cluster import Placement
from batuta.core.job import JobState
from batuta.engine.jobs.backoff import Backoff
from batuta.engine.jobs.outcome import FAILURES, Outcome, RunEnd


@dataclass(frozen=True, slots=True)
class Grace:
    """How long a run may take for each step of its end. Infinite: the backend's own machinery sees to it."""

    checkpoint_s: float = 30.0  # to answer a request for a checkpoint
    stop_s: float = 30.0
    cancel_s: float = math.inf  # to stop when the job is cancelled, if that is less
    peer_s: float = math.inf  # to stop when another replica has failed, if that is less
    overdue_s: float = math.inf  # beyond its time, before it is killed by force


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a job that has failed is started again."""

    failure_limit: int = 0  # so many failures of its own are forgiven
    backoff: Backoff = field(default_factory=lambda: Backoff(1.0, 300.0))


@dataclass(frozen=True, slots=True)
class Desired:
    """What the scheduler and the user want of a job."""

    placement: Placement | None = None
    is_ending: bool = False  # it shall end for good
    is_closing: bool = False  # the controller shuts down and takes the run with it; the next one goes on from there
    saves_on_request: bool = False
    grace: Grace = field(default_factory=Grace)
    restart: RestartPolicy = field(default_factory=RestartPolicy)


class RunPhase(Enum):
    """How the replicas of a run are, together."""

    STARTING = auto()  # not all of them run yet
    RUNNING = auto()
    INCOMPLETE = auto()  # not all of them could be started, so the others are of no use
    FAILING = auto()  # one has failed, and others are still there
    OVER = auto()  # nothing of it is left, or nothing that matters: its outcome is known


class Fit(Enum):
    """How a run relates to the placement that is desired."""

    SAME = auto()
    IN_PLACE = auto()  # it can get there without a restart
    RESTART = auto()


class StopProgress(Enum):
    """How far a run is on its way out."""

    NO = auto()
    ASKED = auto()  # it was asked for a checkpoint, and runs on
    STOPPING = auto()
    KILLED = auto()  # all its replicas were told to end now


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """The run of a job as its backend sees it."""

    phase: RunPhase = RunPhase.RUNNING
    fit: Fit = Fit.SAME
    stop: StopProgress = StopProgress.NO
    is_adopted: bool = True  # this controller started it, or has taken it over
    is_announced: bool = False  # the scheduler knows that it runs at its placement
    can_save: bool = False  # it would hear a request for a checkpoint: all replicas run, and none hangs
    has_saved: bool = False  # the checkpoint that was asked for is complete
    deadline_s: float = math.inf  # until when it may take for the present step, as `Decision.deadline_s` said
    trails_until_s: float = math.inf  # its first replica has ended well, and the others may follow until then
    outcome: Outcome | None = None
    was_told_to_stop: bool = False
    streak: int = 0  # ends in a row that were not planned, with this one: the exponent of the back-off. 0: none is due


@dataclass(frozen=True, slots=True)
class Observed:
    """A job as its backend sees it."""

    run: ObservedRun | None = None
    is_concluded: bool = False  # its end was reported: nothing more is done
    time_limit: str = ""  # why it may run no longer, as a sentence, when it has run for as long as its user allows
    can_start: bool = True  # the GPUs of the desired placement are free of other runs, and of earlier ones of this job
    failures: int = 0  # failures of its own that count towards the limit, with that of a run that is over now


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done next with a job."""


@dataclass(frozen=True, slots=True)
class Start(Action):
    """Start all replicas together at this placement."""

    placement: Placement


class Adopt(Action):
    """Take over the run that an earlier controller began."""


class Announce(Action):
    """Tell the scheduler that the job runs at its placement."""


class Maintain(Action):
    """The run stays: bring it to its placement, and keep it there."""


class Resize(Action):
    """Change the run to the desired placement without a restart."""


class RequestCheckpoint(Action):
    """Ask the run to save; it has until the decision's deadline."""


class Stay(Action):
    """Take the request back: the run is to go on where it is."""


class StopReason(Enum):
    """Why a run is stopped."""

    LEAVE = auto()  # it is not wanted here any more: its end is no failure
    PEER_FAILED = auto()
    TRAILING = auto()  # the others did not end with the first replica, which ended well: so the run has, too


@dataclass(frozen=True, slots=True)
class Stop(Action):
    """Tell all replicas to end, with their grace."""

    reason: StopReason = StopReason.LEAVE
    has_saved: bool = False  # the checkpoint that was asked for is complete


@dataclass(frozen=True, slots=True)
class Kill(Action):
    """End all replicas at once; `force`: and what was to see to that, which did not."""

    force: bool = False


@dataclass(frozen=True, slots=True)
class Vacate(Action):
    """The run has left its GPUs as planned: for those of the desired placement, or for none."""

    moves: bool


class Detach(Action):
    """The run is over because the controller shuts down; the next one reports what became of it."""


@dataclass(frozen=True, slots=True)
class BackOff(Action):
    """The run is over by no plan: the job waits for another start, at least until `not_before_s`."""

    outcome: Outcome
    not_before_s: float


@dataclass(frozen=True, slots=True)
class GiveUp(Action):
    """The job has failed more often than its user allows: that is its end."""

    outcome: Outcome
    failures: int


@dataclass(frozen=True, slots=True)
class Conclude(Action):
    """The job is over: report this state, once."""

    state: JobState
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done now, in this order, and when to ask again though nothing happens."""

    actions: tuple[Action, ...] = ()
    due_s: float = math.inf
    deadline_s: float = math.inf  # until when the run may take for the step that it is in after the actions


def reconcile(desired: Desired, observed: Observed, now_s: float) -> Decision:
    """Return the next actions for a job. The same arguments give the same answer; nothing is remembered."""
    run = observed.run
    if observed.is_concluded:
        return Decision()
    if observed.time_limit and not desired.is_closing:
        reached = Outcome(RunEnd.TIME_LIMIT, detail=observed.time_limit)
        return Decision((Conclude(JobState.FAILED, reached),))
    if run is None:
        return _without_run(desired, observed)
    if not run.is_adopted:
        return Decision((Adopt(),), due_s=now_s)
    if run.outcome is not None:
        return Decision((_after_run(desired, observed, run, run.outcome, now_s),))
    match run.stop:
        case StopProgress.NO:
            return _while_running(desired, run, now_s)
        case StopProgress.ASKED:
            return _while_saving(desired, run, now_s)
        case StopProgress.STOPPING | StopProgress.KILLED:
            return _while_stopping(desired, run, now_s)


def _without_run(desired: Desired, observed: Observed) -> Decision:
    if desired.is_closing:
        return Decision()
    if desired.is_ending:
        return Decision((Conclude(JobState.CANCELLED, Outcome(RunEnd.STOPPED)),))
    if desired.placement is None or not observed.can_start:
        return Decision()
    return Decision((Start(desired.placement),))


def _is_planned(desired: Desired, run: ObservedRun) -> bool:
    """Whether it is by a decision of the scheduler or the user that the run leaves its GPUs."""
    return desired.is_ending or run.fit is not Fit.SAME


def _while_running(desired: Desired, run: ObservedRun, now_s: float) -> Decision:
    if run.phase is RunPhase.INCOMPLETE:
        return _waiting(now_s + desired.grace.overdue_s, Kill())
    if run.phase is RunPhase.FAILING:
        return _waiting(now_s + min(desired.grace.stop_s, desired.grace.peer_s), Stop(StopReason.PEER_FAILED))
    if desired.is_ending or desired.is_closing or run.fit is Fit.RESTART:
        return _leave(desired, run, now_s)
    if run.fit is Fit.IN_PLACE:
        return Decision((Resize(),))
    if now_s >= run.trails_until_s:
        return _stop(desired, run, now_s, Stop(StopReason.TRAILING))
    is_news = run.phase is RunPhase.RUNNING and not run.is_announced
    actions = (Announce(), Maintain()) if is_news else (Maintain(),)
    return Decision(actions, due_s=run.trails_until_s)


def _leave(desired: Desired, run: ObservedRun, now_s: float) -> Decision:
    """A run that saves on request is asked first. One that is cancelled has nothing to save for."""
    if desired.saves_on_request and run.can_save and not desired.is_ending:
        return _waiting(now_s + desired.grace.checkpoint_s, RequestCheckpoint())
    return _stop(desired, run, now_s, Stop())


def _while_saving(desired: Desired, run: ObservedRun, now_s: float) -> Decision:
    if run.phase is RunPhase.FAILING:
        return _while_running(desired, run, now_s)
    if not _is_planned(desired, run) and not desired.is_closing:
        return Decision((Stay(),), due_s=now_s)
    if run.has_saved or now_s >= run.deadline_s or desired.is_ending:
        return _stop(desired, run, now_s, Stop(has_saved=run.has_saved))
    return _waiting(run.deadline_s)


def _stop(desired: Desired, run: ObservedRun, now_s: float, stop: Stop) -> Decision:
    return _waiting(now_s + _stop_limit_s(desired, run), stop)


def _while_stopping(desired: Desired, run: ObservedRun, now_s: float) -> Decision:
    """The grace is not enforced here, but one who does not enforce it is not waited for."""
    deadline_s = min(run.deadline_s, now_s + _stop_limit_s(desired, run))
    if now_s < deadline_s:
        return _waiting(deadline_s)
    return _waiting(now_s + desired.grace.overdue_s, Kill(force=run.stop is StopProgress.KILLED))


def _stop_limit_s(desired: Desired, run: ObservedRun) -> float:
    grace = desired.grace
    if run.stop is StopProgress.KILLED:
        return grace.overdue_s
    return min(grace.stop_s, grace.cancel_s) if desired.is_ending else grace.stop_s + grace.overdue_s


def _waiting(deadline_s: float, *actions: Action) -> Decision:
    return Decision(actions, due_s=deadline_s, deadline_s=deadline_s)


def _after_run(desired: Desired, observed: Observed, run: ObservedRun, outcome: Outcome, now_s: float) -> Action:
    end = outcome.end
    if desired.is_closing:
        return Detach()
    if end is RunEnd.SUCCEEDED and not (desired.is_ending and run.was_told_to_stop):
        return Conclude(JobState.SUCCEEDED, outcome)
    if desired.is_ending:
        return Conclude(JobState.CANCELLED, outcome)
    if end is RunEnd.STOPPED or (end is RunEnd.LOST and _is_planned(desired, run)):
        return Vacate(moves=desired.placement is not None)
    if (state := outcome.final_state) is not None:
        return Conclude(state, outcome)
    if end in FAILURES and observed.failures > desired.restart.failure_limit:
        return GiveUp(outcome, observed.failures)
    return BackOff(outcome, now_s + desired.restart.backoff.pause_s(run.streak))
