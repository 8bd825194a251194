"""What events about jobs change in the World, those about their trial runs and stragglers included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from batuta.core import event as ev
from batuta.core.event import JobHeldUp, TrialMeasured
from batuta.core.holdings import has_left, release, take_over
from batuta.core.job import DesiredState, Job
from batuta.core.job_table import JobTable, Phase
from batuta.core.reason import Evidence, Reason
from batuta.core.trial import TrialMeasurement, TrialOutcome, run_id
from batuta.core.utilisation import began_anew, learn_name
from batuta.core.world import ExcludedNodes, PastJob, World, speed_at


def begin_trials(world: World, row: int) -> None:
    """Lets a new job wait for its trial runs, if it shall have some."""
    job = world.jobs.jobs[row]
    if job.trial is not None:
        world.trials[job.id] = ()
        world.jobs.hold_back(row, DesiredState.TRY)


def note_trial(world: World, event: TrialMeasured) -> None:
    """Keeps what a trial run showed, beside what is known of other sizes."""
    measured = event.measured
    if measured.outcome is TrialOutcome.MEASURED and measured.utilisation is not None:
        learn_name(world, measured.application, measured.utilisation)
    if event.job in world.trials:
        others = (one for one in world.trials[event.job] if one.gpus != measured.gpus)
        world.trials[event.job] = (*others, measured)


def give_up_trials(world: World, job: Job) -> None:
    """Ends the trial runs of a job that does not wait for them any more."""
    jobs = world.jobs
    for gpus in job.trial.sizes if job.trial is not None else ():
        run = run_id(job.id, gpus)
        if run in jobs:
            jobs.hold_back(jobs.row(run), DesiredState.CANCEL)


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


_FIRST_START, _RATE, _ATTAINED, _RUN = (
    JobTable.F[name] for name in ("first_start_s", "rate", "attained_gpu_s", "run_s")
)
_RESTARTS = JobTable.I["restarts"]
AVOID_S = 60.0
"""For so long after its back-off a job is not sent to a node again that would not have it."""


def check_new(world: World, job: Job) -> None:
    if job.id in world.jobs or job.id in world.past:
        raise ValueError(f"job {job.id} exists already")


def _submit(world: World, event: ev.JobSubmitted) -> None:
    check_new(world, event.job)
    row = world.jobs.insert(event.job)
    world.judge(row)
    begin_trials(world, row)


def _change(world: World, event: ev.JobChanged) -> None:
    jobs, wanted = world.jobs, event.job
    if wanted.id not in jobs:
        return
    row = jobs.row(wanted.id)
    known = jobs.jobs[row]
    # Only this: what a job holds was booked by its share, its replicas, the CPU and memory beside its GPUs.
    changed = replace(
        known,
        size=wanted.size,
        min=wanted.min,
        max=wanted.max,
        sizes=wanted.sizes,
        priority=wanted.priority,
        queue=wanted.queue,
        # What was learned since stays, unless it ends below the new range.
        curve=max(known.curve, wanted.curve, key=lambda curve: len(curve.speeds)),
        size_choice=wanted.size_choice or known.size_choice,
        restartable=wanted.restartable,
    )
    if jobs.placements[row] is None:
        # A job without GPUs may also want others.
        changed = replace(
            changed,
            gpu_types=wanted.gpu_types,
            topology=wanted.topology,
            node_labels=wanted.node_labels,
            node_terms=wanted.node_terms,
            tolerations=wanted.tolerations,
        )
    jobs.describe(row, changed)
    world.judge(row)


def _started(world: World, event: ev.JobStarted) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    placement = jobs.placements[row]
    if placement is None or jobs.phase_of(row) is Phase.BROKEN:
        return
    jobs.settle(row, event.time_s)
    jobs.set_phase(row, Phase.RUNNING)
    if world.leaving:
        has_left(world, row)
    began_anew(world, row, event.time_s)
    jobs.cells()[0][_RATE, row] = speed_at(world, jobs.jobs[row], placement)


def _progressed(world: World, event: ev.JobProgressed) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    jobs.settle(row, event.time_s)
    jobs.remaining_s[row] = event.remaining_s
    if event.progress is not None:
        world.progress[event.job] = event.progress
    if event.restart_s is not None:
        jobs.restart_s[row] = event.restart_s
    if event.outlook is not None:
        jobs.outlooks[event.job] = event.outlook
    if event.curve is not None:
        jobs.set_curve(row, event.curve)
        placement = jobs.placements[row]
        if placement is not None and jobs.phase_of(row) is Phase.RUNNING:
            jobs.rate[row] = speed_at(world, jobs.jobs[row], placement)


def _checkpointed(world: World, event: ev.JobCheckpointed) -> None:
    if event.job in world.jobs:
        world.jobs.note_checkpoint(world.jobs.row(event.job), event.saved_s)


def _found(world: World, event: ev.JobFound) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    take_over(world, row, event.placement, event.time_s, event.running)
    world.leaving.pop(event.job, None)
    began_anew(world, row, event.time_s)
    _avoid(world, event)
    if event.not_before_s > event.time_s:
        jobs.hold_back(row, not_before_s=event.not_before_s)


def _avoid(world: World, event: ev.JobFound | ev.JobInterrupted) -> None:
    """Notes which nodes would not have a job. They are asked again after a while, or when they change."""
    nodes = sum(1 << world.nodes.index[name] for name in set(event.avoid) if name in world.nodes.index)
    if nodes:
        before = world.avoided.get(event.job)
        until_s = max(event.not_before_s, event.time_s) + AVOID_S
        world.avoided[event.job] = ExcludedNodes(nodes | (before.nodes if before else 0), until_s)


def _interrupted(world: World, event: ev.JobInterrupted) -> None:
    world.leaving.pop(event.job, None)
    if event.job in world.jobs:
        row = world.jobs.row(event.job)
        if world.jobs.placements[row] is not None:
            release(world, row, event.time_s)
        if event.not_before_s > event.time_s:
            world.jobs.hold_back(row, not_before_s=event.not_before_s)
        _avoid(world, event)


def _wished(world: World, event: ev.JobWished) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    if jobs.wish_of(row) is DesiredState.CANCEL or jobs.wish_of(row) is event.wish is DesiredState.PARK:
        return  # of one that is parked it stays known why
    if event.wish is not DesiredState.EVICT:
        world.idle.pop(event.job, None)  # a user has looked after it
        if jobs.wish_of(row) is DesiredState.TRY:
            give_up_trials(world, jobs.jobs[row])
        # A user who says RUN does not want to wait for a back-off to end.
        jobs.hold_back(row, event.wish, 0.0 if event.wish is DesiredState.RUN else None)
    elif jobs.placements[row] is not None and jobs.wish_of(row) is DesiredState.RUN:
        jobs.hold_back(row, DesiredState.EVICT)


def _ended(world: World, event: ev.JobEnded) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    end_s = event.time_s if event.ended_s is None else min(event.time_s, event.ended_s)
    job, placement = jobs.jobs[row], jobs.placements[row]
    give_up_trials(world, job)
    if placement is not None:
        release(world, row, end_s)
    f, i = jobs.cells()
    first_start_s, attained_gpu_s = f.item(_FIRST_START, row), f.item(_ATTAINED, row)
    run_s = f.item(_RUN, row)
    world.past[event.job] = PastJob(
        job,
        event.state,
        first_start_s,
        end_s,
        attained_gpu_s,
        i.item(_RESTARTS, row),
        world.progress.pop(event.job, None),
        event.exit_code,
        event.detail,
        world.trials.pop(event.job, ()),
        placement if job.trial_of is not None else None,
        run_s,
        event.reason,
        event.evidence,
    )
    world.avoided.pop(event.job, None)
    world.leaving.pop(event.job, None)
    world.idle.pop(event.job, None)
    world.most.pop(event.job, None)
    jobs.remove(event.job)


def _timed(world: World, event: ev.TransitionTimed) -> None:
    """A job has left its GPUs, or runs on others."""
    world.leaving.pop(event.job, None)


def _forgotten(world: World, event: ev.JobForgotten) -> None:
    if world.past.pop(event.job, None) is not None:
        world.forgotten += 1


HANDLERS: dict[type, Callable[..., None]] = {
    ev.JobSubmitted: _submit,
    ev.JobChanged: _change,
    ev.JobStarted: _started,
    ev.JobFound: _found,
    ev.JobProgressed: _progressed,
    ev.JobCheckpointed: _checkpointed,
    ev.JobInterrupted: _interrupted,
    ev.JobWished: _wished,
    ev.JobEnded: _ended,
    ev.TransitionTimed: _timed,
    ev.JobForgotten: _forgotten,
}


CAUSE: Final = "held-up"
"""Of what is done about it."""


def note_held_up(world: World, event: JobHeldUp) -> None:
    """Adds the nodes to those that the job avoids. One that is changed or replaced is asked again sooner."""
    index = world.nodes.index
    nodes = sum(1 << index[name] for name in set(event.avoid) if name in index)
    if nodes and event.job in world.jobs:
        before = world.avoided.get(event.job, ExcludedNodes(0, 0.0))
        world.avoided[event.job] = ExcludedNodes(nodes | before.nodes, max(before.until_s, event.until_s))
