"""The engine's Kubernetes backend: carries out commands, and reports what becomes of jobs and nodes.

The informers run on an event loop of their own and put changes into the inbox. Everything else happens
here, in the engine's thread: `execute` notes what is wanted, `next_events` takes in changes and drives each
job towards it. State that matters is in the API server, so that another operator can go on from any moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.gang_reconciler import GangReconciler
from batuta.backends.kube.operator.informers import ALWAYS, IF_SERVED, SETTINGS
from batuta.backends.kube.operator.reconciler import Reconciler
from batuta.backends.kube.operator.unified_job_reconciler import UnifiedJobReconciler
from batuta.backends.kube.operator.workqueue import Changed, Inbox, Unreadable, WriteQueue, Written, patch_object
from batuta.backends.kube.progress.log_lines import LogReport
from batuta.backends.kube.unified_job.model import UNIFIED_JOB
from batuta.core.event import Event, Planned
from batuta.core.job import JobId
from batuta.core.plan import Command, Decision, Plan, Preempt, Stop
from batuta.core.reason import Evidence
from batuta.core.world import World
from batuta.engine.observers import Observer
from batuta.engine.ports import EventBuffer

_LONGEST_WAIT_S = 3600.0
_PARK: Final = "park/"


@dataclass(slots=True, eq=False)
class KubeBackend:
    """A backend of real pods. For the engine's thread; `wake` may be called by all."""

    reconciler: Reconciler
    said: EventBuffer  # where the reconciler puts its events
    inbox: Inbox
    clock: Callable[[], float]  # never goes backwards

    def look_first(self) -> None:
        """Takes in what the informers have listed, before anything is decided."""
        now_s = self.clock()
        messages = self.inbox.take(0.0)
        waiting = [message for message in messages if isinstance(message, Changed)]
        # Objects that are referred to come before those that refer to them.
        order = {kind: place for place, kind in enumerate((*IF_SERVED, *SETTINGS, *ALWAYS))}
        for message in sorted(waiting, key=lambda message: order[message.kind]):
            self.reconciler.take(message, now_s)
        for found in messages:
            if isinstance(found, Unreadable):
                self.reconciler.unreadable(found, now_s)
        self.reconciler.finish_first_look(now_s)

    def execute(self, commands: Sequence[Command], now_s: float) -> Sequence[Event]:
        """Notes what is wanted. It is begun with at the next call of `next_events`."""
        for command in commands:
            run = self.reconciler.runs.get(command.job)
            if run is None:
                continue
            run.is_ending = run.is_ending or isinstance(command, Stop)
            run.want(None if isinstance(command, Preempt | Stop) else command.placement)
            self.reconciler.touch(command.job)
        return ()

    def next_events(self, until_s: float | None) -> Sequence[Event]:
        woken = False
        while True:
            now_s = self.clock()
            self.reconciler.drive(now_s)
            if self.said:
                return self.said.take(until_s, now_s)
            if until_s is not None and now_s >= until_s:
                return self.said.nothing_until(until_s, now_s)
            if woken:
                return []
            next_s = self.reconciler.next_s()
            woken = self._wait(next_s if until_s is None else min(next_s, until_s))

    def forget(self, job: JobId) -> None:
        """The World forgets a job that is over. Its object stays until it is deleted."""
        self.reconciler.forget(job)

    def quiet(self) -> bool:
        return False

    def wake(self) -> None:
        """Makes `next_events` return soon. May be called by any thread."""
        self.inbox.put(None)

    def _wait(self, until_s: float) -> bool:
        """Waits for news, at most until a time; whether it was woken."""
        timeout_s = min(max(0.0, until_s - self.clock()), _LONGEST_WAIT_S)
        woken = False
        now_s = 0.0
        for message in self.inbox.take(timeout_s):
            now_s = now_s or self.clock()
            match message:
                case None:
                    woken = True
                case Changed():
                    self.reconciler.take(message, now_s)
                case Unreadable():
                    self.reconciler.unreadable(message, now_s)
                case Written():
                    self.reconciler.heard(message, now_s)
                case LogReport():
                    self.reconciler.listened(message, now_s)
        return woken


