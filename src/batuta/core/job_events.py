"""What events about jobs change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from batuta.core import event as ev
from batuta.core import trial_events
from batuta.core.holdings import release, take_over
from batuta.core.idle import began_anew
from batuta.core.job import Job
from batuta.core.job_table import JobTable, Phase
from batuta.core.wish import Wish
from batuta.core.world import Avoided, PastJob, World, speed_at

_FIRST_START, _RATE, _ATTAINED = (JobTable.F[name] for name in ("first_start_s", "rate", "attained_gpu_s"))
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
    trial_events.begin(world, row)


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
    )
    if jobs.placements[row] is None:
        # Whoever has no GPUs may also want others.
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
    began_anew(world, row, event.time_s)
    jobs.cells()[0][_RATE, row] = speed_at(world, jobs.jobs[row], placement)


def _progressed(world: World, event: ev.JobProgressed) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    jobs.settle(row, event.time_s)
    jobs.f("remaining_s")[row] = event.remaining_s
    if event.progress is not None:
        world.progress[event.job] = event.progress
    if event.restart_s is not None:
        jobs.f("restart_s")[row] = event.restart_s
    if event.outlook is not None:
        jobs.outlooks[event.job] = event.outlook
    if event.curve is not None:
        jobs.set_curve(row, event.curve)
        placement = jobs.placements[row]
        if placement is not None and jobs.phase_of(row) is Phase.RUNNING:
            jobs.f("rate")[row] = speed_at(world, jobs.jobs[row], placement)


def _found(world: World, event: ev.JobFound) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    take_over(world, row, event.placement, event.time_s, event.running)
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
        world.avoided[event.job] = Avoided(nodes | (before.nodes if before else 0), until_s)


def _interrupted(world: World, event: ev.JobInterrupted) -> None:
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
    if jobs.wish_of(row) is Wish.CANCEL or jobs.wish_of(row) is event.wish is Wish.PARK:
        return  # of one that is parked it stays known why
    if event.wish is not Wish.EVICT:
        world.idle.pop(event.job, None)  # somebody has looked after it
        if jobs.wish_of(row) is Wish.TRY:
            trial_events.give_up(world, jobs.jobs[row])
        # Whoever says RUN does not want to wait for a back-off to end.
        jobs.hold_back(row, event.wish, 0.0 if event.wish is Wish.RUN else None)
    elif jobs.placements[row] is not None and jobs.wish_of(row) is Wish.RUN:
        jobs.hold_back(row, Wish.EVICT)


def _ended(world: World, event: ev.JobEnded) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    end_s = event.time_s if event.ended_s is None else min(event.time_s, event.ended_s)
    job, placement = jobs.jobs[row], jobs.placements[row]
    trial_events.give_up(world, job)
    if placement is not None:
        release(world, row, end_s)
    f, i = jobs.cells()
    first_start_s, attained_gpu_s = f.item(_FIRST_START, row), f.item(_ATTAINED, row)
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
    )
    world.avoided.pop(event.job, None)
    world.idle.pop(event.job, None)
    world.most.pop(event.job, None)
    jobs.remove(event.job)


def _forgotten(world: World, event: ev.JobForgotten) -> None:
    if world.past.pop(event.job, None) is not None:
        world.forgotten += 1


HANDLERS: dict[type, Callable[..., None]] = {
    ev.JobSubmitted: _submit,
    ev.JobChanged: _change,
    ev.JobStarted: _started,
    ev.JobFound: _found,
    ev.JobProgressed: _progressed,
    ev.JobInterrupted: _interrupted,
    ev.JobWished: _wished,
    ev.JobEnded: _ended,
    ev.JobForgotten: _forgotten,
}
