"""One future: the engine goes on over simulated machines, and what becomes of each job is noted."""

from __future__ import annotations

import math
import time
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from batuta.backends.sim.recorder import Contention, Recorder
from batuta.core.command import Migrate, Preempt, Resize, Start
from batuta.core.decide import Rules
from batuta.core.event import Event, JobEnded, JobFound, JobInterrupted, JobSubmitted, NodeLost, Planned
from batuta.core.job import JobId
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.journal import NoJournal
from batuta.engine.loop import Cadence, Engine
from batuta.engine.ports import Backend

_LOOK_EVERY = 16
"""Steps between two looks at the clock."""
_COARSER = 1.2
_NEAR_S = 600.0
"""What is nearer is not looked at any closer."""


class Machines(Backend, Protocol):
    """Simulated machines that know how long a job would take alone."""

    def alone_s(self, job: JobId, gpus: float) -> float: ...


@dataclass(slots=True)
class Future:
    """What became of the jobs. Those that did not start or end within it are missing."""

    now_s: float
    """When it began."""
    until_s: float = 0.0
    """When it ended."""
    start_s: dict[JobId, float] = field(default_factory=dict)
    """When jobs that had none got GPUs for the first time."""
    end_s: dict[JobId, float] = field(default_factory=dict)
    wait_s: dict[JobId, float] = field(default_factory=dict)
    """How long each was without GPUs, from the beginning on."""
    gpu_s: dict[JobId, float] = field(default_factory=dict)
    """GPU-seconds held by jobs that ended, from the beginning on."""
    fairness: dict[JobId, float] = field(default_factory=dict)
    """Finish-time fairness ρ from the beginning on: time taken over that of a fair share of the cluster."""
    restarts_of: dict[JobId, int] = field(default_factory=dict)
    """Starts after the first one, resizes and migrations; none for those that were left alone."""
    preemptions: int = 0
    cycles: int = 0
    used_gpu_s: float = 0.0
    offered_gpu_s: float = 0.0
    is_cut: bool = False
    """Whether it was broken off: beyond its horizon, or because it took too long."""

    @property
    def restarts(self) -> int:
        return sum(self.restarts_of.values())

    @property
    def utilisation(self) -> float:
        return self.used_gpu_s / self.offered_gpu_s if self.offered_gpu_s else 0.0


class Watch:
    """A watcher of the engine that fills a Future."""

    def __init__(self, world: World, future: Future, recorder: Recorder | None, awaited: set[JobId]) -> None:
        self._future = future
        self._recorder = recorder
        self.awaited = awaited
        """Those who are not over yet."""
        self.born_s = dict.fromkeys(world.jobs.ids, future.now_s)
        """Since when each job is looked at."""
        self._waits_since: dict[JobId, float] = {
            job: future.now_s
            for job, placement in zip(world.jobs.ids, world.jobs.placements, strict=True)
            if placement is None
        }
        begun_s = world.jobs.f("first_start_s").tolist()
        self._had_run = {
            job for job, first_s in zip(world.jobs.ids, begun_s, strict=True) if not math.isnan(first_s)
        }
        self._attained_gpu_s = {
            job: _attained_gpu_s(world, row, future.now_s) for row, job in enumerate(world.jobs.ids)
        }

    def saw(self, world: World, event: Event) -> None:
        if isinstance(event, Planned):
            self._planned(event.time_s, event.plan)
        elif isinstance(event, JobEnded):
            self._ended(world, event)
        elif isinstance(event, JobSubmitted):
            self.born_s[event.job.id] = self._waits_since[event.job.id] = event.time_s
        elif isinstance(event, JobFound):
            self._add_wait(event.job, event.time_s)
        elif isinstance(event, NodeLost | JobInterrupted):
            for job, placement in zip(world.jobs.ids, world.jobs.placements, strict=True):
                if placement is None:
                    self._waits_since.setdefault(job, event.time_s)

    def _planned(self, time_s: float, plan: Plan) -> None:
        future = self._future
        for command in plan.commands:
            job = command.job
            if isinstance(command, Start):
                if job in future.start_s or job in self._had_run:
                    self._count_restart(job)
                future.start_s.setdefault(job, time_s)
                self._add_wait(job, time_s)
            elif isinstance(command, Resize | Migrate):
                self._count_restart(job)
                self._add_wait(job, time_s)
            elif isinstance(command, Preempt):
                future.preemptions += 1
                self._waits_since.setdefault(job, time_s)

    def _count_restart(self, job: JobId) -> None:
        counts = self._future.restarts_of
        counts[job] = counts.get(job, 0) + 1

    def _add_wait(self, job: JobId, time_s: float) -> None:
        since_s = self._waits_since.pop(job, None)
        if since_s is not None:
            self._future.wait_s[job] = self._future.wait_s.get(job, 0.0) + time_s - since_s

    def _ended(self, world: World, event: JobEnded) -> None:
        future, job, over = self._future, event.job, world.past.get(event.job)
        # That a job has ended may have been found out later.
        end_s = event.time_s if over is None else over.end_s
        self._add_wait(job, end_s)
        self.awaited.discard(job)
        future.end_s[job] = end_s
        future.wait_s.setdefault(job, 0.0)
        if over is not None:
            future.gpu_s[job] = over.attained_gpu_s - self._attained_gpu_s.get(job, 0.0)

    def deciding(self) -> None:
        pass

    def decided(self, world: World, plan: Plan) -> None:
        self._future.cycles += 1
        if self._recorder is not None:
            self._recorder.look(world, plan.time_s)

    def postponed(self, world: World) -> None:
        if self._recorder is not None:
            self._recorder.look(world, world.now_s)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a future is broken off."""

    horizon_s: float = math.inf
    """Seconds ahead."""
    cpu_s: float = math.inf
    """Of this thread, counted from the clock's beginning: an emergency brake, not the plan."""
    precision: float = 0.0
    """At most one change of plan in this part of the time ahead: near things are looked at closely."""


