"""One job on this machine: driven from its current state to the desired one, from any state.

`wanted` is a placement or None, and `is_ending` is true when the job shall end for good; commands set only these. `run`
is what runs. `drive` observes it, asks `engine/jobs/reconcile.py` for the next actions, and carries them out.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from batuta.backends.local.context import JobContext
from batuta.backends.local.job_files import JobFiles, RunHistory, RunRecord, past_run, read_record, read_run_history
from batuta.backends.local.live_run import CannotLaunch, LiveRun, can_resize_in_place, launch_run, resize_in_place
from batuta.backends.local.mounts import CannotMount
from batuta.backends.local.progress import ProgressFeed
from batuta.backends.local.supervisor.process_tree import CannotTell
from batuta.core.cluster import Placement
from batuta.core.event import JobEnded, JobInterrupted, JobStarted, TransitionTimed
from batuta.core.job import Job, JobId, JobKind, JobState
from batuta.core.reason import Reason
from batuta.engine.jobs import reconcile as controller
from batuta.engine.jobs.outcome import FAILURES, Outcome, RunEnd
from batuta.engine.jobs.reconcile import Fit, Observed, ObservedRun, RunPhase, StopProgress
from batuta.prediction import SpeedMeter
from batuta.spec.task import Task
from batuta.spec.task_elastic import Checkpoint

_log = logging.getLogger(__name__)
_LATE_S = 5.0  # an end that is found so late happened while no server ran, or none could look


def server_fault(error: Exception) -> str:
    return f"a fault of the server, not of the job: {error!r} (server.log has the details)"


@dataclass(slots=True)
class EventReporter:
    """Says what became of a job. Nothing of a run is thrown away before its end is durable."""

    _context: JobContext
    _files: JobFiles
    _task: Task
    _job: JobId
    _history: RunHistory
    checkpoint_s: float | None = None
    stop_s: float | None = None  # how long the steps of the present transition took so far

    def started(self, run: LiveRun, now_s: float) -> None:
        run.is_announced = True
        self._context.emit(JobStarted(now_s, self._job))
        if run.record.started_on is not None:
            return  # it changed its workers by itself, in an unknown time
        since_s = run.running_since_s
        start_s = None if since_s is None else max(0.0, since_s - run.record.started_s)
        self._timed(now_s, run.record.placement.size or 1, start_s)

    def vacated(self, run: LiveRun, now_s: float, *, moves: bool) -> None:
        """It has left its GPUs, for others if it moves. The engine knows that since it wanted so."""
        if self._has_kept_history():
            self._files.discard_run(run.record.number)
        if self.stop_s is not None and not moves:
            self._timed(now_s, 0, None)

    def interrupted(self, now_s: float, not_before_s: float, outcome: Outcome, run: LiveRun | None = None) -> None:
        """It is gone, and waits again, at least until `not_before_s`."""
        history, number = self._history, None if run is None else run.record.number
        detail = outcome.detail
        if outcome.end in FAILURES and history.failures:
            most = self._task.max_restarts_on_errors
            detail += f" (restart {history.failures} of {most}, after {not_before_s - now_s:g} s)"
        event = JobInterrupted(now_s, self._job, not_before_s=not_before_s, exit_code=outcome.exit_code, detail=detail)
        self._context.emit(event)
        if number is not None and self._has_kept_history():
            self._context.later(lambda: self._files.discard_run(number))

    def ended(self, now_s: float, state: JobState, outcome: Outcome, run: LiveRun | None = None) -> None:
        self._hand_over_result()
        detail = outcome.detail
        survivors = [] if run is None else [pid for state in run.states for pid in state.survivors]
        if survivors:
            note = f"processes {', '.join(map(str, survivors))} could not be killed"
            detail = f"{detail}; {note}" if detail else note
        ended_s = None if run is None else run.ended_s
        event = JobEnded(now_s, self._job, state, exit_code=outcome.exit_code, detail=detail)
        if ended_s is not None and ended_s < now_s - _LATE_S:
            event = replace(event, ended_s=ended_s)
        match outcome.end:
            case RunEnd.TIME_LIMIT:
                limit = (("limit_s", self._task.max_exec_time_s or 0.0),)
                event = replace(event, reason=Reason.TIME_LIMIT, evidence=limit)
            case RunEnd.PROCESS_LIMIT:
                event = replace(event, reason=Reason.PROCESS_LIMIT, evidence=(("limit", outcome.limit or 0.0),))
            case RunEnd.MEMORY_LIMIT:
                limit = (("limit_gib", (outcome.limit or 0.0) / 2**30),)
                event = replace(event, reason=Reason.MEMORY_LIMIT, evidence=limit)
        self._context.emit(event)
        self._context.later(self._files.tidy)

    def broken(self, now_s: float, error: Exception) -> None:
        """It is over for a fault of ours, whatever became of it."""
        self._context.emit(JobEnded(now_s, self._job, JobState.FAILED, detail=server_fault(error)))
        self._context.later(self._files.tidy)

    def _has_kept_history(self) -> bool:
        """Whether the run's end is written down. While it is not, the run's folder tells the next server of it."""
        try:
            self._history.keep()
        except OSError:
            return False
        return True

    def _hand_over_result(self) -> None:
        text = self._files.read_result()
        if text is None or self._context.on_result is None:
            return
        try:
            self._context.on_result(self._job, text)
        except Exception:
            # It stays in its file; the end of a job is not to be lost for it.
            _log.exception("the result of job %s could not be handed over", self._job, extra={"job": self._job})

    def _timed(self, now_s: float, gpus: int, start_s: float | None) -> None:
        self._context.emit(TransitionTimed(now_s, self._job, gpus, self.checkpoint_s, self.stop_s, start_s))
        self.begin_transition()

    def begin_transition(self) -> None:
        self.checkpoint_s = self.stop_s = None


class JobRun:
    """One job: observes its run, and carries out what `reconcile` decides. Used by one thread."""

    def __init__(self, context: JobContext, files: JobFiles, task: Task, job: Job) -> None:
        self.job = job
        self.run: LiveRun | None = None
        self.wanted: Placement | None = None
        self.is_ending = False
        self.is_closing = False  # the server shuts down and takes its jobs with it
        self.is_over = False
        self.due_s = math.inf  # when to drive it even if nothing happens until then
        self._context = context
        self._files = files
        self._task = task
        self._history = read_run_history(files.history)
        self._feed = ProgressFeed(files, task, job, context.ranks)
        self.read_s = -math.inf  # when its reports were last read
        self._progress = self._feed.progress
        self._events = EventReporter(context, files, task, job.id, self._history)
        self._found: tuple[RunRecord, bool] | None = None
        """The run that a former server started and that is not adopted yet; whether it was announced."""
        self._deadline_s = math.inf  # until when the run may take for its present step
        self._released_s = math.inf  # when the run will have left the GPUs that it was told to leave without a restart
        self._cannot_resize_to: Placement | None = None
        """The run could not be told of this placement, so it is restarted there."""

    @property
    def has_run(self) -> bool:
        """Whether something of it runs, or may."""
        return self.run is not None or self._found is not None

    @property
    def needs_start(self) -> bool:
        return not self.has_run and self.wanted is not None and not (self.is_ending or self.is_closing)

    @property
    def is_going(self) -> bool:
        """Whether what runs is to leave its GPUs."""
        run = self.run
        moving = run is not None and (self.wanted != run.record.placement or run.going is not StopProgress.NO)
        return moving or self.is_ending or self.is_closing

    def remember(self, now_s: float, current: RunRecord | None = None) -> None:
        """Reads what the job has reported so far, before this server or the job's present machine."""
        past = self._history.past
        if current is not None and current.number > self._history.counted:
            past = [*past, past_run(current)]
        if past:
            self._feed.remember(past, now_s)

    def find(self, record: RunRecord, *, is_announced: bool) -> None:
        """A former server has started this run: it is adopted when the job is driven."""
        self._found = record, is_announced

    def change(self, job: Job) -> None:
        """Takes note of what the user asks for now."""
        self.job = replace(self.job, size=job.size, min=job.min, max=job.max, sizes=job.sizes)
        self._feed.meter.changed(self.job)

    def kill(self, now_s: float) -> None:
        """Ends what runs without any grace."""
        if self.run is not None:
            self.run.leave(now_s, interrupted=not self._is_planned(self.run))
            self.run.kill()
            self._deadline_s = self.due_s = now_s + self._context.timing.overdue_s

    def read(self, now_s: float, *, at_end: bool = False) -> SpeedMeter:
        """Reads new progress reports, and says nothing of them yet; returns what measures by them."""
        self.read_s = now_s
        self._feed.read(now_s, at_end=at_end)
        return self._feed.meter

    def tell(self, now_s: float, *, at_end: bool = False) -> None:
        """Says what is new in the reports that were read."""
        news = self._progress.news(now_s, at_last=at_end)
        if news is not None:
            self._context.emit(news)
        saved = self._progress.checkpoints.news(now_s, at_last=at_end)
        if saved is not None:
            self._context.emit(saved)
        if self.run is not None and self.run.going is StopProgress.NO and not at_end:
            for found in self._progress.ranks.look(now_s):
                self._context.held_up(found)

    def drive(self, now_s: float, *, can_start: bool = False) -> None:
        """Does what can be done now. `can_start`: the GPUs that it wants are free."""
        self.due_s = math.inf
        run = self.run
        if run is not None and run.is_over:
            self._finish(run, now_s)
            return
        if run is not None and run.going is StopProgress.ASKED:
            self.read(now_s)
            self.tell(now_s)
        self._reconcile(self._observe(run, can_start), run, now_s)

    def _reconcile(self, observed: Observed, run: LiveRun | None, now_s: float) -> None:
        decision = controller.reconcile(self._desired(), observed, now_s)
        self._deadline_s, self.due_s = decision.deadline_s, decision.due_s
        for action in decision.actions:
            self._carry_out(action, run, now_s)
        if self.run is not None and self.run.going is StopProgress.ASKED:
            self.due_s = min(self.due_s, now_s + self._context.timing.poll_asked_s)

    def _desired(self) -> controller.Desired:
        timing, elastic = self._context.timing, self._task.elastic
        checkpoint_s = elastic.grace_s
        if not self._progress.checkpoints.are_seen:
            checkpoint_s = min(checkpoint_s, timing.unseen_grace(self._task))
        return controller.Desired(
            self.wanted,
            is_ending=self.is_ending,
            is_closing=self.is_closing,
            saves_on_request=elastic.checkpoint is Checkpoint.ON_SIGNAL,
            grace=controller.Grace(
                checkpoint_s, elastic.grace_s, timing.cancel_grace_s, timing.peer_grace_s, timing.overdue_s
            ),
            restart=controller.RestartPolicy(self._task.max_restarts_on_errors, timing.backoff),
        )

    def _observe(self, run: LiveRun | None, can_start: bool) -> Observed:
        if run is None:
            found = None if self._found is None else ObservedRun(is_adopted=False)
            limit_s, time_limit = self._task.max_exec_time_s, ""
            if limit_s is not None and self._history.ran_s >= limit_s and self.needs_start:
                time_limit = f"it reached its time limit of {limit_s:g} s"
            return Observed(found, is_concluded=self.is_over, time_limit=time_limit, can_start=can_start)
        is_asked = run.going is StopProgress.ASKED
        return Observed(
            ObservedRun(
                run.phase,
                self._fit(run),
                run.going,
                is_announced=run.is_announced,
                # A run that hangs does not answer.
                can_save=run.all_run and not self._progress.ranks.is_hung,
                has_saved=is_asked and (self._progress.checkpoints.has_answered(run.request) or run.is_answered),
                deadline_s=self._deadline_s,
                trails_until_s=self._trails_until_s(run),
            )
        )

    def _fit(self, run: LiveRun) -> Fit:
        wanted = self.wanted
        if wanted == run.record.placement:
            return Fit.SAME
        if wanted is None or wanted == self._cannot_resize_to or not run.all_run:
            return Fit.RESTART
        is_able = can_resize_in_place(self._context.machine, self.job, run.record, wanted)
        return Fit.IN_PLACE if is_able else Fit.RESTART

    def _is_planned(self, run: LiveRun) -> bool:
        """Whether it is by a decision that the run has to go."""
        return self.is_ending or self.wanted != run.record.placement

    def _trails_until_s(self, run: LiveRun) -> float:
        """Agents of torchrun meet through rank 0's: when that has left, the others may wait for ever."""
        if self.job.kind is not JobKind.TORCH_ELASTIC or (ended_s := run.led_to_end_s) is None:
            return math.inf
        return ended_s + self._task.elastic.grace_s

    def _carry_out(self, action: controller.Action, run: LiveRun | None, now_s: float) -> None:
        match action:
            case controller.Start(placement):
                self._start(placement, now_s)
            case controller.Adopt():
                self._adopt()
            case controller.Conclude(state, outcome):
                self._end(now_s, state, outcome, run)
            case controller.GiveUp(outcome):
                self._end(now_s, JobState.FAILED, outcome, run)
            case controller.BackOff(outcome, not_before_s):
                self.wanted = None  # the engine will say anew what it wants
                self._events.interrupted(now_s, not_before_s, outcome, run)
            case controller.Detach():
                pass  # all is on disk for the next server
            case _:
                assert run is not None
                self._carry_out_on_run(action, run, now_s)

    def _carry_out_on_run(self, action: controller.Action, run: LiveRun, now_s: float) -> None:
        match action:
            case controller.Announce():
                self._events.started(run, now_s)
            case controller.Maintain():
                self._release(run, now_s)
            case controller.Resize():
                self._resize(run, now_s)
            case controller.RequestCheckpoint():
                self._events.begin_transition()
                run.ask_for_checkpoint(now_s)
                self._progress.asked(now_s)
            case controller.Stay():
                run.stay()
            case controller.Stop():
                self._stop(run, action, now_s)
            case controller.Kill(force=True):
                run.kill_runners()
            case controller.Kill():
                run.kill()
            case controller.Vacate(moves):
                self._events.vacated(run, now_s, moves=moves)

    def _start(self, placement: Placement, now_s: float) -> None:
        """Starts all replicas at the wanted placement, whose GPUs are free."""
        numbers = self._files.run_numbers()
        number = max([self._history.counted, *numbers]) + 1
        limit_s = self._task.max_exec_time_s
        left_s = None if limit_s is None else limit_s - self._history.ran_s
        try:
            self._keep_history(numbers)
            run = launch_run(self._context, self._files, self._task, self.job, placement, number, now_s, left_s)
        except CannotMount as problem:
            self._settle(None, Outcome(RunEnd.CANNOT_START, detail=str(problem)), now_s)
            return
        except CannotLaunch as problem:
            self._history.note(number, None, 0.0, failed=False, unwanted=True)
            self._settle(None, Outcome(RunEnd.LOST, detail=str(problem)), now_s)
            return
        self._take(run)
        self.due_s = now_s if run.trouble else math.inf

    def _keep_history(self, numbers: Sequence[int]) -> None:
        """Writes down how earlier runs ended, and discards them. CannotLaunch when it cannot be written now.

        The next server looks at the newest run alone: an end that is not written down before would not count.
        """
        try:
            self._history.keep()
        except OSError as problem:
            raise CannotLaunch(f"it could not be started: {problem}") from problem
        for number in numbers:
            if number <= self._history.counted:
                self._files.discard_run(number)

    def _adopt(self) -> None:
        """Takes over the run that a former server started."""
        assert self._found is not None
        record, is_announced = self._found
        run = LiveRun.find(self._files, record)
        run.is_announced = is_announced
        self._found = None
        self._context.ports.claim(record.run_id(0), record.port)
        self._take(run)

    def _take(self, run: LiveRun) -> None:
        self.run = run
        self._deadline_s = self._released_s = math.inf
        self._cannot_resize_to = None
        record = run.record
        self._context.occupancy.take(self.job.id, record.placement)
        self._begin_reports(record.started_s, record)
        for rank, replica in run.replicas:
            self._context.watch(replica, self.job.id, rank)

    def _begin_reports(self, since_s: float, record: RunRecord) -> None:
        """Of workers that one replica starts by itself, the nodes are unknown."""
        workers = record.placement.workers(self.job.gpus_per_replica)
        is_known = record.ranks == len(workers) or len(set(record.placement.nodes)) == 1
        places = [worker.node for worker in workers] if is_known else []
        self._feed.began(since_s, record.number, record.placement, places)

    def _resize(self, run: LiveRun, now_s: float) -> None:
        """Tells the run of its new hosts, as soon as their GPUs are free."""
        context, wanted = self._context, self.wanted
        assert wanted is not None
        if context.occupancy.on(wanted) - {self.job.id}:
            self.due_s = now_s + context.timing.poll_s
            return
        self.due_s = now_s
        try:
            record = resize_in_place(self._files, run.record, wanted)
        except OSError:
            self._cannot_resize_to = wanted
            return
        context.occupancy.take(self.job.id, Placement((*run.record.placement.spans, *wanted.spans)))
        run.move(record)
        self._released_s = now_s + context.timing.release_s
        self._begin_reports(now_s, record)

    def _release(self, run: LiveRun, now_s: float) -> None:
        """Gives GPUs free that the run has left by itself, when it has had the time to."""
        if now_s < self._released_s < math.inf:
            self.due_s = min(self.due_s, self._released_s)
        elif now_s >= self._released_s:
            self._released_s = math.inf
            self._context.occupancy.take(self.job.id, run.record.placement)

    def _stop(self, run: LiveRun, stop: controller.Stop, now_s: float) -> None:
        match stop.reason:
            case controller.StopReason.PEER_FAILED:
                run.stop(now_s)
            case controller.StopReason.TRAILING:
                run.bring_up_the_rear(now_s)
            case controller.StopReason.LEAVE:
                if run.going is StopProgress.NO:
                    self._events.begin_transition()
                elif stop.has_saved:
                    self._note_checkpoint(run, now_s)
                run.leave(now_s, interrupted=not self._is_planned(run))
                self._feed.meter.transitions.asked(now_s)  # changes nothing if it was asked before

    def _note_checkpoint(self, run: LiveRun, now_s: float) -> None:
        run.checkpointed_s = now_s
        if not self._progress.checkpoints.has_answered(run.request):
            self._progress.checkpoints.saved(now_s)  # by a script that answers in the file alone
        self._events.checkpoint_s = now_s - (run.record.asked_s or now_s)

    def _finish(self, run: LiveRun, now_s: float) -> None:
        """All replicas are over: their GPUs are free, and the job has ended, moves on or waits again."""
        record = run.record
        if not self.is_closing:
            self._files.keep_result(record.number)  # first of all: it may have to be tried again
        self._context.ports.release(record.run_id(0))
        self._context.occupancy.release(self.job.id)
        self.run = None
        if self.is_closing:
            self._settle(run, Outcome(RunEnd.STOPPED), now_s)
            return
        if not run.is_announced and run.all_have_run and not self._is_planned(run):
            self._events.started(run, now_s)
        self.read(now_s, at_end=True)
        self.tell(now_s, at_end=True)
        self._progress.ended(now_s)
        begun_s = run.checkpointed_s or record.asked_s or run.stop_sent_s
        if begun_s is not None:
            self._events.stop_s = max(0.0, now_s - begun_s)
        outcome = self._excused(run, run.judge())
        # A limit would be reached again: whatever exit code the kernel gave it, that counts.
        is_forgiven = outcome.end is RunEnd.FAILED and outcome.exit_code in self._task.recover_on_exit_codes
        failed = outcome.end in FAILURES and not is_forgiven
        unwanted = outcome.end in {*FAILURES, RunEnd.LOST} and not record.interrupted
        past = past_run(record, run.checkpointed_s, now_s)
        self._history.note(record.number, past, run.ran_s, failed=failed, unwanted=unwanted)
        self._settle(run, outcome, now_s)

    def _settle(self, run: LiveRun | None, outcome: Outcome, now_s: float) -> None:
        """Lets the job go on after a run that is over, or that could not be started."""
        is_interrupted = run is not None and run.record.interrupted
        ended = ObservedRun(
            RunPhase.OVER,
            Fit.SAME if run is None else self._fit(run),
            outcome=outcome,
            was_told_to_stop=run is not None and run.record.leaving,
            # After a mere shut-down of the server there is nothing to wait for.
            streak=0 if is_interrupted else max(self._history.streak, 1),
        )
        self._reconcile(Observed(ended, failures=self._history.failures), run, now_s)

    def _excused(self, run: LiveRun, outcome: Outcome) -> Outcome:
        """A job that failed because its GPU did is lost and not to blame."""
        if outcome.end is not RunEnd.FAILED:
            return outcome
        record, gpus = run.record, self.job.gpus_per_replica
        why = self._context.excuse(self.job.id, record.placement.workers(gpus), record.started_s)
        return replace(outcome, end=RunEnd.LOST, detail=f"{why}; {outcome.detail}") if why else outcome

    def give_up(self, now_s: float, error: Exception) -> None:
        """Ends the job for a fault of ours: all of it is killed, and nothing is left to go wrong again."""
        self.run, self.is_over, self.wanted, self._found = None, True, None, None
        numbers: list[int] = []
        with contextlib.suppress(CannotTell):
            numbers = self._files.run_numbers()
        for number in numbers:
            # From disk: what was started last may not even be known here.
            with contextlib.suppress(Exception):
                if (record := read_record(self._files, number)) is not None:
                    LiveRun.find(self._files, record).destroy()
                    self._context.ports.release(record.run_id(0))
        self._context.occupancy.release(self.job.id)
        self._events.broken(now_s, error)

    def _end(self, now_s: float, state: JobState, outcome: Outcome, run: LiveRun | None = None) -> None:
        self.is_over, self.wanted = True, None
        self._events.ended(now_s, state, outcome, run)
