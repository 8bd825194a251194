"""What was decided and what it cost, counted since the server started. For the engine's thread."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from batuta.core.command import Command, Migrate, Preempt, Resize, Start, Stop
from batuta.core.event import Event, JobEnded, JobInterrupted, JobStarted, JobSubmitted, Planned
from batuta.core.job import Job, JobId, JobState
from batuta.core.reason import Reason
from batuta.core.world import World

WAIT_BUCKETS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)
LENGTH_BUCKETS_S = (10.0, *WAIT_BUCKETS_S[3:])
INTERRUPTED = "interrupted"
_FINAL = (JobState.SUCCEEDED, JobState.FAILED, JobState.FAILED_SETUP, JobState.CANCELLED)
_CAUSES: dict[type, str] = {Preempt: "preempted", Resize: "resized", Migrate: "migrated"}
_UNASKED = (Reason.REPAIRED, Reason.LOST_NODE)
"""Commands for jobs whose GPUs are gone: nobody could ask them to save their work before."""


class Times:
    """A histogram."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self.buckets = [0] * (len(bounds_s) + 1)
        """Not summed up; the last is for all that took longer."""
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(self.bounds_s, seconds)] += 1
        self.total_s += seconds


class ScheduleCounts:
    """Commands by reason, GPUs that were given, waiting, ends of jobs, and work that was lost."""

    def __init__(self) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        """By kind and reason."""
        self.given_gpus: Counter[str] = Counter()
        """By kind of command."""
        self.admitted: Counter[str] = Counter()
        """By queue."""
        self.preempted: Counter[tuple[str, str]] = Counter()
        """By queue and reason."""
        self.submitted = 0
        self.ended: Counter[str] = Counter({state.value: 0 for state in _FINAL})
        """By state. All are there from the start: a rate needs to have seen a zero."""
        self.waits = Times(WAIT_BUCKETS_S)
        """From submit to the first start."""
        self.lengths = Times(LENGTH_BUCKETS_S)
        """From submit to the end, of jobs that succeeded."""
        self.lost_gpu_s = dict.fromkeys((*_CAUSES.values(), INTERRUPTED), 0.0)
        """Work that has to be done again, by what broke the run off."""
        self._runs: dict[JobId, tuple[float, int, float | None]] = {}
        """Since when a job makes progress, with how many GPUs, and how often it saves it."""

    def count(self, world: World, event: Event) -> None:
        """To be told of every event, after it was applied."""
        if isinstance(event, Planned):
            for command in event.plan.commands:
                self._command(world, command, event.time_s)
        elif isinstance(event, JobSubmitted):
            self.submitted += 1
        elif isinstance(event, JobStarted):
            self._started(world, event)
        elif isinstance(event, JobInterrupted):
            self._lose(event.job, event.time_s, INTERRUPTED, was_asked=False)
        elif isinstance(event, JobEnded):
            self._ended(world, event)

    def _command(self, world: World, command: Command, now_s: float) -> None:
        self.commands[type(command).__name__.lower(), command.reason.name] += 1
        if not isinstance(command, Preempt | Stop):
            self.given_gpus[type(command).__name__.lower()] += command.placement.size
        if isinstance(command, Stop):
            # Nobody wants a job to go on that is ended for good.
            self._runs.pop(command.job, None)
        elif not isinstance(command, Start):
            asked = command.reason not in _UNASKED
            self._lose(command.job, now_s, _CAUSES[type(command)] if asked else INTERRUPTED, was_asked=asked)
        if command.job in world.jobs:
            self._admission(world, command, now_s)

    def _admission(self, world: World, command: Command, now_s: float) -> None:
        jobs, row = world.jobs, world.jobs.row(command.job)
        queue = _queue_of(world, jobs.jobs[row])
        if isinstance(command, Preempt):
            self.preempted[queue, command.reason.name] += 1
        elif isinstance(command, Start):
            self.admitted[queue] += 1
            # A run that nobody ended was cut off by the loss of its nodes.
            stopped_s = jobs.f("last_stop_s").item(row)
            self._lose(command.job, stopped_s, INTERRUPTED, was_asked=False)
            if jobs.f("first_start_s").item(row) == now_s:
                self.waits.add(max(0.0, now_s - jobs.jobs[row].submit_s))

    def _started(self, world: World, event: JobStarted) -> None:
        if event.job not in world.jobs:
            return
        row = world.jobs.row(event.job)
        placement = world.jobs.placements[row]
        if placement is not None:
            interval_s = world.jobs.jobs[row].checkpoint_interval_s
            self._runs[event.job] = event.time_s, placement.size, interval_s

    def _ended(self, world: World, event: JobEnded) -> None:
        self._runs.pop(event.job, None)
        past = world.past.get(event.job)
        end_s = event.time_s if event.ended_s is None else min(event.time_s, event.ended_s)
        if past is None or past.end_s != end_s:
            return  # it was over before
        self.ended[past.state.value] += 1
        if past.state is JobState.SUCCEEDED:
            self.lengths.add(max(0.0, past.end_s - past.job.submit_s))

    def _lose(self, job: JobId, now_s: float, cause: str, *, was_asked: bool) -> None:
        """A run ends before its job does. A job that saves when it is asked loses nothing if it was."""
        if job not in self._runs:
            return
        since_s, gpus, interval_s = self._runs.pop(job)
        ran_s = max(0.0, now_s - since_s)
        lost_s = ran_s % interval_s if interval_s else (0.0 if was_asked else ran_s)
        self.lost_gpu_s[cause] += gpus * lost_s


def _queue_of(world: World, job: Job) -> str:
    """Its cluster queue, or what it names when that leads nowhere."""
    door = world.quota.way(job.namespace, job.queue)
    return job.queue if door is None else door.cluster_queue
