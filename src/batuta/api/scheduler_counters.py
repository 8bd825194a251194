"""Counters of what the scheduler does since the server started, kept by the engine's thread."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

import numpy as np

from batuta.core import event as ev
from batuta.core.decide import STEPS
from batuta.core.job import JobId, JobState
from batuta.core.job_table import Phase
from batuta.core.plan import Command, Migrate, Plan, Preempt, Resize, Start, Stop
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.observers import Observer
from batuta.store.codec import EVENT_TYPES

CYCLE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CARRY_OUT = "carry out"  # the last step of a cycle: the plan is stored and its commands are given


class Histogram:
    """How often which times were taken, by upper bounds."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self.buckets = [0] * (len(bounds_s) + 1)  # not summed up; the last is for all that took longer
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(self.bounds_s, seconds)] += 1
        self.total_s += seconds


class SchedulerCounters(Observer):
    """The engine's watcher: cycles and their durations, events, commands, GPU time.

    The engine's thread writes, others read: all are single numbers.
    """

    def __init__(self) -> None:
        self._begun = self._lap = 0.0
        self.count = 0
        self.last_s = 0.0
        self.times = Histogram(CYCLE_BUCKETS_S)
        self.step_times = {step: Histogram(CYCLE_BUCKETS_S) for step in (*STEPS, CARRY_OUT)}
        self.events = EventCounts()
        self.schedule = ScheduleCounts()
        self.gpu_time = GpuTime()

    def saw(self, world: World, event: ev.Event) -> None:
        self.events.count(event)
        self.schedule.count(world, event)
        self.gpu_time.saw(event)

    def deciding(self) -> None:
        self._begun = self._lap = time.perf_counter()

    def step_done(self, step: str) -> None:
        """Record the end of a step of the decision; the engine passes it to `decide`."""
        before, self._lap = self._lap, time.perf_counter()
        self.step_times[step].add(self._lap - before)

    def decided(self, world: World, plan: Plan) -> None:
        if not plan.empty:
            self.step_done(CARRY_OUT)
        self.last_s = time.perf_counter() - self._begun
        self.times.add(self.last_s)
        self.count += 1
        self.gpu_time.go_on(world)

    def postponed(self, world: World) -> None:
        self.gpu_time.go_on(world)


TRANSITION_STEPS = ("checkpoint", "stop", "start")
TRANSITION_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class EventCounts:
    """Events by type, and the times of the steps of transitions."""

    def __init__(self) -> None:
        self.by_type: Counter[str] = Counter(dict.fromkeys(EVENT_TYPES, 0))
        self.step_times = {step: Histogram(TRANSITION_BUCKETS_S) for step in TRANSITION_STEPS}

    def count(self, event: ev.Event) -> None:
        self.by_type[type(event).__name__] += 1
        if isinstance(event, ev.TransitionTimed):
            for step, times in self.step_times.items():
                seconds: float | None = getattr(event, f"{step}_s")
                if seconds is not None:
                    times.add(seconds)


USES = ("used", "idle", "restarting", "free", "unavailable")
"""GPUs of jobs that run; of jobs that run without using them; of jobs that start, stop or resize; free ones;
and GPUs that are lost, ill, cordoned, or used by others."""
_CAPACITY = (ev.NodeAdded, ev.NodeChanged, ev.NodeLost, ev.NodeReturned, ev.GpuFailed, ev.GpuRepaired)