def look_ahead(
    world: World,
    backend: Machines,
    rules: Rules,
    cadence: Cadence,
    awaited: Set[JobId],
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    *,
    measured: bool = False,
) -> Future:
    """Lets time go on until the jobs that are awaited are over. It owns the World and the machines.

    `measured` also notes fairness and utilisation, which takes longer.
    """
    future = Future(world.now_s)
    recorder = Recorder(keep_segments=False) if measured else None
    watch = Watch(world, future, recorder, set(awaited))
    engine = Engine(world, backend, replace(rules, explains=False), NoJournal(), watch, cadence)
    _go(engine, future, watch.awaited, limits)
    future.until_s = world.now_s
    if recorder is not None:
        recorder.look(world, world.now_s)
        _measure(future, recorder, backend, watch.born_s)
    return future


def _go(engine: Engine, future: Future, left: set[JobId], limits: Limits) -> None:
    world, usual, steps = engine.world, engine.cadence, 0
    engine.cadence = slower(usual, limits.precision * _NEAR_S)
    while left and engine.step():
        steps += 1
        ahead_s = world.now_s - future.now_s
        slow = steps % _LOOK_EVERY == 0 and time.thread_time() > limits.cpu_s
        if left and (slow or ahead_s > limits.horizon_s):
            future.is_cut = True
            return
        pace_s = limits.precision * ahead_s
        if pace_s > (engine.cadence.round_s or 0.0) * _COARSER:
            engine.cadence = slower(usual, pace_s)


def slower(usual: Cadence, pace_s: float) -> Cadence:
    """One decision in this time, whatever happens; the usual cadence where that is slower still."""
    if pace_s <= max(usual.round_s or 0.0, usual.min_interval_s):
        return usual
    return Cadence(round_s=pace_s)


def _measure(future: Future, recorder: Recorder, backend: Machines, born_s: dict[JobId, float]) -> None:
    line = recorder.timeline()
    lengths = np.diff(line.time_s)
    future.used_gpu_s = float((line.used_gpus[:-1] * lengths).sum())
    future.offered_gpu_s = float((line.capacity_gpus[:-1] * lengths).sum())
    ended = list(future.end_s)
    from_s, to_s = (np.array([times[job] for job in ended]) for times in (born_s, future.end_s))
    shares = Contention(line).shares(from_s, to_s)
    for job, taken_s, share in zip(ended, (to_s - from_s).tolist(), shares.tolist(), strict=True):
        fair_s = backend.alone_s(job, share)
        if 0 < fair_s < math.inf:
            future.fairness[job] = taken_s / fair_s


def _attained_gpu_s(world: World, row: int, now_s: float) -> float:
    jobs = world.jobs
    passed_s = max(now_s - float(jobs.f("anchor_s")[row]), 0.0)
    return float(jobs.f("attained_gpu_s")[row]) + int(jobs.i("gpus")[row]) * passed_s
