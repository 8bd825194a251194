"""What comes next in the trial of a job: a pure answer from the World, the same after a restart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from batuta.core.job import Job
from batuta.core.trial import TrialPlan, run_id
from batuta.core.trial_events import never_fits
from batuta.core.wish import Wish
from batuta.core.world import World


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


def next_move(world: World, job: Job, now_s: float) -> Move:
    """What comes next for a job that is tried out: one size after the other, the smallest first."""
    plan = job.trial
    if plan is None or world.jobs.wish_of(world.jobs.row(job.id)) is not Wish.TRY:
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
            over_s = _over_s(world, run, plan, end_s)
            return Measure(gpus) if now_s >= over_s else Wait(over_s)
        if run in world.past:
            return Measure(gpus)
        return Begin(gpus) if now_s < end_s else Conclude()
    # Whoever never fits is held until somebody says what else is to be done.
    return Wait() if never_fits(known, plan.sizes) and not plan.only else Conclude()


def _over_s(world: World, run: str, plan: TrialPlan, end_s: float) -> float:
    """When a run has had its time; one that waits for GPUs may do so as long as the budget lasts."""
    started_s = world.jobs.f("first_start_s").item(world.jobs.row(run))
    return end_s if math.isnan(started_s) else min(end_s, started_s + plan.each_s)
