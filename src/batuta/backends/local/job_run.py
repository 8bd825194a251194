"""One job on this machine: driven from its current state to the desired one, from any state.

`wanted` is a placement or None, and `is_ending` is true when the job shall end for good; commands set only
these. `run` is what runs. `drive` does the next step towards the desired state, if one can be done now:

    nothing runs, a placement is wanted        wait for its GPUs, then start all replicas together
    it runs at the wanted placement            report that once; when a replica fails, stop the others
    it runs at another placement               request a checkpoint, wait for it, stop, then as above
    all replicas have ended                    report the outcome, unless the job only moves

Jobs that look up their hosts while they run are resized without a restart. Horovod's driver asks the
discovery script every second, and starts and ends workers by itself. They inherit `CUDA_VISIBLE_DEVICES` from
it and take the GPU with their number: so the GPUs of the new placement have to be the first of those that the
job was started with. Everything else is a restart, as for all jobs.
"""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass, replace

from batuta.backends.local.addresses import NoPortFree
from batuta.backends.local.context import JobContext
from batuta.backends.local.job_files import (
    JobFiles,
    RunHistory,
    RunRecord,
    past_run,
    read_record,
    read_run_history,
)
from batuta.backends.local.live_run import LiveRun, Outcome, RunEnd, StopProgress, survivors_in
from batuta.backends.local.mounts import CannotMount, link_mounts
from batuta.backends.local.progress import ProgressFeed
from batuta.backends.local.replica_plan import Machine, plan_replicas, rank_count, workdir_of, write_hosts
from batuta.core.cluster import Placement
from batuta.core.event import JobEnded, JobInterrupted, JobStarted, TransitionTimed
from batuta.core.job import Job, JobId, JobKind, JobState
from batuta.core.reason import Evidence, Reason
from batuta.prediction import SpeedMeter
from batuta.spec.skypilot_keys import image_of
from batuta.spec.task import Task
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_paths import is_relative_target


def can_resize_in_place(machine: Machine, job: Job, record: RunRecord, wanted: Placement) -> bool:
    """Whether the run can go on at another place as it is."""
    if job.kind is not JobKind.HOROVOD_ELASTIC or not machine.knows(wanted):
        return False
    # By node and number: devices of virtual nodes have equal names.
    had = [(span.node, gpu) for span in record.first.spans for gpu in span.gpus]
    gets = [(span.node, gpu) for span in wanted.spans for gpu in span.gpus]
    return gets == had[: len(gets)]


def resize_in_place(files: JobFiles, record: RunRecord, wanted: Placement) -> RunRecord:
    """Tells the run of its new hosts. OSError when that is not possible."""
    write_hosts(files.control(record.number), wanted)
    return record.moved_to(wanted)


_log = logging.getLogger(__name__)
_LATE_S = 5.0
"""An end that is found so late happened while no server ran, or none could look."""


@dataclass(slots=True)
class TransitionSteps:
    """How long the steps of a transition took so far."""

    checkpoint_s: float | None = None
    stop_s: float | None = None


def server_fault(error: Exception) -> str:
    return f"a fault of the server, not of the job: {error!r} (server.log has the details)"


def _limit(task: Task) -> Evidence:
    return (("limit_s", task.max_exec_time_s or 0.0),)