SWEEP_S = 1.0  # jobs to which nothing happens are looked at so often: what keeps them waiting changes all the same, …
SPARING = 20  # … but no more than this fraction of the time goes into it


class OutlookObserver(Observer):
    """After each decision it tells the runs what people should know. The engine's thread calls it."""

    def __init__(self, reconciler: Reconciler, clock: Callable[[], float] = time.monotonic) -> None:
        self._reconciler = reconciler
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

    def decided(self, world: World, plan: Plan) -> None:
        now_s = self._clock()
        touched, self._touched = self._touched, set()
        if now_s >= self._sweep_s:
            touched.update(self._restless(world))
        for job in touched:
            if job in world.jobs:
                self._reconciler.guard(job, partial(self._show, world, plan, job), world.now_s)
        if now_s >= self._sweep_s:
            self._sweep_s = self._clock() + max(SWEEP_S, SPARING * (self._clock() - now_s))

    def _restless(self, world: World) -> list[JobId]:
        """Jobs whose outlook may change though nothing happens to them: who waits, or could be larger.

        And who leaves its GPUs idle, or did when this was asked last.
        """
        idle, self._idle = self._idle | world.idle.keys(), set(world.idle)
        return [job for job in (*world.jobs.short, *idle) if job in self._reconciler.runs]

    def _show(self, world: World, plan: Plan, job: JobId) -> None:
        run, row = self._reconciler.runs.get(job), world.jobs.row(job)
        if isinstance(run, GangReconciler) and run.is_booked and world.jobs.placements[row] is None:
            decision = _decision(plan, row, job)
            if decision is not None and run.waits(str(decision)):
                self._reconciler.touch(job)
        elif isinstance(run, UnifiedJobReconciler):
            rate, remaining_s = float(world.jobs.rate[row]), float(world.jobs.remaining_s[row])
            left_s = remaining_s / rate if rate > 0 and math.isfinite(remaining_s / rate) else None
            is_news = run.outlook.progresses(world.progress.get(job), left_s, world.now_s)
            decision = _decision(plan, row, job)
            if decision is not None:
                is_news |= run.outlook.changes(world.state_of(row), decision.reason, str(decision))
            if is_news:
                self._reconciler.touch(job)


class ParkingController:
    """Sets `suspend` once on each job that the World has parked because it left its GPUs idle.

    Without it the next operator would start the job again, and its user could not resume it. For the engine's thread.
    """

    def __init__(self, world: World, observed: ObjectCache, writes: WriteQueue) -> None:
        self._world = world
        self._observed = observed
        self._writes = writes
        self._done: dict[JobId, Evidence] = self._parked()
        """What an earlier operator parked is not parked again: its user may have resumed it."""

    def take(self, changed: Changed, now_s: float) -> None:
        """What is parked is known from the World."""

    def heard(self, written: Written, now_s: float) -> None:
        if written.key.startswith(_PARK) and written.error is not None:
            self._done.pop(written.key.removeprefix(_PARK), None)

    def drive(self, now_s: float) -> None:
        parked = self._parked()
        for job in [job for job in self._done if job not in parked]:
            del self._done[job]
        for job, why in parked.items():
            uj = self._observed.unified_jobs.get(job)
            if self._done.get(job) == why or uj is None:
                continue
            # With its uid, because another job may have the name by now.
            body = {"metadata": {"uid": uj.metadata.uid}, "spec": {"suspend": True}}
            do = partial(patch_object, UNIFIED_JOB, uj.metadata, body)
            if uj.spec.suspend or self._writes.ask(f"{_PARK}{job}", do, now_s):
                self._done[job] = why

    def next_s(self) -> float:
        return math.inf

    def _parked(self) -> dict[JobId, Evidence]:
        return {job: idle.parked for job, idle in self._world.idle.items() if idle.parked}


def _decision(plan: Plan, row: int, job: JobId) -> Decision | None:
    """What was decided on a job; None if it came since."""
    decision = plan.decisions.at(row) if row < len(plan.decisions) else None
    return decision if decision is not None and decision.job == job else None
