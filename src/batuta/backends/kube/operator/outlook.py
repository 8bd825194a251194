"""What the World thinks of jobs, for those who show it to people: a watcher of the engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from batuta.backends.kube.operator.floor import Floor
from batuta.backends.kube.operator.gang_run import GangRun
from batuta.backends.kube.operator.unified_run import UnifiedRun
from batuta.core.event import Event, Planned
from batuta.core.job import JobId
from batuta.core.plan import Decision, Plan
from batuta.core.world import World

SWEEP_S = 1.0
"""Jobs to which nothing happens are looked at so often: what keeps them waiting changes all the same, …"""
SPARING = 20
"""… but no more than this fraction of the time goes into it."""


class OutlookWatch:
    """After each decision it tells the runs what people should know. The engine's thread calls it."""

    def __init__(self, floor: Floor, clock: Callable[[], float] = time.monotonic) -> None:
        self._floor = floor
        self._clock = clock
        self._touched: set[JobId] = set()
        self._idle: set[JobId] = set()
        self._sweep_s = 0.0

    def saw(self, world: World, event: Event) -> None:
        if isinstance(event, Planned):
            self._touched.update(command.job for command in event.plan.commands)
            self._touched.update(event.plan.found_idle)
        else:
            job = getattr(event, "job", None)
            self._touched.add(job if isinstance(job, str) else getattr(job, "id", ""))

    def deciding(self) -> None:
        pass

    def decided(self, world: World, plan: Plan) -> None:
        now_s = self._clock()
        touched, self._touched = self._touched, set()
        if now_s >= self._sweep_s:
            touched.update(self._restless(world))
        for job in touched:
            if job in world.jobs:
                self._show(world, plan, job)
        if now_s >= self._sweep_s:
            self._sweep_s = self._clock() + max(SWEEP_S, SPARING * (self._clock() - now_s))

    def postponed(self, world: World) -> None:
        pass

    def _restless(self, world: World) -> list[JobId]:
        """Jobs whose outlook may change though nothing happens to them: who waits, or could be larger.

        And who leaves its GPUs idle, or did when this was asked last.
        """
        idle, self._idle = self._idle | world.idle.keys(), set(world.idle)
        return [job for job in (*world.jobs.short, *idle) if job in self._floor.runs]

    def _show(self, world: World, plan: Plan, job: JobId) -> None:
        run, row = self._floor.runs.get(job), world.jobs.row(job)
        if isinstance(run, GangRun) and run.is_booked and world.jobs.placements[row] is None:
            decision = _decision(plan, row, job)
            if decision is not None and run.waits(str(decision)):
                self._floor.touch(job)
        elif isinstance(run, UnifiedRun):
            is_news = run.outlook.progresses(world.progress.get(job), _left_s(world, row), world.now_s)
            decision = _decision(plan, row, job)
            if decision is not None:
                restarts = int(world.jobs.i("restarts")[row])
                state = world.state_of(row)
                is_news |= run.outlook.changes(state, decision.reason, str(decision), restarts)
            if is_news:
                self._floor.touch(job)


def _left_s(world: World, row: int) -> float | None:
    """How long a job runs on at the size that it has; None where nobody knows, or where it does not run."""
    rate, remaining_s = float(world.jobs.f("rate")[row]), float(world.jobs.f("remaining_s")[row])
    left_s = remaining_s / rate if rate > 0 else math.inf
    return left_s if math.isfinite(left_s) else None


def _decision(plan: Plan, row: int, job: JobId) -> Decision | None:
    """What was decided on a job; None if it came since."""
    decision = plan.decisions.at(row) if row < len(plan.decisions) else None
    return decision if decision is not None and decision.job == job else None
