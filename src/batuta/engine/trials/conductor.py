"""Has trial runs carried out: as ordinary jobs of the World, so that one core decides on them too."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from batuta.core import event as ev
from batuta.core.cluster import Placement
from batuta.core.job import Job, JobId, JobState
from batuta.core.trial import run_id
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.engine.requests import EngineStopped, Make
from batuta.engine.trials.course import Begin, Conclude, Measure, Wait, next_move
from batuta.engine.trials.lesson import learn
from batuta.engine.trials.reading import Look, Seen, read_run
from batuta.engine.trials.run import trial_job, trial_task

_log = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0
CAUSE = "trial"


class Sight(Protocol):
    """What a backend can tell of a run beside what the World knows."""

    def look(self, placement: Placement) -> Look:
        """How its GPUs are used now."""
        ...

    def output(self, run: JobId) -> str:
        """The end of what it has printed."""
        ...


class TrialConductor:
    """Begins, measures and ends trial runs. For the engine's thread.

    It decides from the World alone, each time anew: a server that was killed goes on where it was. Only the
    looks at GPUs are lost with it.
    """

    def __init__(
        self,
        ask: Callable[[Make], Future[Sequence[ev.Event]]],
        task_of: Callable[[JobId], str | None],
        sight: Sight,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ask = ask
        self._task_of = task_of
        self._sight = sight
        self._clock = clock
        self._seen: dict[JobId, Seen] = {}
        self._next_look_s = -math.inf
        self._asked: Future[Sequence[ev.Event]] | None = None

    def next_due_s(self, world: World) -> float:
        """When there is something to do even if nothing happens until then; infinite without trials."""
        if not world.trials:
            return math.inf
        now_s = self._clock()
        moves = [next_move(world, job, now_s) for job in _tried(world)]
        return min((move.until_s if isinstance(move, Wait) else now_s for move in moves), default=math.inf)

    def after_step(self, world: World) -> None:
        """Looks at the runs, and asks for what is due."""
        if not world.trials:
            return
        self._watch(world)
        if self._asked is not None and not self._asked.done():
            return
        now_s = self._clock()
        if any(not isinstance(next_move(world, job, now_s), Wait) for job in _tried(world)):
            with suppress(EngineStopped):
                self._asked = self._ask(self._make)

    def _watch(self, world: World) -> None:
        now_s = self._clock()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        for job in _tried(world):
            for gpus in job.trial.sizes if job.trial is not None else ():
                run = run_id(job.id, gpus)
                if run in world.jobs:
                    row = world.jobs.row(run)
                    placement = world.jobs.placements[row]
                    # A process that still loads says nothing of how busy the GPUs will be.
                    if placement is not None and run in world.progress:
                        self._seen.setdefault(run, Seen()).add(self._sight.look(placement))

    def _make(self, world: World) -> Sequence[ev.Event]:
        now_s = max(self._clock(), world.now_s)
        return [event for job in _tried(world) for event in self._events(world, job, now_s)]

    def _events(self, world: World, job: Job, now_s: float) -> list[ev.Event]:
        try:
            return self._next(world, job, now_s)
        except Exception as error:
            # A trial is a favour: whatever goes wrong with it, the job itself shall not wait for ever.
            _log.exception("job %s cannot be tried out", job.id, extra={"job": job.id})
            return _abandon(job, now_s, f"it cannot be tried out: {error}")

    def _next(self, world: World, job: Job, now_s: float) -> list[ev.Event]:
        move = next_move(world, job, now_s)
        if isinstance(move, Begin):
            return self._begin(job, move.gpus, now_s)
        if isinstance(move, Measure):
            return self._measure(world, job, run_id(job.id, move.gpus), now_s)
        return conclude(world, job, now_s) if isinstance(move, Conclude) else []

    def _begin(self, job: Job, gpus: int, now_s: float) -> list[ev.Event]:
        task = trial_task(self._task_of(job.id) or "", job, gpus)
        return [ev.JobSubmitted(now_s, trial_job(job, gpus), cause=CAUSE, task=task)]

    def _measure(self, world: World, job: Job, run: JobId, now_s: float) -> list[ev.Event]:
        found = read_run(world, run, self._seen.pop(run, Seen()), self._sight.output(run))
        events: list[ev.Event] = [ev.TrialMeasured(now_s, job.id, found)]
        if run in world.jobs:
            events.append(ev.JobWished(now_s, run, Wish.CANCEL, cause=CAUSE))
        return events


def conclude(world: World, job: Job, now_s: float) -> list[ev.Event]:
    """What becomes of a job that has been tried out."""
    lesson = learn(job, world.trials[job.id])
    if job.trial is not None and job.trial.only:
        state = JobState.SUCCEEDED if lesson.fits else JobState.FAILED
        return [ev.JobEnded(now_s, job.id, state, cause=CAUSE, detail=lesson.sentence)]
    events: list[ev.Event] = []
    if lesson.curve is not None:
        left_s = world.jobs.f("remaining_s").item(world.jobs.row(job.id))
        events.append(ev.JobProgressed(now_s, job.id, left_s, lesson.curve, cause=CAUSE))
    if lesson.job != job:
        events.append(ev.JobChanged(now_s, lesson.job, cause=CAUSE))
    return [*events, ev.JobWished(now_s, job.id, Wish.RUN, cause=CAUSE)]


def _abandon(job: Job, now_s: float, why: str) -> list[ev.Event]:
    if job.trial is not None and job.trial.only:
        return [ev.JobEnded(now_s, job.id, JobState.FAILED, cause=CAUSE, detail=why)]
    return [ev.JobWished(now_s, job.id, Wish.RUN, cause=CAUSE)]


def _tried(world: World) -> list[Job]:
    """The jobs that have a trial, or had one."""
    return [world.jobs.jobs[world.jobs.row(job)] for job in world.trials]
