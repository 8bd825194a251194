"""What a TrialRun asks for: which job, at which sizes, for how long. Or everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from batuta.backends.kube import names, objects
from batuta.backends.kube.operator.request import read_request
from batuta.backends.kube.trial.model import TrialRun
from batuta.backends.kube.trial.rules import broken_rules
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.job import Job
from batuta.core.trial import TrialPlan
from batuta.engine.trials.ladder import plan_trial
from batuta.spec.problem import InputError
from batuta.spec.task_job import NEVER_S
from batuta.spec.task_trial import TrialWishes


@dataclass(frozen=True, slots=True)
class Planned:
    """A trial that can be made."""

    uj: UnifiedJob
    job: Job
    """The same to the scheduler, with the plan."""
    plan: TrialPlan


@dataclass(frozen=True, slots=True)
class Unplannable:
    """Why a trial cannot be made: sentences with the field and the fix."""

    faults: tuple[str, ...]


def tried_job(trial: TrialRun, jobs: Mapping[str, UnifiedJob]) -> UnifiedJob | None:
    """The UnifiedJob that is tried out; None while the one that is named is not there."""
    spec, meta = trial.spec, trial.metadata
    if spec.template is None:
        return jobs.get(f"{meta.namespace}/{spec.job_name}")
    written = spec.template.metadata
    labels = {names.APPLICATION: written.name or meta.name, **written.labels}
    return UnifiedJob(
        metadata=objects.Meta(
            name=meta.name,
            namespace=meta.namespace,
            creation_timestamp=meta.creation_timestamp,
            labels=labels,
            annotations=written.annotations,
        ),
        raw_spec=spec.template.spec,
    )


def plan(
    trial: TrialRun,
    uj: UnifiedJob,
    classes: Mapping[str, objects.PriorityClass],
    most_that_fit: Callable[[Job], int],
) -> Planned | Unplannable:
    """The plan. Once it has been written down it stays, whatever nodes come and go."""
    faults = [*trial.unreadable, *(() if trial.unreadable else broken_rules(trial))]
    asked = read_request(uj, classes)
    job = asked.job
    if job is None:
        faults += asked.faults
    elif job.share is not None:
        faults.append("spec.sharing: a share of a GPU has one size, so there is nothing to try out")
    if faults or job is None:
        return Unplannable(tuple(dict.fromkeys(faults)))
    try:
        found = _first_plan(trial, uj, job, most_that_fit(job))
    except InputError as error:
        return Unplannable(tuple(str(one) for one in error.problems))
    written = trial.status
    if written.runs:
        each_s = float(written.each_seconds or found.each_s)
        found = replace(found, sizes=tuple(one.gpus for one in written.runs), each_s=each_s)
    return Planned(uj, replace(job, trial=found), found)


def _first_plan(trial: TrialRun, uj: UnifiedJob, job: Job, most: int) -> TrialPlan:
    spec = trial.spec
    is_open = uj.metadata.annotations.get(names.WANTED) == names.ANY_SIZE
    wishes = TrialWishes(
        wanted=True,
        sizes=tuple(spec.sizes or ()) if not trial.status.runs else (),
        budget_s=float(spec.budget_seconds),
        each_s=None if spec.each_seconds is None else float(spec.each_seconds),
    )
    return plan_trial(
        job,
        wishes,
        most,
        open_up_to=most if is_open else None,
        for_good=job.checkpoint_interval_s == NEVER_S,
    )
