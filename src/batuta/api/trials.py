"""What a job's trial runs showed, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batuta.api.views import Shown
from batuta.core.job import Job
from batuta.core.trial import TrialMeasurement, run_id
from batuta.core.trial_events import never_fits
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.engine.trials.lesson import learn
from batuta.store.values import form_of

_FORM = form_of(TrialMeasurement)


@dataclass(frozen=True, slots=True)
class Tried:
    """What the World has of a job's trial: taken quickly, looked at in peace."""

    job: Job
    measured: tuple[TrialMeasurement, ...]
    over: bool
    living: dict[int, str]
    """By size: what a run does that is not over."""


def find_trial(world: World, job_id: str) -> Tried | None:
    """The trial of a job, alive or over; None for a job without one."""
    past = world.past.get(job_id)
    if past is not None:
        return None if past.job.trial is None else Tried(past.job, past.trials, True, {})
    if job_id not in world.jobs:
        return None
    jobs, row = world.jobs, world.jobs.row(job_id)
    job, measured = jobs.jobs[row], world.trials.get(job_id, ())
    if job.trial is None:
        return None
    runs = {gpus: run_id(job_id, gpus) for gpus in job.trial.sizes}
    living = {
        gpus: "waits" if jobs.placements[jobs.row(run)] is None else "runs"
        for gpus, run in runs.items()
        if run in jobs
    }
    over = jobs.wish_of(row) is not Wish.TRY or never_fits(measured, job.trial.sizes)
    return Tried(job, measured, over, living)


def view_trial(tried: Tried) -> Shown:
    """As a client sees it."""
    plan, measured = tried.job.trial, tried.measured
    assert plan is not None
    lesson = learn(tried.job, measured) if tried.over else None
    known = {one.gpus: one for one in measured}
    speeds = {one.gpus: one.units_per_s / one.gpus for one in measured if one.units_per_s is not None}
    first = speeds[min(speeds)] if speeds else None
    runs = [
        _run(known[gpus], speeds[gpus] / first if first and gpus in speeds else None)
        if gpus in known
        else _unmeasured(tried, gpus)
        for gpus in plan.sizes
    ]
    return {
        "over": tried.over,
        "only": plan.only,
        "budget_s": plan.budget_s,
        "each_s": plan.each_s,
        "runs": runs,
        "chosen_gpus": lesson.choice.gpus if lesson is not None and lesson.choice is not None else None,
        "sentence": lesson.sentence if lesson is not None else "",
    }


def _run(one: TrialMeasurement, efficiency: float | None) -> Shown:
    return {
        "run": one.run,
        "gpus": one.gpus,
        "state": one.outcome.value,
        "gpu_type": one.gpu_type,
        "nodes": one.nodes,
        "batch": one.batch or None,
        "steps_per_s": 1.0 / one.step_s if one.step_s else None,
        "units_per_s": one.units_per_s,
        "unit": one.unit,
        "efficiency": efficiency,
        "memory_mib": one.memory_mib,
        "utilisation": one.utilisation,
        "detail": one.detail,
    }


def _unmeasured(tried: Tried, gpus: int) -> Shown:
    state = "not tried" if tried.over else tried.living.get(gpus, "planned")
    unknown = dict.fromkeys(
        ("batch", "steps_per_s", "units_per_s", "efficiency", "memory_mib", "utilisation")
    )
    rest = {"gpu_type": "", "nodes": 1, "unit": "", "detail": ""}
    return {"run": run_id(tried.job.id, gpus), "gpus": gpus, "state": state, **unknown, **rest}


def tell_measured(stored: Any) -> str:
    """A measurement of the journal's as a sentence."""
    read = _FORM.read
    assert read is not None
    measured: TrialMeasurement = read(stored)
    return measured.sentence
