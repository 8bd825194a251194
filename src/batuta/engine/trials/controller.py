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
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from batuta.core import event as ev
from batuta.core.cluster import Placement
from batuta.core.job import DesiredState, Job, JobId, JobState
from batuta.core.job_events import never_fits
from batuta.core.trial import TrialPlan, run_id
from batuta.core.world import World
from batuta.engine.requests import EngineStopped, RequestFn
from batuta.engine.trials.measurement import Look, Seen, learn, read_run
from batuta.prediction.initial_size import legal_sizes
from batuta.spec.problem import InputError
from batuta.spec.task_elastic import NO_TRIAL, TRIAL_BUDGET_S, Checkpoint, TrialSpec
from batuta.spec.task_job import NEVER_S
from batuta.spec.task_serialization import task_from_json, task_to_json


@dataclass(frozen=True, slots=True)
class Begin:
    """Let it run at this size."""

    gpus: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Write down what the run at this size showed, and end it if it goes on."""

    gpus: int


@dataclass(frozen=True, slots=True)
class Conclude:
    """All is known that will be: let the job go on with it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be done before this time, unless something happens."""

    until_s: float = math.inf


Move: TypeAlias = Begin | Measure | Conclude | Wait


def next_move(world: World, job: Job, watched_s: float, now_s: float) -> Move:
    """What comes next for a job that is tried out: one size after the other, the smallest first.

    `watched_s`: since when this controller watches; a run that started before has its time from then.
    """
    plan = job.trial
    if plan is None or world.jobs.wish_of(world.jobs.row(job.id)) is not DesiredState.TRY:
        return Wait()
    end_s = job.submit_s + plan.budget_s
    known = world.trials[job.id]
    measured = {one.gpus for one in known}
    for gpus in plan.sizes:
        run = run_id(job.id, gpus)
        if gpus in measured:
            if run in world.jobs and now_s < end_s:
                return Wait(end_s)  # until its processes are gone: the next shall have the machine to itself
            continue
        if run in world.jobs:
            over_s = _over_s(world, run, plan, watched_s, end_s)
            return Measure(gpus) if now_s >= over_s else Wait(over_s)
        if run in world.past:
            return Measure(gpus)
        return Begin(gpus) if now_s < end_s else Conclude()
    # Whoever never fits is held until somebody says what else is to be done.
    return Wait() if never_fits(known, plan.sizes) and not plan.only else Conclude()


def _over_s(world: World, run: str, plan: TrialPlan, watched_s: float, end_s: float) -> float:
    """When a run has had its time; one that waits for GPUs may do so as long as the budget lasts."""
    started_s = world.jobs.first_start_s.item(world.jobs.row(run))
    return end_s if math.isnan(started_s) else window_end_s(plan, started_s, watched_s, end_s)


def window_end_s(plan: TrialPlan, started_s: float, watched_s: float, end_s: float) -> float:
    """When a run that started then has been measured long enough: only time in which it was watched counts.

    While the scheduler is down no report is read. A run that went on meanwhile would be judged by nothing.
    """
    return min(end_s, max(started_s, watched_s) + plan.each_s)


MARK = "BATUTA_TRIAL"
"""Set to 1 for a trial run, so that a script may leave out what is of no use then."""

GRACE_S = 5.0
"""A run that is to end has nothing to save."""


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


class TrialController:
    """Begins, measures and ends trial runs. For the engine's thread.

    It decides from the World alone, each time anew: a server that was killed goes on where it was. Only the
    looks at GPUs are lost with it.
    """

    def __init__(
        self,
        ask: Callable[[RequestFn], Future[Sequence[ev.Event]]],
        task_of: Callable[[JobId], str | None],
        sight: Sight,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ask = ask
        self._task_of = task_of
        self._sight = sight
        self._clock = clock
        self._watched_s = clock()
        """Since when runs are watched: what a server before this one saw of them is lost."""
        self._seen: dict[JobId, Seen] = {}
        self._next_look_s = -math.inf
        self._asked: Future[Sequence[ev.Event]] | None = None

    def next_due_s(self, world: World) -> float:
        """When there is something to do even if nothing happens until then; infinite without trials."""
        if not world.trials:
            return math.inf
        now_s = self._clock()
        moves = [next_move(world, job, self._watched_s, now_s) for job in _tried(world)]
        return min((move.until_s if isinstance(move, Wait) else now_s for move in moves), default=math.inf)

    def after_step(self, world: World) -> None:
        """Looks at the runs, and asks for what is due."""
        if not world.trials:
            return
        self._watch(world)
        if self._asked is not None and not self._asked.done():
            return
        now_s = self._clock()
        if any(not isinstance(next_move(world, job, self._watched_s, now_s), Wait) for job in _tried(world)):
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
        move = next_move(world, job, self._watched_s, now_s)
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
            events.append(ev.JobWished(now_s, run, DesiredState.CANCEL, cause=CAUSE))
        return events


def conclude(world: World, job: Job, now_s: float) -> list[ev.Event]:
    """What becomes of a job that has been tried out."""
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


def _abandon(job: Job, now_s: float, why: str) -> list[ev.Event]:
    if job.trial is not None and job.trial.only:
        return [ev.JobEnded(now_s, job.id, JobState.FAILED, cause=CAUSE, detail=why)]
    return [ev.JobWished(now_s, job.id, DesiredState.RUN, cause=CAUSE)]


def _tried(world: World) -> list[Job]:
    """The jobs that have a trial, or had one."""
    return [world.jobs.jobs[world.jobs.row(job)] for job in world.trials]


MOST_RUNS = 6
"""Sizes that are tried where nobody says which: from 1 to 32 GPUs, or as far as it gets."""
CLOSE = 1.5
"""A size that is less than so many times another is close to it."""
LONGEST_RUN_S = 60.0
"""For so long a job runs at each size where nobody says how long; less where the budget is small."""


def plan_trial(
    job: Job, wishes: TrialSpec, most: int, *, open_up_to: int | None = None, for_good: bool = False
) -> TrialPlan:
    """What is to be tried out of a job that could have up to `most` GPUs.

    InputError for a size that was asked for and that it cannot have.
    """
    legal = [gpus for gpus in legal_sizes(job) if gpus <= most] or [job.min]
    if wishes.sizes:
        check_sizes(wishes.sizes, legal)
    sizes = wishes.sizes or ladder(legal)
    budget_s = wishes.budget_s or TRIAL_BUDGET_S
    return TrialPlan(
        sizes=sizes,
        budget_s=budget_s,
        each_s=wishes.each_s or min(LONGEST_RUN_S, budget_s / len(sizes)),
        priority=job.priority if wishes.priority is None else wishes.priority,
        only=wishes.only,
        open_up_to=open_up_to,
        for_good=for_good,
    )


def ladder(legal: Sequence[int]) -> tuple[int, ...]:
    """The smallest size, each next that is at least twice the one before, and the largest.

    Where the largest is close to the last of these, it takes its place: two that are alike teach nothing.
    """
    found = [legal[0]]
    for gpus in legal:
        if gpus >= 2 * found[-1] and len(found) < MOST_RUNS:
            found.append(gpus)
    if legal[-1] < CLOSE * found[-1] and len(found) > 1:
        found[-1] = legal[-1]
    elif found[-1] < legal[-1] and len(found) < MOST_RUNS:
        found.append(legal[-1])
    return tuple(found)


def check_sizes(wanted: Sequence[int], legal: Sequence[int]) -> None:
    """Refuses sizes that the job cannot have here, all at once."""
    known = set(legal)
    wrong = [str(gpus) for gpus in wanted if gpus not in known]
    if wrong:
        few = ", ".join(map(str, legal[:12])) + (", …" if len(legal) > 12 else "")
        which = "is no size" if len(wrong) == 1 else "are no sizes"
        raise InputError.of(
            f"trial: {', '.join(wrong)} GPUs {which} that this task can have here", fix=f"some of {few}"
        )
