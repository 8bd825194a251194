"""Projections: a fork of the World that the engine runs ahead on simulated machines, job by job.

Jobs that run go on where they are, jobs that wait keep waiting, and time passes.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from batuta.backends.sim.backend import SimBackend
from batuta.backends.sim.failures import FailureRecord
from batuta.backends.sim.forecast.sampling import Effort, believed_left_s
from batuta.backends.sim.recorder import Contention, Recorder, attained_gpu_s
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.curve import SpeedCurve
from batuta.core.decide import SchedulerProfile
from batuta.core.job import NO_RESTART_S, DesiredState, Job, JobId, JobState
from batuta.core.job_table import Phase
from batuta.core.plan import Migrate, Plan, Preempt, Resize, Start
from batuta.core.trial import never_fits
from batuta.core.world import World
from batuta.engine.journal import JournaledWorld, NoJournal
from batuta.engine.loop import Cadence, Engine
from batuta.engine.observers import Observer


class MeasuredJob(NamedTuple):
    """The measured speed and start time of a job."""

    curve: SpeedCurve
    restart_s: float


@dataclass(frozen=True, slots=True)
class ExternalEvents:
    """External events during a projection, in the order of time."""

    arrivals: Sequence[SimJob] = ()
    script: Sequence[ev.Event] = ()  # changes by users and administrators: quota, requests, new nodes
    failures: Sequence[FailureRecord] = ()


NO_EVENTS = ExternalEvents()


def fork_at(world: World, now_s: float) -> World:
    """A fork of the World at this time, without finished jobs, which a projection does not need."""
    fork = world.fork()
    fork.past.clear()
    apply(fork, ev.TimePassed(max(now_s, fork.now_s), cause="fork"))
    return fork


def backend_of(
    fork: World,
    left_s: Mapping[JobId, float],
    external: ExternalEvents = NO_EVENTS,
    decides_at_once: bool = True,
    measured: Mapping[JobId, MeasuredJob] | None = None,
) -> SimBackend:
    """A simulated backend that continues from the state of the fork; `left_s` is each job's true work left.

    `measured` has the true speed and start time of jobs where the World's are estimates. `decides_at_once`
    lets the first cycle run at once, for events that no cycle has seen yet.
    """
    now_s, jobs = fork.now_s, fork.jobs
    nodes = [*fork.nodes.nodes, *(event.node for event in external.script if isinstance(event, ev.NodeAdded))]
    script = [*_opening(fork, decides_at_once), *external.script, *_releases(fork), *_trial_ends(fork)]
    script.sort(key=lambda event: event.time_s)
    backend = SimBackend(external.arrivals, nodes, failures=external.failures, script=script, now_s=now_s)
    for row, job in enumerate(jobs.jobs):
        phase, placement = jobs.phase_of(row), jobs.placements[row]
        curve, restart_s = (measured or {}).get(job.id) or (job.curve, float(jobs.restart_s[row]))
        saves = job.restartable or job.id in jobs.checkpoints
        known = job if saves == job.restartable else replace(job, restartable=saves)
        sim = SimJob(as_simulated(known, believed_left_s(fork, row), restart_s), left_s[job.id], curve)
        last_s = max(_or_zero(jobs.last_start_s[row]), _or_zero(jobs.last_resize_s[row]))
        ran_s = float(jobs.run_s[row]) + (0.0 if placement is None else now_s - float(jobs.anchor_s[row]))
        if phase is Phase.STOPPING:
            continue
        if phase is Phase.BROKEN:
            placement = None  # it makes no progress until the next cycle gives it whole GPUs
        ready_s = None if phase is Phase.RUNNING else last_s + sim.job.restart_s
        backend.adopt(sim, placement, begun_s=last_s, ready_s=ready_s, ran_s=ran_s)
    return backend


def as_simulated(job: Job, believed_s: float, restart_s: float) -> Job:
    """The job as the simulated machines know it."""
    # A job that cannot be restarted still starts once; that time is not known and counts as 0.
    known_s = 0.0 if restart_s >= NO_RESTART_S else restart_s
    return replace(job, work_s=believed_s, restart_s=known_s)


def _opening(fork: World, decides_at_once: bool) -> list[ev.Event]:
    """What is about to happen: ends that are under way, and a decision that may be due."""
    found: list[ev.Event] = [
        ev.JobEnded(fork.now_s, job.id, JobState.CANCELLED)
        for row, job in enumerate(fork.jobs.jobs)
        if fork.jobs.phase_of(row) is Phase.STOPPING
    ]
    return [*found, ev.TimePassed(fork.now_s, cause="fork")] if decides_at_once else found


def _releases(fork: World) -> list[ev.Event]:
    """The times at which the backoff of jobs and the exclusion of nodes end."""
    times = {time_s for time_s in fork.jobs.not_before_s.tolist() if time_s > fork.now_s}
    times |= {avoided.until_s for avoided in fork.avoided.values() if avoided.until_s > fork.now_s}
    return [ev.TimePassed(time_s, cause="release") for time_s in sorted(times)]


def _trial_ends(fork: World) -> list[ev.Event]:
    """The latest times at which trial runs end: the job is queued, or done if it was a trial only."""
    found: list[ev.Event] = []
    for job_id, measured in fork.trials.items():
        row = fork.jobs.row(job_id)
        plan = fork.jobs.jobs[row].trial
        if plan is None or fork.jobs.wish_of(row) is not DesiredState.TRY:
            continue
        end_s = max(fork.now_s, fork.jobs.jobs[row].submit_s + plan.budget_s)
        if plan.only:
            found.append(ev.JobEnded(end_s, job_id, JobState.SUCCEEDED, cause="trial"))
        elif not never_fits(measured, plan.sizes):
            found.append(ev.JobWished(end_s, job_id, DesiredState.RUN, cause="trial"))
    return found


def _or_zero(time_s: float) -> float:
    return 0.0 if math.isnan(time_s) else float(time_s)


_CLOCK_EVERY = 16  # engine steps between two readings of the CPU clock
_COARSER = 1.2
_NEAR_S = 600.0  # the precision is never finer than at this distance


@dataclass(slots=True)
class Projection:
    """What happens to the jobs. A job that does not start or end within the projection is missing."""

    now_s: float  # when it began
    until_s: float = 0.0
    start_s: dict[JobId, float] = field(default_factory=dict)  # when jobs without GPUs get them for the first time
    end_s: dict[JobId, float] = field(default_factory=dict)
    wait_s: dict[JobId, float] = field(default_factory=dict)  # how long each job is without GPUs, from the beginning on
    gpu_s: dict[JobId, float] = field(default_factory=dict)
    """GPU-seconds held by jobs that ended, from the beginning on."""
    fairness: dict[JobId, float] = field(default_factory=dict)
    """Finish-time fairness ρ from the beginning on: time taken over that of a fair share of the cluster."""
    restarts_of: Counter[JobId] = field(default_factory=Counter)
    """Starts after the first one, resizes and migrations; jobs without any are missing."""
    preemptions: int = 0
    cycles: int = 0
    used_gpu_s: float = 0.0
    offered_gpu_s: float = 0.0
    truncated: bool = False  # whether it stopped before all awaited jobs ended: at its horizon, or out of CPU time

    @property
    def restarts(self) -> int:
        return self.restarts_of.total()

    @property
    def utilisation(self) -> float:
        return self.used_gpu_s / self.offered_gpu_s if self.offered_gpu_s else 0.0


class ProjectionWatcher(Observer):
    """A watcher of the engine that fills a Projection."""

    def __init__(self, world: World, projection: Projection, recorder: Recorder | None, awaited: set[JobId]) -> None:
        self._projection = projection
        self._recorder = recorder
        self.awaited = awaited  # the jobs that have not ended yet
        self.born_s = dict.fromkeys(world.jobs.ids, projection.now_s)  # since when each job is observed
        self._waits_since: dict[JobId, float] = {
            job: projection.now_s
            for job, placement in zip(world.jobs.ids, world.jobs.placements, strict=True)
            if placement is None
        }
        begun_s = world.jobs.first_start_s.tolist()
        self._had_run = {job for job, first_s in zip(world.jobs.ids, begun_s, strict=True) if not math.isnan(first_s)}
        self._attained_gpu_s = {
            job: attained_gpu_s(world, row, projection.now_s) for row, job in enumerate(world.jobs.ids)
        }

    def saw(self, world: World, event: ev.Event) -> None:
        if isinstance(event, ev.Planned):
            self._planned(event.time_s, event.plan)
        elif isinstance(event, ev.JobEnded):
            self._ended(world, event)
        elif isinstance(event, ev.JobSubmitted):
            self.born_s[event.job.id] = self._waits_since[event.job.id] = event.time_s
        elif isinstance(event, ev.JobFound):
            self._add_wait(event.job, event.time_s)
        elif isinstance(event, ev.NodeLost | ev.JobInterrupted):
            for job, placement in zip(world.jobs.ids, world.jobs.placements, strict=True):
                if placement is None:
                    self._waits_since.setdefault(job, event.time_s)

    def _planned(self, time_s: float, plan: Plan) -> None:
        projection = self._projection
        for command in plan.commands:
            job = command.job
            if isinstance(command, Start):
                if job in projection.start_s or job in self._had_run:
                    projection.restarts_of[job] += 1
                projection.start_s.setdefault(job, time_s)
                self._add_wait(job, time_s)
            elif isinstance(command, Resize | Migrate):
                projection.restarts_of[job] += 1
                self._add_wait(job, time_s)
            elif isinstance(command, Preempt):
                projection.preemptions += 1
                self._waits_since.setdefault(job, time_s)

    def _add_wait(self, job: JobId, time_s: float) -> None:
        since_s = self._waits_since.pop(job, None)
        if since_s is not None:
            self._projection.wait_s[job] = self._projection.wait_s.get(job, 0.0) + time_s - since_s

    def _ended(self, world: World, event: ev.JobEnded) -> None:
        projection, job, over = self._projection, event.job, world.past.get(event.job)
        # The backend may report the end of a job late.
        end_s = event.time_s if over is None else over.end_s
        self._add_wait(job, end_s)
        self.awaited.discard(job)
        projection.end_s[job] = end_s
        projection.wait_s.setdefault(job, 0.0)
        if over is not None:
            projection.gpu_s[job] = over.attained_gpu_s - self._attained_gpu_s.get(job, 0.0)

    def decided(self, world: World, plan: Plan) -> None:
        self._projection.cycles += 1
        if self._recorder is not None:
            self._recorder.decided(world, plan)

    def postponed(self, world: World) -> None:
        if self._recorder is not None:
            self._recorder.postponed(world)


def project(
    world: World,
    backend: SimBackend,
    rules: SchedulerProfile,
    cadence: Cadence,
    awaited: Set[JobId],
    effort: Effort = Effort(),  # noqa: B008  (frozen)
    *,
    cpu_until_s: float = math.inf,
    measured: bool = False,
) -> Projection:
    """Runs the engine ahead until the awaited jobs have ended. It owns the World and the backend.

    It stops at the CPU time of this thread `cpu_until_s`: an emergency limit, not the plan. `measured` also
    computes fairness and utilisation, which takes longer.
    """
    projection = Projection(world.now_s)
    recorder = Recorder(keep_segments=False) if measured else None
    watch = ProjectionWatcher(world, projection, recorder, set(awaited))
    state = JournaledWorld(world, NoJournal())
    engine = Engine(state, backend, replace(rules, explains=False), watch, cadence)
    _run(engine, projection, watch.awaited, effort, cpu_until_s)
    projection.until_s = world.now_s
    if recorder is not None:
        recorder.look(world, world.now_s)
        _measure(projection, recorder, backend, watch.born_s)
    return projection


def _run(engine: Engine, projection: Projection, left: set[JobId], effort: Effort, cpu_until_s: float) -> None:
    world, usual, steps = engine.world, engine.cadence, 0
    engine.cadence = slower(usual, effort.precision * _NEAR_S)
    while left and engine.step():
        steps += 1
        ahead_s = world.now_s - projection.now_s
        slow = steps % _CLOCK_EVERY == 0 and time.thread_time() > cpu_until_s
        if left and (slow or ahead_s > effort.horizon_s):
            projection.truncated = True
            return
        pace_s = effort.precision * ahead_s
        if pace_s > (engine.cadence.round_s or 0.0) * _COARSER:
            engine.cadence = slower(usual, pace_s)


def slower(usual: Cadence, pace_s: float) -> Cadence:
    """One scheduling cycle per `pace_s`; the usual cadence where that is slower still."""
    if pace_s <= max(usual.round_s or 0.0, usual.min_interval_s):
        return usual
    return Cadence(round_s=pace_s)


def _measure(projection: Projection, recorder: Recorder, backend: SimBackend, born_s: dict[JobId, float]) -> None:
    line = recorder.timeline()
    lengths = np.diff(line.time_s)
    projection.used_gpu_s = float((line.used_gpus[:-1] * lengths).sum())
    projection.offered_gpu_s = float((line.capacity_gpus[:-1] * lengths).sum())
    ended = list(projection.end_s)
    from_s, to_s = (np.array([times[job] for job in ended]) for times in (born_s, projection.end_s))
    shares = Contention(line).shares(from_s, to_s)
    for job, taken_s, share in zip(ended, (to_s - from_s).tolist(), shares.tolist(), strict=True):
        fair_s = backend.alone_s(job, share)
        if 0 < fair_s < math.inf:
            projection.fairness[job] = taken_s / fair_s