class EventReporter:
    """Says what became of a job. Nothing of a run is thrown away before its end is durable."""

    def __init__(
        self, context: JobContext, files: JobFiles, task: Task, job: JobId, history: RunHistory
    ) -> None:
        self.steps = TransitionSteps()
        self._context = context
        self._files = files
        self._task = task
        self._job = job
        self._history = history

    def started(self, run: LiveRun, now_s: float) -> None:
        run.is_announced = True
        self._context.emit(JobStarted(now_s, self._job))
        if run.record.started_on is not None:
            return  # it changed its workers by itself, in an unknown time
        since_s = run.running_since_s
        start_s = None if since_s is None else max(0.0, since_s - run.record.started_s)
        self._timed(now_s, run.record.placement.size or 1, start_s)

    def left(self, run: LiveRun, now_s: float) -> None:
        """It has left its GPUs and has no others. The engine knows that since it wanted so."""
        self._files.discard_run(run.record.number)
        if self.steps.stop_s is not None:
            self._timed(now_s, 0, None)

    def moved(self, run: LiveRun) -> None:
        """It has left its GPUs for others, on which it will be started."""
        self._files.discard_run(run.record.number)

    def interrupted(self, now_s: float, outcome: Outcome, run: LiveRun | None = None) -> None:
        """It is gone, and waits again: at least for its back-off, unless only the server was shut down."""
        history, number = self._history, None if run is None else run.record.number
        at_once = run is not None and run.record.interrupted
        wait_s = 0.0 if at_once else self._context.timing.back_off(history.streak)
        detail = outcome.detail
        if outcome.end is RunEnd.FAILED and history.failures:
            most = self._task.max_restarts_on_errors
            detail += f" (restart {history.failures} of {most}, after {wait_s:g} s)"
        event = JobInterrupted(
            now_s, self._job, not_before_s=now_s + wait_s, exit_code=outcome.exit_code, detail=detail
        )
        self._context.emit(event)
        if number is not None:
            self._context.later(lambda: self._files.discard_run(number))

    def ended(self, now_s: float, state: JobState, outcome: Outcome, run: LiveRun | None = None) -> None:
        """It is over for good."""
        self._hand_over_result()
        detail = outcome.detail
        survivors = () if run is None else survivors_in(run.states)
        if survivors:
            note = f"processes {', '.join(map(str, survivors))} could not be killed"
            detail = f"{detail}; {note}" if detail else note
        ended_s = None if run is None else run.ended_s
        found_late = ended_s is not None and ended_s < now_s - _LATE_S
        self._context.emit(
            JobEnded(
                now_s,
                self._job,
                state,
                exit_code=outcome.exit_code,
                detail=detail,
                ended_s=ended_s if found_late else None,
                reason=Reason.TIME_LIMIT if outcome.end is RunEnd.TIME_LIMIT else None,
                evidence=_limit(self._task) if outcome.end is RunEnd.TIME_LIMIT else None,
            )
        )
        self._context.later(self._files.tidy)

    def broken(self, now_s: float, error: Exception) -> None:
        """It is over for a fault of ours, whatever became of it."""
        self._context.emit(JobEnded(now_s, self._job, JobState.FAILED, detail=server_fault(error)))
        self._context.later(self._files.tidy)

    def _hand_over_result(self) -> None:
        text = self._files.read_result()
        if text is None or self._context.on_result is None:
            return
        try:
            self._context.on_result(self._job, text)
        except Exception:
            # It stays in its file; the end of a job is not to be lost for it.
            _log.exception(
                "the result of job %s could not be handed over", self._job, extra={"job": self._job}
            )

    def _timed(self, now_s: float, gpus: int, start_s: float | None) -> None:
        steps, self.steps = self.steps, TransitionSteps()
        self._context.emit(TransitionTimed(now_s, self._job, gpus, steps.checkpoint_s, steps.stop_s, start_s))


class CannotLaunch(Exception):
    """Nothing was started, and why. It may be possible later."""


def launch_run(
    context: JobContext,
    files: JobFiles,
    task: Task,
    job: Job,
    placement: Placement,
    number: int,
    now_s: float,
    limit_s: float | None,
) -> LiveRun:
    """The run number `number` of a job, just started; see its `trouble` when not all of it could be.

    CannotLaunch when nothing could be started, because the disk is full for example; CannotMount when it
    never can be.
    """
    ranks = rank_count(job, placement)
    record = RunRecord(job.id, number, placement, ranks, port=0, started_s=now_s)
    owner = record.run_id(0)
    try:
        if not context.machine.knows(placement):
            raise CannotLaunch(f"this machine does not have {_shown(placement)}")
        files.prepare(number, context.directory_pool)
        if task.file_mounts and not image_of(task.image_id) and context.machine.mounts.why_not():
            relative = [mount for mount in task.file_mounts if is_relative_target(mount.target)]
            link_mounts(relative, workdir_of(task, files))
        record = record.at_port(context.ports.reserve(owner)[0])
        specs = plan_replicas(context.machine, files, task, job, record, limit_s)
        return LiveRun.start(files, record, specs)
    except CannotMount:
        files.discard_run(number)
        raise
    except (CannotLaunch, OSError, NoPortFree, ValueError) as problem:
        context.ports.release(owner)
        files.discard_run(number)
        raise CannotLaunch(f"it could not be started: {problem}") from problem


def _shown(placement: Placement) -> str:
    return ", ".join(f"{span.node}:{','.join(map(str, span.gpus))}" for span in placement.spans)


