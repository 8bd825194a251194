"""One job on this machine: driven from what is to what is wanted, at any time and from any state.

`wanted` is a placement or nothing, and `is_ending` when the job shall end for good; commands set only these.
`run` is what is. `drive` does the next step towards the wanted, if one can be done now:

    nothing runs, a placement is wanted        wait for its GPUs, then start all replicas in one go
    it runs at the wanted place                say so once; when a replica fails, stop the others
    it runs elsewhere than wanted              ask for a checkpoint, wait for it, stop, then as above
    all replicas are over                      say what that means, unless it was only to move
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

from batuta.backends.local.in_place import can_change_in_place, change_in_place
from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.job_voice import JobVoice, Steps
from batuta.backends.local.launching import CannotLaunch, launch_run
from batuta.backends.local.ledger import past_run, read_ledger
from batuta.backends.local.live_run import Going, LiveRun
from batuta.backends.local.mounts import CannotMount
from batuta.backends.local.outcome import End, Outcome
from batuta.backends.local.progress_feed import ProgressFeed
from batuta.backends.local.run_record import RunRecord, read_record
from batuta.backends.local.site import Site
from batuta.core.cluster import Placement
from batuta.core.job import Job, JobKind, JobState
from batuta.prediction import SpeedMeter
from batuta.spec.task import Task
from batuta.spec.task_elastic import Checkpoint


class JobRun:
    """The state machine of one job. Used by one thread."""

    def __init__(self, site: Site, files: JobFiles, task: Task, job: Job) -> None:
        self.job = job
        self.run: LiveRun | None = None
        self.wanted: Placement | None = None
        self.is_ending = False
        self.is_closing = False
        """The server shuts down and takes its jobs with it."""
        self.is_over = False
        self.due_s = math.inf
        """When to drive it even if nothing happens until then."""
        self._site = site
        self._files = files
        self._task = task
        self._ledger = read_ledger(files.ledger)
        self._feed = ProgressFeed(files, task, job, site.ranks)
        self._voice = JobVoice(site, files, task, job.id, self._ledger)
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
        moving = run is not None and (self.wanted != run.record.placement or run.going is not Going.NO)
        return moving or self.is_ending or self.is_closing

    def remember(self, now_s: float, current: RunRecord | None = None) -> None:
        """Reads what the job has reported so far, before this server or the job's present machine."""
        past = self._ledger.past
        if current is not None and current.number > self._ledger.counted:
            past = [*past, past_run(current)]
        if past:
            self._feed.remember(past, now_s)

    def adopt(self, run: LiveRun, *, is_announced: bool) -> None:
        """Takes over the run that a former server started."""
        run.is_announced = is_announced
        self._site.ports.claim(run.record.run_id(0), [run.record.port])
        self._take(run)

    def change(self, job: Job) -> None:
        """Takes note of what the user asks for now."""
        self.job = replace(self.job, size=job.size, min=job.min, max=job.max, sizes=job.sizes)
        self._feed.meter.changed(self.job)

    def start(self, now_s: float) -> None:
        """Starts all replicas at the wanted place, which nobody else is on."""
        placement, limit_s = self.wanted, self._task.max_exec_time_s
        assert placement is not None
        number = max([self._ledger.counted, *self._files.run_numbers()]) + 1
        left_s = None if limit_s is None else limit_s - self._ledger.ran_s
        if left_s is not None and left_s <= 0:
            detail = f"it reached its time limit of {limit_s:g} s"
            self._end(now_s, JobState.FAILED, Outcome(End.TIME_LIMIT, detail=detail))
            return
        try:
            run = launch_run(self._site, self._files, self._task, self.job, placement, number, now_s, left_s)
        except CannotMount as problem:
            self._end(now_s, JobState.FAILED, Outcome(End.CANNOT_START, detail=str(problem)))
            return
        except CannotLaunch as problem:
            self._ledger.note(number, None, 0.0, failed=False, unwanted=True)
            self._ledger.keep()
            self._interrupt(now_s, Outcome(End.LOST, detail=str(problem)))
            return
        self._take(run)
        self.due_s = now_s if run.trouble else math.inf

    def kill(self, now_s: float) -> None:
        """Ends what runs without any grace."""
        if self.run is not None:
            self.run.leave(now_s, interrupted=not self._is_planned(self.run))
            self.run.kill()
            self._give(now_s + self._site.timing.overdue_s)

    def read(self, now_s: float) -> SpeedMeter:
        """Reads new progress reports, and says nothing of them yet; returns what measures by them."""
        self._feed.read(now_s)
        return self._feed.meter

    def poll(self, now_s: float, *, at_end: bool = False) -> None:
        """Reads new progress reports."""
        news = self._feed.poll(now_s, at_end=at_end)
        if news is not None:
            self._site.say(news)
        if self.run is not None and self.run.going is Going.NO and not at_end:
            for found in self._feed.ranks.look(now_s):
                self._site.held_up(found)

    # ---------------------------------------------------------------------------------------- step by step

    def drive(self, now_s: float) -> None:
        """Does what can be done now."""
        self.due_s = math.inf
        run = self.run
        if run is None:
            if self.is_ending and not (self.is_over or self.is_closing):
                self._end(now_s, JobState.CANCELLED, Outcome(End.STOPPED))
        elif run.is_over:
            self._conclude(run, now_s)
        elif run.going is Going.NO:
            self._go_on(run, now_s)
        elif run.going is Going.ASKED:
            self._await_checkpoint(run, now_s)
        else:
            self._await_end(run, now_s)

    def _take(self, run: LiveRun) -> None:
        self.run = run
        self._deadline_s = self._released_s = math.inf
        record = run.record
        self._site.occupancy.take(self.job.id, record.placement)
        self._begin_reports(record.started_s, record)
        for rank, replica in run.replicas:
            self._site.watch(replica, self.job.id, rank)

    def _begin_reports(self, since_s: float, record: RunRecord) -> None:
        """Of workers that one replica starts by itself, nobody knows which is on which node."""
        workers = record.placement.workers(self.job.gpus_per_replica)
        is_known = record.ranks == len(workers) or len(set(record.placement.nodes)) == 1
        places = [worker.node for worker in workers] if is_known else []
        self._feed.began(since_s, record.number, record.placement, places)

    def _go_on(self, run: LiveRun, now_s: float) -> None:
        if run.trouble or run.is_partial:
            run.kill()
            self._give(now_s + self._site.timing.overdue_s)
        elif run.has_failed:
            run.stop(now_s)
            self._give(now_s + min(self._task.elastic.grace_s, self._site.timing.peer_grace_s))
        elif self.is_going:
            if not self._changes_in_place(run, now_s):
                self._begin_to_leave(run, now_s)
        else:
            if not run.is_announced and run.all_run:
                self._voice.started(run, now_s)
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
        site, wanted = self._site, self.wanted
        if wanted is None or self.is_ending or self.is_closing or not run.all_run:
            return False
        if not can_change_in_place(site.machine, self.job, run.record, wanted):
            return False
        if site.occupancy.on(wanted) - {self.job.id}:
            self.due_s = now_s + site.timing.poll_s
            return True
        try:
            record = change_in_place(self._files, run.record, wanted)
        except OSError:
            return False
        site.occupancy.take(self.job.id, Placement((*run.record.placement.spans, *wanted.spans)))
        run.move(record)
        self._released_s = now_s + site.timing.release_s
        self._begin_reports(now_s, record)
        self._go_on(run, now_s)
        return True

    def _release(self, run: LiveRun, now_s: float) -> None:
        """Gives GPUs free that the run has left by itself, when it has had the time to."""
        if now_s < self._released_s < math.inf:
            self.due_s = self._released_s
        elif now_s >= self._released_s:
            self._released_s = math.inf
            self._site.occupancy.take(self.job.id, run.record.placement)

    def _begin_to_leave(self, run: LiveRun, now_s: float) -> None:
        elastic = self._task.elastic
        self._voice.steps = Steps()
        # Who hangs does not answer.
        can_answer = run.all_run and not self._feed.ranks.is_hung
        if elastic.checkpoint is Checkpoint.ON_SIGNAL and can_answer and not self.is_ending:
            run.ask_for_checkpoint(now_s)
            self._feed.asked(now_s)
            self._deadline_s = now_s + elastic.grace_s
            self.due_s = min(self._deadline_s, now_s + self._site.timing.poll_asked_s)
        else:
            self._leave(run, now_s)

    def _await_checkpoint(self, run: LiveRun, now_s: float) -> None:
        self.poll(now_s)
        if run.has_failed:
            run.going = Going.NO
            self._go_on(run, now_s)
        elif not self._is_planned(run) and not self.is_closing:
            run.stay()
            self._give(math.inf)
            self._go_on(run, now_s)
        elif self._feed.has_answered(run.request) or run.is_answered:
            run.checkpointed_s = now_s
            self._voice.steps.checkpoint_s = now_s - (run.record.asked_s or now_s)
            self._feed.meter.transitions.checkpointed(now_s)
            self._leave(run, now_s)
        elif now_s >= self._deadline_s or self.is_ending:
            self._leave(run, now_s)
        else:
            self.due_s = min(self._deadline_s, now_s + self._site.timing.poll_asked_s)

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
        timing, grace_s = self._site.timing, self._task.elastic.grace_s
        if run.going is Going.KILLED:
            limit_s = timing.overdue_s
        else:
            limit_s = min(grace_s, timing.cancel_grace_s) if self.is_ending else grace_s + timing.overdue_s
        self._give(min(self._deadline_s, now_s + limit_s))
        if now_s >= self._deadline_s:
            if run.going is Going.KILLED:
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
        self._site.ports.release(record.run_id(0))
        self._site.occupancy.release(self.job.id)
        self.run = None
        if self.is_closing:
            return  # all is on disk for the next server
        if not run.is_announced and run.all_have_run and not self._is_planned(run):
            self._voice.started(run, now_s)
        self.poll(now_s, at_end=True)
        self._feed.ended(now_s)
        self._files.keep_result(record.number)
        begun_s = run.checkpointed_s or record.asked_s or run.stop_sent_s
        if begun_s is not None:
            self._voice.steps.stop_s = max(0.0, now_s - begun_s)
        outcome = self._excused(run, run.judge())
        self._note(run, outcome, now_s)
        self._decide(run, outcome, now_s)

    def _excused(self, run: LiveRun, outcome: Outcome) -> Outcome:
        """A job that failed because its GPU did is lost and not to blame."""
        if outcome.end is not End.FAILED:
            return outcome
        record, gpus = run.record, self.job.gpus_per_replica
        why = self._site.excuse(self.job.id, record.placement.workers(gpus), record.started_s)
        return replace(outcome, end=End.LOST, detail=f"{why}; {outcome.detail}") if why else outcome

    def give_up(self, now_s: float, error: Exception) -> None:
        """Ends the job for a fault of ours: all of it is killed, and nothing is left to go wrong again."""
        self.run, self.is_over, self.wanted = None, True, None
        for number in self._files.run_numbers():
            # From disk: what was started last may not even be known here.
            with contextlib.suppress(Exception):
                if (record := read_record(self._files, number)) is not None:
                    LiveRun.find(self._files, record).destroy()
                    self._site.ports.release(record.run_id(0))
        self._site.occupancy.release(self.job.id)
        self._voice.broken(now_s, error)

    def _note(self, run: LiveRun, outcome: Outcome, now_s: float) -> None:
        failed = outcome.end is End.FAILED and outcome.exit_code not in self._task.recover_on_exit_codes
        unwanted = outcome.end in {End.FAILED, End.LOST} and not run.record.interrupted
        past = past_run(run.record, run.checkpointed_s, now_s)
        self._ledger.note(run.record.number, past, run.ran_s, failed=failed, unwanted=unwanted)

    def _decide(self, run: LiveRun, outcome: Outcome, now_s: float) -> None:
        """What becomes of the job after this run."""
        end = outcome.end
        if end is End.SUCCEEDED and not (self.is_ending and run.record.leaving):
            self._end(now_s, JobState.SUCCEEDED, outcome, run)
        elif self.is_ending:
            self._end(now_s, JobState.CANCELLED, outcome, run)
        elif end is End.STOPPED or (end is End.LOST and self._is_planned(run)):
            self._ledger.keep()
            if self.wanted is None:
                self._voice.left(run, now_s)
            else:
                self._voice.moved(run)
        elif (state := outcome.final_state) is not None:
            self._end(now_s, state, outcome, run)
        elif end is End.FAILED and self._ledger.failures > self._task.max_restarts_on_errors:
            self._end(now_s, JobState.FAILED, outcome, run)
        else:
            self._ledger.keep()
            self._interrupt(now_s, outcome, run)

    def _interrupt(self, now_s: float, outcome: Outcome, run: LiveRun | None = None) -> None:
        self.wanted = None  # the engine will say anew what it wants
        self._voice.interrupted(now_s, outcome, run)

    def _end(self, now_s: float, state: JobState, outcome: Outcome, run: LiveRun | None = None) -> None:
        self.is_over, self.wanted = True, None
        self._voice.ended(now_s, state, outcome, run)
