"""Who has which GPUs: a job takes them, and gives them back."""

from __future__ import annotations

import math

from batuta.core.cluster import Placement
from batuta.core.job_table import JobTable, Phase
from batuta.core.wish import Wish
from batuta.core.world import World

# Places of the cells that every start and stop writes.
_FIRST_START, _LAST_START, _LAST_STOP, _LAST_RESIZE, _RATE = (
    JobTable.F[name] for name in ("first_start_s", "last_start_s", "last_stop_s", "last_resize_s", "rate")
)
_SERVICE = JobTable.F["service_gpu_s"]
_GPU_TYPE, _RESTARTS, _LOST = (JobTable.I[name] for name in ("gpu_type", "restarts", "lost_gpus"))


def release(world: World, row: int, now_s: float) -> None:
    """Takes all GPUs from a job; it waits again."""
    jobs = world.jobs
    placement = jobs.placements[row]
    if placement is None:
        return
    jobs.settle(row, now_s)
    world.layout.remove(placement, jobs.jobs[row])
    jobs.placements[row] = None
    f, i = jobs.cells()
    f[_RATE, row], f[_LAST_STOP, row] = 0.0, now_s
    i[_GPU_TYPE, row], i[_LOST, row] = -1, 0
    jobs.set_gpus(row, 0)
    jobs.set_phase(row, Phase.WAITING)
    if jobs.held_back and jobs.wish_of(row) is Wish.EVICT:
        jobs.hold_back(row, Wish.RUN)


def occupy(world: World, row: int, placement: Placement, now_s: float, phase: Phase) -> None:
    """Notes that a job has these GPUs from now on."""
    jobs = world.jobs
    jobs.settle(row, now_s)
    f, i = jobs.cells()
    if math.isnan(f.item(_FIRST_START, row)):
        f[_FIRST_START, row] = now_s
    else:
        i[_RESTARTS, row] += 1
    if phase is Phase.STARTING:
        f[_LAST_START, row], f[_SERVICE, row] = now_s, 0.0
    else:
        f[_LAST_RESIZE, row] = now_s
    jobs.placements[row] = placement
    f[_RATE, row] = 0.0
    i[_LOST, row], i[_GPU_TYPE, row] = 0, world.nodes.type_of[world.nodes.index[placement.spans[0].node]]
    jobs.set_gpus(row, placement.size)
    if jobs.held_back:
        jobs.hold_back(row, not_before_s=0.0)
    jobs.set_phase(row, phase)