class JobRun:
    """The state machine of one job. Used by one thread."""

    def __init__(self, context: JobContext, files: JobFiles, task: Task, job: Job) -> None:
        self.job = job
        self.run: LiveRun | None = None
        self.wanted: Placement | None = None
        self.is_ending = False
        self.is_closing = False
        """The server shuts down and takes its jobs with it."""
        self.is_over = False
        self.due_s = math.inf
        """When to drive it even if nothing happens until then."""
        self._context = context
        self._files = files
        self._task = task
        self._history = read_run_history(files.history)
        self._feed = ProgressFeed(files, task, job, context.ranks)
        self._events = EventReporter(context, files, task, job.id, self._history)
        self._deadline_s = math.inf
        """Until when the run may take for its present step."""
        self._released_s = math.inf
        """When the run will have left the GPUs that it was told to leave without a restart."""

    @property
    def needs_start(self) -> bool:
        return self.run is None and self.wanted is not None and not (self.is_ending or self.is_closing)

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

    def adopt(self, run: LiveRun, *, is_announced: bool) -> None:
        """Takes over the run that a former server started."""
        run.is_announced = is_announced
        self._context.ports.claim(run.record.run_id(0), [run.record.port])
        self._take(run)

    def change(self, job: Job) -> None:
        """Takes note of what the user asks for now."""
        self.job = replace(self.job, size=job.size, min=job.min, max=job.max, sizes=job.sizes)
        self._feed.meter.changed(self.job)

    def start(self, now_s: float) -> None:
        """Starts all replicas at the wanted placement, whose GPUs are free."""
        placement, limit_s = self.wanted, self._task.max_exec_time_s
        assert placement is not None
        number = max([self._history.counted, *self._files.run_numbers()]) + 1
        left_s = None if limit_s is None else limit_s - self._history.ran_s
        if left_s is not None and left_s <= 0:
            detail = f"it reached its time limit of {limit_s:g} s"
            self._end(now_s, JobState.FAILED, Outcome(RunEnd.TIME_LIMIT, detail=detail))
            return
        try:
            run = launch_run(
                self._context, self._files, self._task, self.job, placement, number, now_s, left_s
            )
        except CannotMount as problem:
            self._end(now_s, JobState.FAILED, Outcome(RunEnd.CANNOT_START, detail=str(problem)))
            return
        except CannotLaunch as problem:
            self._history.note(number, None, 0.0, failed=False, unwanted=True)
            self._history.keep()
            self._interrupt(now_s, Outcome(RunEnd.LOST, detail=str(problem)))
            return
        self._take(run)
        self.due_s = now_s if run.trouble else math.inf

    def kill(self, now_s: float) -> None:
        """Ends what runs without any grace."""
        if self.run is not None:
            self.run.leave(now_s, interrupted=not self._is_planned(self.run))
            self.run.kill()
            self._give(now_s + self._context.timing.overdue_s)

    def read(self, now_s: float) -> SpeedMeter:
        """Reads new progress reports, and says nothing of them yet; returns what measures by them."""
        self._feed.read(now_s)
        return self._feed.meter

    def poll(self, now_s: float, *, at_end: bool = False) -> None:
        """Reads new progress reports."""
        news = self._feed.poll(now_s, at_end=at_end)
        if news is not None:
            self._context.emit(news)
        saved = self._feed.checkpoints.news(now_s, at_last=at_end)
        if saved is not None:
            self._context.emit(saved)
        if self.run is not None and self.run.going is StopProgress.NO and not at_end:
            for found in self._feed.ranks.look(now_s):
                self._context.held_up(found)

    # ---------------------------------------------------------------------------------------- step by step

    def drive(self, now_s: float) -> None:
        """Does what can be done now."""
        self.due_s = math.inf
        run = self.run
        if run is None:
            if self.is_ending and not (self.is_over or self.is_closing):
                self._end(now_s, JobState.CANCELLED, Outcome(RunEnd.STOPPED))
        elif run.is_over:
            self._conclude(run, now_s)
        elif run.going is StopProgress.NO:
            self._go_on(run, now_s)
        elif run.going is StopProgress.ASKED:
            self._await_checkpoint(run, now_s)
        else:
            self._await_end(run, now_s)

    def _take(self, run: LiveRun) -> None:
        self.run = run
        self._deadline_s = self._released_s = math.inf
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

    def _go_on(self, run: LiveRun, now_s: float) -> None:
        if run.trouble or run.is_partial:
            run.kill()
            self._give(now_s + self._context.timing.overdue_s)
        elif run.has_failed:
            run.stop(now_s)
            self._give(now_s + min(self._task.elastic.grace_s, self._context.timing.peer_grace_s))
        elif self.is_going:
            if not self._changes_in_place(run, now_s):
                self._begin_to_leave(run, now_s)
        else:
            if not run.is_announced and run.all_run:
                self._events.started(run, now_s)
            self._release(run, now_s)
            self._bound_by_rank_0(run, now_s)

    def _bound_by_rank_0(self, run: LiveRun, now_s: float) -> None:
        """Agents of torchrun meet through rank 0's: when that has left, the others may wait for ever."""
        if self.job.kind is not JobKind.TORCH_ELASTIC or (ended_s := run.led_to_end_s) is None:
            return
        wait_until_s = ended_s + self._task.elastic.grace_s
        if now_s < wait_until_s:
            self.due_s = min(self.due_s, wait_until_s)
        else:
            run.bring_up_the_rear(now_s)
            self._await_end(run, now_s)

    def _changes_in_place(self, run: LiveRun, now_s: float) -> bool:
        """Whether the run goes on at the wanted place without a restart, now or when its GPUs are free."""
        context, wanted = self._context, self.wanted
        if wanted is None or self.is_ending or self.is_closing or not run.all_run:
            return False
        if not can_resize_in_place(context.machine, self.job, run.record, wanted):
            return False
        if context.occupancy.on(wanted) - {self.job.id}:
            self.due_s = now_s + context.timing.poll_s
            return True
        try:
            record = resize_in_place(self._files, run.record, wanted)
        except OSError:
            return False
        context.occupancy.take(self.job.id, Placement((*run.record.placement.spans, *wanted.spans)))
        run.move(record)
        self._released_s = now_s + context.timing.release_s
        self._begin_reports(now_s, record)
        self._go_on(run, now_s)
        return True

    def _release(self, run: LiveRun, now_s: float) -> None:
        """Gives GPUs free that the run has left by itself, when it has had the time to."""
        if now_s < self._released_s < math.inf:
            self.due_s = self._released_s
        elif now_s >= self._released_s:
            self._released_s = math.inf
            self._context.occupancy.take(self.job.id, run.record.placement)

    def _begin_to_leave(self, run: LiveRun, now_s: float) -> None:
        elastic = self._task.elastic
        self._events.steps = TransitionSteps()
        # Who hangs does not answer.
        can_answer = run.all_run and not self._feed.ranks.is_hung
        if elastic.checkpoint is Checkpoint.ON_SIGNAL and can_answer and not self.is_ending:
            run.ask_for_checkpoint(now_s)
            self._feed.asked(now_s)
            grace_s = elastic.grace_s
            if self.job.keeps_size_until_saved and not self._feed.checkpoints.are_seen:
                grace_s = min(grace_s, self._context.timing.unseen_grace_s)
            self._deadline_s = now_s + grace_s
            self.due_s = min(self._deadline_s, now_s + self._context.timing.poll_asked_s)
        else:
            self._leave(run, now_s)

    def _await_checkpoint(self, run: LiveRun, now_s: float) -> None:
        self.poll(now_s)
        if run.has_failed:
            run.going = StopProgress.NO
            self._go_on(run, now_s)
        elif not self._is_planned(run) and not self.is_closing:
            run.stay()
            self._give(math.inf)
            self._go_on(run, now_s)
        elif self._feed.checkpoints.has_answered(run.request) or run.is_answered:
            run.checkpointed_s = now_s
            if not self._feed.checkpoints.has_answered(run.request):
                self._feed.checkpoints.saved(now_s)  # by a script that answers in the file alone
            self._events.steps.checkpoint_s = now_s - (run.record.asked_s or now_s)
            self._feed.meter.transitions.checkpointed(now_s)
            self._leave(run, now_s)
        elif now_s >= self._deadline_s or self.is_ending:
            self._leave(run, now_s)
        else:
            self.due_s = min(self._deadline_s, now_s + self._context.timing.poll_asked_s)

    def _leave(self, run: LiveRun, now_s: float) -> None:
        run.leave(now_s, interrupted=not self._is_planned(run))
        self._feed.meter.transitions.asked(now_s)  # changes nothing if it was asked before
        self._give(math.inf)
        self._await_end(run, now_s)

    def _is_planned(self, run: LiveRun) -> bool:
        """Whether it is by a decision that the run has to go."""
        return self.is_ending or self.wanted != run.record.placement

    def _await_end(self, run: LiveRun, now_s: float) -> None:
        """Runners kill what is left after their grace; here, it is only seen to that they do."""
        timing, grace_s = self._context.timing, self._task.elastic.grace_s
        if run.going is StopProgress.KILLED:
            limit_s = timing.overdue_s
        else:
            limit_s = min(grace_s, timing.cancel_grace_s) if self.is_ending else grace_s + timing.overdue_s
        self._give(min(self._deadline_s, now_s + limit_s))
        if now_s >= self._deadline_s:
            if run.going is StopProgress.KILLED:
                run.kill_runners()
            else:
                run.kill()
            self._give(now_s + timing.overdue_s)

    def _give(self, deadline_s: float) -> None:
        self._deadline_s = self.due_s = deadline_s

    # --------------------------------------------------------------------------------------------- the end

    def _conclude(self, run: LiveRun, now_s: float) -> None:
        """All replicas are over: their GPUs are free, and the job has ended, moves on or waits again."""
        record = run.record
        self._context.ports.release(record.run_id(0))
        self._context.occupancy.release(self.job.id)
        self.run = None
        if self.is_closing:
            return  # all is on disk for the next server
        if not run.is_announced and run.all_have_run and not self._is_planned(run):
            self._events.started(run, now_s)
        self.poll(now_s, at_end=True)
        self._feed.ended(now_s)
        self._files.keep_result(record.number)
        begun_s = run.checkpointed_s or record.asked_s or run.stop_sent_s
        if begun_s is not None:
            self._events.steps.stop_s = max(0.0, now_s - begun_s)
        outcome = self._excused(run, run.judge())
        self._note(run, outcome, now_s)
        self._decide(run, outcome, now_s)

    def _excused(self, run: LiveRun, outcome: Outcome) -> Outcome:
        """A job that failed because its GPU did is lost and not to blame."""
        if outcome.end is not RunEnd.FAILED:
            return outcome
        record, gpus = run.record, self.job.gpus_per_replica
        why = self._context.excuse(self.job.id, record.placement.workers(gpus), record.started_s)
        return replace(outcome, end=RunEnd.LOST, detail=f"{why}; {outcome.detail}") if why else outcome

    def give_up(self, now_s: float, error: Exception) -> None:
        """Ends the job for a fault of ours: all of it is killed, and nothing is left to go wrong again."""
        self.run, self.is_over, self.wanted = None, True, None
        for number in self._files.run_numbers():
            # From disk: what was started last may not even be known here.
            with contextlib.suppress(Exception):
                if (record := read_record(self._files, number)) is not None:
                    LiveRun.find(self._files, record).destroy()
                    self._context.ports.release(record.run_id(0))
        self._context.occupancy.release(self.job.id)
        self._events.broken(now_s, error)

    def _note(self, run: LiveRun, outcome: Outcome, now_s: float) -> None:
        failed = outcome.end is RunEnd.FAILED and outcome.exit_code not in self._task.recover_on_exit_codes
        unwanted = outcome.end in {RunEnd.FAILED, RunEnd.LOST} and not run.record.interrupted
        past = past_run(run.record, run.checkpointed_s, now_s)
        self._history.note(run.record.number, past, run.ran_s, failed=failed, unwanted=unwanted)

    def _decide(self, run: LiveRun, outcome: Outcome, now_s: float) -> None:
        """What becomes of the job after this run."""
        end = outcome.end
        if end is RunEnd.SUCCEEDED and not (self.is_ending and run.record.leaving):
            self._end(now_s, JobState.SUCCEEDED, outcome, run)
        elif self.is_ending:
            self._end(now_s, JobState.CANCELLED, outcome, run)
        elif end is RunEnd.STOPPED or (end is RunEnd.LOST and self._is_planned(run)):
            self._history.keep()
            if self.wanted is None:
                self._events.left(run, now_s)
            else:
                self._events.moved(run)
        elif (state := outcome.final_state) is not None:
            self._end(now_s, state, outcome, run)
        elif end is RunEnd.FAILED and self._history.failures > self._task.max_restarts_on_errors:
            self._end(now_s, JobState.FAILED, outcome, run)
        else:
            self._history.keep()
            self._interrupt(now_s, outcome, run)

    def _interrupt(self, now_s: float, outcome: Outcome, run: LiveRun | None = None) -> None:
        self.wanted = None  # the engine will say anew what it wants
        self._events.interrupted(now_s, outcome, run)

    def _end(self, now_s: float, state: JobState, outcome: Outcome, run: LiveRun | None = None) -> None:
        self.is_over, self.wanted = True, None
        self._events.ended(now_s, state, outcome, run)
