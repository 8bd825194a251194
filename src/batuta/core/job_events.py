"""What events about jobs change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from batuta.core import event as ev
from batuta.core.holdings import release
from batuta.core.job_table import JobTable, Phase
from batuta.core.wish import Wish
from batuta.core.world import PastJob, World, speed_at

_FIRST_START, _RATE, _ATTAINED = (JobTable.F[name] for name in ("first_start_s", "rate", "attained_gpu_s"))
_RESTARTS = JobTable.I["restarts"]


def _submit(world: World, event: ev.JobSubmitted) -> None:
    job = event.job
    if job.id in world.jobs or job.id in world.past:
        raise ValueError(f"job {job.id} exists already")
    world.judge(world.jobs.insert(job))


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
    if event.curve is not None:
        jobs.set_curve(row, event.curve)
        placement = jobs.placements[row]
        if placement is not None and jobs.phase_of(row) is Phase.RUNNING:
            jobs.f("rate")[row] = speed_at(world, jobs.jobs[row], placement)


def _interrupted(world: World, event: ev.JobInterrupted) -> None:
    if event.job in world.jobs:
        row = world.jobs.row(event.job)
        if world.jobs.placements[row] is not None:
            release(world, row, event.time_s)
        if event.not_before_s > event.time_s:
            world.jobs.hold_back(row, not_before_s=event.not_before_s)


def _wished(world: World, event: ev.JobWished) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    if jobs.wish_of(row) is Wish.CANCEL:
        return
    if event.wish is not Wish.EVICT:
        # Whoever says RUN does not want to wait for a back-off to end.
        jobs.hold_back(row, event.wish, 0.0 if event.wish is Wish.RUN else None)
    elif jobs.placements[row] is not None and jobs.wish_of(row) is Wish.RUN:
        jobs.hold_back(row, Wish.EVICT)


def _ended(world: World, event: ev.JobEnded) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    if jobs.placements[row] is not None:
        release(world, row, event.time_s)
    f, i = jobs.cells()
    first_start_s, attained_gpu_s = f.item(_FIRST_START, row), f.item(_ATTAINED, row)
    world.past[event.job] = PastJob(
        jobs.jobs[row],
        event.state,
        first_start_s,
        event.time_s,
        attained_gpu_s,
        i.item(_RESTARTS, row),
        world.progress.pop(event.job, None),
        event.exit_code,
        event.detail,
    )
    jobs.remove(event.job)


HANDLERS: dict[type, Callable[..., None]] = {
    ev.JobSubmitted: _submit,
    ev.JobChanged: _change,
    ev.JobStarted: _started,
    ev.JobProgressed: _progressed,
    ev.JobInterrupted: _interrupted,
    ev.JobWished: _wished,
    ev.JobEnded: _ended,
}
