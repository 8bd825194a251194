"""A trial run: the same task at one size, as a job of its own that never starts over."""

from __future__ import annotations

from dataclasses import replace

from batuta.core.job import Job
from batuta.core.trial import run_id
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_job import NEVER_S
from batuta.spec.task_json import task_from_json, task_to_json
from batuta.spec.task_trial import NO_TRIAL

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
