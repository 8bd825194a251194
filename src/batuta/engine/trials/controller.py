"""Carries trial runs out as ordinary jobs of the World, so that one core decides on them too.

The next step of a trial is a pure answer from the World, so it is the same after a restart. A trial run is
the same task at one size, as a job of its own that never starts over.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from batuta.core import event as ev
from batuta.core.cluster import Placement
from batuta.core.job import DesiredState, Job, JobId, JobState
from batuta.core.trial import never_fits, run_id
from batuta.core.world import World
from batuta.engine.requests import EngineStopped, RequestFn
from batuta.engine.trials.lifecycle import (
    Begin,
    Conclude,
    End,
    Measure,
    NextActions,
    ObservedRun,
    TrialProgress,
    next_actions,
)
from batuta.engine.trials.measurement import Look, Seen, learn, read_run
from batuta.spec.task_elastic import NO_TRIAL, Checkpoint
from batuta.spec.task_job import NEVER_S
from batuta.spec.task_serialization import task_from_json, task_to_json

MARK = "BATUTA_TRIAL"  # set to 1 for a trial run, so that a script may leave out what is of no use then
GRACE_S = 5.0  # a run that is to end has nothing to save
LOOK_EVERY_S = 1.0
CAUSE = "trial"
_log = logging.getLogger(__name__)


def trial_job(job: Job, gpus: int) -> Job:
    """The job of a trial run. It stands where the job would stand that it is for."""
    plan = job.trial
    assert plan is not None
    return replace(
        job,
        id=run_id(job.id, gpus),
        name=run_id(job.name or job.id, gpus),
        size=gpus,
        min=gpus,
        max=gpus,
        sizes=None,
        priority=plan.priority,
        work_s=plan.each_s * max(job.curve.at(gpus), 1e-6),
        checkpoint_interval_s=NEVER_S,
        expected=None,
        size_choice=None,
        trial=None,
        trial_of=job.id,
    )


def trial_task(stored: str, job: Job, gpus: int) -> str:
    """What a trial run runs, as it is stored. InputError when the job's own task cannot be read."""
    task = task_from_json(stored)
    nodes = gpus // job.gpus_per_replica
    elastic = replace(
        task.elastic,
        min_nodes=nodes,
        max_nodes=nodes,
        sizes=None,
        step=1,
        checkpoint=Checkpoint.NONE,
        checkpoint_interval_s=None,
        grace_s=min(task.elastic.grace_s, GRACE_S),
    )
    return task_to_json(
        replace(
            task,
            num_nodes=nodes,
            auto_nodes=False,
            elastic=elastic,
            envs=(*task.envs, (MARK, "1")),
            max_restarts_on_errors=0,
            recover_on_exit_codes=(),
            trial=NO_TRIAL,
        )
    )


class Sight(Protocol):
    """What a backend can tell of a run beside what the World knows."""

    def look(self, placement: Placement) -> Look:
        """Return how its GPUs are used now."""

    def output(self, run: JobId) -> str:
        """Return the end of what it has printed."""


