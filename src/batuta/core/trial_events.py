"""What trial runs change in the World: a job waits for them, and they do not outlast its waiting."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.core.event import TrialMeasured
from batuta.core.job import Job
from batuta.core.load import learn_name
from batuta.core.reason import Evidence, Reason
from batuta.core.trial import TrialMeasurement, TrialOutcome, run_id
from batuta.core.wish import Wish
from batuta.core.world import World


def begin(world: World, row: int) -> None:
    """Lets a new job wait for its trial runs, if it shall have some."""
    job = world.jobs.jobs[row]
    if job.trial is not None:
        world.trials[job.id] = ()
        world.jobs.hold_back(row, Wish.TRY)


def note(world: World, event: TrialMeasured) -> None:
    """Keeps what a trial run showed, beside what is known of other sizes."""
    measured = event.measured
    if measured.outcome is TrialOutcome.MEASURED and measured.utilisation is not None:
        learn_name(world, measured.application, measured.utilisation)
    if event.job in world.trials:
        others = (one for one in world.trials[event.job] if one.gpus != measured.gpus)
        world.trials[event.job] = (*others, measured)


def give_up(world: World, job: Job) -> None:
    """Ends the trial runs of a job that does not wait for them any more."""
    jobs = world.jobs
    for gpus in job.trial.sizes if job.trial is not None else ():
        run = run_id(job.id, gpus)
        if run in jobs:
            jobs.hold_back(jobs.row(run), Wish.CANCEL)


def why_tried(world: World, row: int) -> tuple[Reason, Evidence]:
    """Why a job waits that is being tried out, or was."""
    job = world.jobs.jobs[row]
    measured, plan = world.trials.get(job.id, ()), job.trial
    sizes = () if plan is None else plan.sizes
    if sizes and never_fits(measured, sizes):
        return Reason.OUT_OF_MEMORY, (("most", max(sizes)), ("sizes", len(sizes)))
    return Reason.IN_TRIAL, (("measured", len(measured)), ("sizes", len(sizes)))


def never_fits(measured: Sequence[TrialMeasurement], sizes: Sequence[int]) -> bool:
    """Whether a job ran out of memory at every size that was to be tried."""
    failed = {one.gpus for one in measured if one.outcome is TrialOutcome.OUT_OF_MEMORY}
    return failed.issuperset(sizes)