class GpuTime:
    """GPU-seconds by use, at the cost of two sums over a column per cycle; `batuta report` is exact.

    One thread writes, any may read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = dict.fromkeys(USES, 0.0)
        self._held = dict.fromkeys(USES, 0)  # GPUs by use since the last call
        self._reported = dict.fromkeys(USES, 0.0)
        self._at_s: float | None = None
        self._version = -1
        self._capacity: int | None = None

    def saw(self, event: ev.Event) -> None:
        if isinstance(event, _CAPACITY):
            self._capacity = None

    def go_on(self, world: World) -> None:
        """Add the time since the last call, and count the GPUs again."""
        held = self._held if world.version == self._version else self._count(world)
        with self._lock:
            if self._at_s is not None and world.now_s > self._at_s:
                for use in USES:
                    self._total[use] += self._held[use] * (world.now_s - self._at_s)
            self._at_s = world.now_s if self._at_s is None else max(self._at_s, world.now_s)
            self._held, self._version = held, world.version

    def at(self, now_s: float) -> Mapping[str, float]:
        """Return the GPU-seconds by use up to now. No value is ever less than one returned before."""
        with self._lock:
            since_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
            for use in USES:
                self._reported[use] = max(self._reported[use], self._total[use] + self._held[use] * since_s)
            return dict(self._reported)

    def _count(self, world: World) -> dict[str, int]:
        if self._capacity is None:
            self._capacity = sum(node.gpus for node in world.nodes.nodes)
        jobs = world.jobs
        gpus, phase = jobs.gpus(), jobs.phase
        held = int(gpus.sum())
        running = int(gpus[phase == np.int64(Phase.RUNNING)].sum())
        idle = sum(
            int(gpus[jobs.row(job)])
            for job, known in world.idle.items()
            if known.since_s is not None and job in jobs and jobs.phase_of(jobs.row(job)) is Phase.RUNNING
        )
        # A card that several jobs share is one.
        twice = sum(card.shares - 1 for card in world.layout.cards.values())
        used = max(0, running - idle - twice)
        restarting, free = held - running, world.layout.total_free
        unavailable = max(0, self._capacity - used - idle - restarting - free)
        return dict(zip(USES, (used, idle, restarting, free, unavailable), strict=True))


WAIT_BUCKETS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)
COMPLETION_BUCKETS_S = (10.0, *WAIT_BUCKETS_S[3:])
INTERRUPTED = "interrupted"
_FINAL = (JobState.SUCCEEDED, JobState.FAILED, JobState.FAILED_SETUP, JobState.CANCELLED)
_CAUSES: dict[type, str] = {Preempt: "preempted", Resize: "resized", Migrate: "migrated"}
_UNASKED = (Reason.REPAIRED, Reason.LOST_NODE)
"""Commands for jobs whose GPUs are gone: they could not be asked to save their work before."""


class ScheduleCounts:
    """Commands by reason, GPUs that were given, waiting, ends of jobs, and work that was lost."""

    def __init__(self) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()  # by kind and reason
        self.given_gpus: Counter[str] = Counter()
        self.admitted: Counter[str] = Counter()
        self.preempted: Counter[tuple[str, str]] = Counter()  # by queue and reason
        self.submitted = 0
        self.ended: Counter[str] = Counter({state.value: 0 for state in _FINAL})
        """By state. All are there from the start: a rate needs to have seen a zero."""
        self.waits = Histogram(WAIT_BUCKETS_S)
        self.lengths = Histogram(COMPLETION_BUCKETS_S)
        self.lost_gpu_s = dict.fromkeys((*_CAUSES.values(), INTERRUPTED), 0.0)
        """Work that has to be done again, by what interrupted the run."""
        self._runs: dict[JobId, tuple[float, int, float | None]] = {}
        """Since when a job makes progress, with how many GPUs, and how often it saves it."""
        self._saved_s: dict[JobId, float] = {}  # when the last checkpoint of a job was complete that was seen
        self._asked: dict[JobId, tuple[str, float, float, int]] = {}
        """Jobs that were asked to save and did not yet: the cause, and the run that it ended."""

    def count(self, world: World, event: ev.Event) -> None:
        """Count an event, after it was applied."""
        if isinstance(event, ev.Planned):
            for command in event.plan.commands:
                self._command(world, command, event.time_s)
        elif isinstance(event, ev.JobSubmitted):
            self.submitted += 1
        elif isinstance(event, ev.JobStarted):
            self._started(world, event)
        elif isinstance(event, ev.JobCheckpointed):
            self._checkpointed(event)
        elif isinstance(event, ev.JobInterrupted):
            self._lose(event.job, event.time_s, INTERRUPTED, was_asked=False)
        elif isinstance(event, ev.JobEnded):
            self._ended(world, event)

    def _command(self, world: World, command: Command, now_s: float) -> None:
        self.commands[type(command).__name__.lower(), command.reason.name] += 1
        if not isinstance(command, Preempt | Stop):
            self.given_gpus[type(command).__name__.lower()] += command.placement.size
        if isinstance(command, Stop):
            # A job that is stopped for good loses no work.
            self._runs.pop(command.job, None)
        elif not isinstance(command, Start):
            asked = command.reason not in _UNASKED
            self._leave(world, command, now_s, was_asked=asked)
        if command.job in world.jobs:
            self._admission(world, command, now_s)

    def _leave(self, world: World, command: Command, now_s: float, *, was_asked: bool) -> None:
        """Record that a plan ends a run. Of some jobs only a later checkpoint shows whether work is lost."""
        job = command.job
        cause = _CAUSES[type(command)] if was_asked else INTERRUPTED
        is_seen_later = job in world.jobs and world.jobs.jobs[world.jobs.row(job)].keeps_size_until_saved
        if was_asked and is_seen_later and job in self._runs:
            since_s, gpus, _ = self._runs.pop(job)
            self._asked[job] = cause, since_s, now_s, gpus
        else:
            self._lose(job, now_s, cause, was_asked=was_asked)

    def _admission(self, world: World, command: Command, now_s: float) -> None:
        jobs, row = world.jobs, world.jobs.row(command.job)
        job = jobs.jobs[row]
        way = world.effective_quota.way(job.namespace, job.queue)
        queue = job.queue if way is None else way.cluster_queue
        if isinstance(command, Preempt):
            self.preempted[queue, command.reason.name] += 1
        elif isinstance(command, Start):
            self.admitted[queue] += 1
            # A run that no command ended was cut off by the loss of its nodes.
            stopped_s = jobs.last_stop_s.item(row)
            self._lose(command.job, stopped_s, INTERRUPTED, was_asked=False)
            if jobs.first_start_s.item(row) == now_s:
                self.waits.add(max(0.0, now_s - jobs.jobs[row].submit_s))

    def _started(self, world: World, event: ev.JobStarted) -> None:
        if event.job not in world.jobs:
            return
        row = world.jobs.row(event.job)
        placement = world.jobs.placements[row]
        if placement is not None:
            if (asked := self._asked.pop(event.job, None)) is not None:
                # It starts again without a new checkpoint.
                cause, since_s, until_s, gpus = asked
                saved_s = self._saved_s.get(event.job, since_s)
                self.lost_gpu_s[cause] += gpus * max(0.0, until_s - max(since_s, saved_s))
            interval_s = world.jobs.jobs[row].checkpoint_interval_s
            self._runs[event.job] = event.time_s, placement.size, interval_s

    def _checkpointed(self, event: ev.JobCheckpointed) -> None:
        if event.saved_s is not None:
            self._saved_s[event.job] = event.saved_s
            if event.job in self._asked and event.saved_s >= self._asked[event.job][2]:
                del self._asked[event.job]

    def _ended(self, world: World, event: ev.JobEnded) -> None:
        for known in (self._runs, self._saved_s, self._asked):
            known.pop(event.job, None)
        past = world.past.get(event.job)
        end_s = event.time_s if event.ended_s is None else min(event.time_s, event.ended_s)
        if past is None or past.end_s != end_s:
            return  # it was over before
        self.ended[past.state.value] += 1
        if past.state is JobState.SUCCEEDED:
            self.lengths.add(max(0.0, past.end_s - past.job.submit_s))

    def _lose(self, job: JobId, now_s: float, cause: str, *, was_asked: bool) -> None:
        """Record that a run ends before its job does. A job that was asked to save its work loses nothing."""
        if job not in self._runs:
            return
        since_s, gpus, interval_s = self._runs.pop(job)
        ran_s = max(0.0, now_s - since_s)
        lost_s = ran_s % interval_s if interval_s else (0.0 if was_asked else ran_s)
        if job in self._saved_s:
            lost_s = max(0.0, min(lost_s, now_s - self._saved_s[job]))
        self.lost_gpu_s[cause] += gpus * lost_s