@dataclass(eq=False)
class TrialController:
    """Begins, measures and ends trial runs. For the engine's thread.

    It decides from the World alone: a server that was killed loses nothing but the looks at GPUs.
    """

    ask: Callable[[RequestFn], Future[Sequence[ev.Event]]]
    task_of: Callable[[JobId], str | None]
    sight: Sight
    clock: Callable[[], float] = time.time
    _seen: dict[JobId, Seen] = field(default_factory=dict)
    _next_look_s: float = -math.inf
    _asked: Future[Sequence[ev.Event]] | None = None

    def __post_init__(self) -> None:
        self._watched_s = self.clock()  # since when runs are watched: what a server before this one saw is lost

    def next_due_s(self, world: World) -> float:
        """When there is something to do even if nothing happens until then; infinite without trials."""
        if not world.trials:
            return math.inf
        now_s = self.clock()
        found = [next_of(world, job, self._watched_s, now_s) for job in _tried(world)]
        return min((now_s if one.actions else one.due_s for one in found), default=math.inf)

    def after_step(self, world: World) -> None:
        if not world.trials:
            return
        self._watch(world)
        if self._asked is not None and not self._asked.done():
            return
        now_s = self.clock()
        if any(next_of(world, job, self._watched_s, now_s).actions for job in _tried(world)):
            with suppress(EngineStopped):
                self._asked = self.ask(self._make)

    def _watch(self, world: World) -> None:
        now_s = self.clock()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        for job in _tried(world):
            for gpus in job.trial.sizes if job.trial is not None else ():
                run = run_id(job.id, gpus)
                placement = world.jobs.placements[world.jobs.row(run)] if run in world.jobs else None
                # A process that still loads says nothing of how busy the GPUs will be.
                if placement is not None and run in world.progress:
                    self._seen.setdefault(run, Seen()).add(self.sight.look(placement))

    def _make(self, world: World) -> Sequence[ev.Event]:
        now_s = max(self.clock(), world.now_s)
        return [event for job in _tried(world) for event in self._events(world, job, now_s)]

    def _events(self, world: World, job: Job, now_s: float) -> list[ev.Event]:
        try:
            return self._next(world, job, now_s)
        except Exception as error:
            # A trial is a favour: whatever goes wrong with it, the job itself shall not wait for ever.
            _log.exception("job %s cannot be tried out", job.id, extra={"job": job.id})
            if job.trial is not None and job.trial.only:
                why = f"it cannot be tried out: {error}"
                return [ev.JobEnded(now_s, job.id, JobState.FAILED, cause=CAUSE, detail=why)]
            return [ev.JobWished(now_s, job.id, DesiredState.RUN, cause=CAUSE)]

    def _next(self, world: World, job: Job, now_s: float) -> list[ev.Event]:
        events: list[ev.Event] = []
        for action in next_of(world, job, self._watched_s, now_s).actions:
            if isinstance(action, Conclude):
                events += conclude(world, job, now_s)
                continue
            run = run_id(job.id, action.gpus)
            if isinstance(action, Begin):
                task = trial_task(self.task_of(job.id) or "", job, action.gpus)
                events.append(ev.JobSubmitted(now_s, trial_job(job, action.gpus), cause=CAUSE, task=task))
            if isinstance(action, Measure):
                found = read_run(world, run, self._seen.pop(run, Seen()), self.sight.output(run))
                events.append(ev.TrialMeasured(now_s, job.id, found))
            if isinstance(action, Measure | End) and run in world.jobs:
                events.append(ev.JobWished(now_s, run, DesiredState.CANCEL, cause=CAUSE))
        return events


def next_of(world: World, job: Job, watched_s: float, now_s: float) -> NextActions:
    """What comes next for a job of the World that is tried out: one size after the other."""
    plan = job.trial
    if plan is None or world.jobs.wish_of(world.jobs.row(job.id)) is not DesiredState.TRY:
        return NextActions(())
    known = world.trials[job.id]
    measured = {one.gpus for one in known}
    runs = {gpus: run for gpus in plan.sizes if (run := _observed(world, job, gpus, gpus in measured))}
    # What stands in the World is durable.
    found = next_actions(plan, 1, job.submit_s, TrialProgress(measured, measured, runs, watched_s), now_s)
    if never_fits(known, plan.sizes) and not plan.only:
        # It is held until its user says what else is to be done.
        return replace(found, actions=tuple(one for one in found.actions if not isinstance(one, Conclude)))
    return found


def _observed(world: World, job: Job, gpus: int, is_measured: bool) -> ObservedRun | None:
    run = run_id(job.id, gpus)
    if run not in world.jobs:
        return ObservedRun(is_over=True) if run in world.past else None
    row = world.jobs.row(run)
    started_s = world.jobs.first_start_s.item(row)
    is_cancelled = world.jobs.wish_of(row) is DesiredState.CANCEL
    return ObservedRun(started_s=None if math.isnan(started_s) else started_s, is_leaving=is_measured and is_cancelled)


def conclude(world: World, job: Job, now_s: float) -> list[ev.Event]:
    lesson = learn(job, world.trials[job.id])
    if job.trial is not None and job.trial.only:
        state = JobState.SUCCEEDED if lesson.fits else JobState.FAILED
        return [ev.JobEnded(now_s, job.id, state, cause=CAUSE, detail=lesson.sentence)]
    events: list[ev.Event] = []
    if lesson.curve is not None:
        left_s = world.jobs.remaining_s.item(world.jobs.row(job.id))
        events.append(ev.JobProgressed(now_s, job.id, left_s, lesson.curve, cause=CAUSE))
    if lesson.job != job:
        events.append(ev.JobChanged(now_s, lesson.job, cause=CAUSE))
    return [*events, ev.JobWished(now_s, job.id, DesiredState.RUN, cause=CAUSE)]


def _tried(world: World) -> list[Job]:
    """The jobs that have a trial, or had one."""
    return [world.jobs.jobs[world.jobs.row(job)] for job in world.trials]
