"""A coarse forecast by list scheduling: for when there is no time to project the World.

A projection of thousands of jobs takes seconds of CPU time. Here each waiting job starts, in the order of
priority and submission, as soon as enough GPUs of its type are free, keeps the size that it asks for, and
takes what is believed of its length. The policy, quota, topology and jobs to come are left out. It takes
O(n log n): some tens of milliseconds for 5,000 jobs.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np

from batuta.backends.sim.forecast.forecast import Forecast, JobForecast, own_spread, why_never
from batuta.backends.sim.forecast.projection import fork_at
from batuta.backends.sim.forecast.queries import ALONE
from batuta.backends.sim.forecast.sampling import Effort
from batuta.core.allocate import assign_types
from batuta.core.job import NO_RESTART_S, DesiredState
from batuta.core.world import World
from batuta.prediction.duration import Quantiles, remaining_work

PRECISION = 1.0
"""Of the times ahead: a policy that prefers short jobs, or lets jobs grow, may halve or double them."""
COARSE = (
    "coarse: jobs start in order of priority and submission with the size that they ask for, whatever policy and "
    "quota say; times may be off by a factor of two or three"
)


class _Demand(NamedTuple):
    """What a job takes of the cluster."""

    gpu_type: int  # -1 for a job without GPUs
    gpus: float  # of that type; a share of a GPU counts as much as its compute
    run_s: float
    left: Quantiles


def coarse_forecast(world: World, now_s: float) -> Forecast:
    """Start and finish of every living job, without a projection. The World stays as it is."""
    world = fork_at(world, now_s)
    now_s, jobs = world.now_s, world.jobs
    capacity = world.capacity()
    # By type: free GPUs, and when running jobs return theirs.
    free = [float(gpus) for gpus in capacity]
    ends: list[list[tuple[float, float]]] = [[] for _ in capacity]
    spans = list[tuple[float, float]]([(math.inf, math.inf)]) * jobs.n
    demands = _demands(world)
    waiting = list[int]()
    for row, (demand, placement) in enumerate(zip(demands, jobs.placements, strict=True)):
        if placement is None:
            waiting.append(row)
            continue
        end_s = now_s + demand.run_s
        spans[row] = float(jobs.last_start_s[row]), end_s
        if demand.gpu_type >= 0:
            free[demand.gpu_type] -= demand.gpus
            heapq.heappush(ends[demand.gpu_type], (end_s, demand.gpus))
    priority, not_before_s = jobs.priority.tolist(), jobs.not_before_s.tolist()
    clock_s = [now_s] * len(capacity)
    for row in sorted(waiting, key=lambda row: (-priority[row], row)):
        kind, gpus, run_s, _ = demands[row]
        if jobs.wish_of(row) in (DesiredState.PARK, DesiredState.CANCEL, DesiredState.TRY):
            continue
        start_s = max(now_s, not_before_s[row])
        if jobs.is_cpu_only[row]:
            spans[row] = start_s, start_s + run_s
            continue
        if kind < 0 or gpus > capacity[kind]:
            continue
        while free[kind] < gpus:
            clock_s[kind], returned = heapq.heappop(ends[kind])
            free[kind] += returned
        start_s = max(start_s, clock_s[kind])
        free[kind] -= gpus
        heapq.heappush(ends[kind], (start_s + run_s, gpus))
        spans[row] = start_s, start_s + run_s
    found = list[JobForecast]()
    for row, (job, (start_s, end_s)) in enumerate(zip(jobs.ids, spans, strict=True)):
        finish = own_spread(max(start_s, now_s), end_s, demands[row].left)
        why = "" if end_s < math.inf else why_never(world, row)
        found.append(JobForecast(job, start_s, start_s, *finish, why, coarse=True))
    return Forecast(now_s, tuple(found), 0, Effort(0, PRECISION), (ALONE, COARSE))


def _demands(world: World) -> list[_Demand]:
    """The demand of each row: the GPUs that a running job has, and the size that a waiting one asks for."""
    jobs = world.jobs
    kinds = assign_types(world, world.capacity()).tolist()
    sizes = np.where(jobs.held > 0, jobs.held, np.maximum(jobs.size, 1))
    speeds = np.maximum(jobs.speed().at(sizes), 1e-9).tolist()
    restart_s, types = jobs.restart_s.tolist(), world.nodes.types
    found = list[_Demand]()
    for row, (job, kind, gpus) in enumerate(zip(jobs.jobs, kinds, sizes.tolist(), strict=True)):
        left = remaining_work(world, job.id)
        speed = speeds[row] * (dict(job.gpu_types).get(types[kind], 1.0) if job.gpu_types and kind >= 0 else 1.0)
        run_s = left.p50_s / max(speed, 1e-9)
        if jobs.placements[row] is None and restart_s[row] < NO_RESTART_S:
            run_s += restart_s[row]
        if jobs.is_cpu_only[row]:
            kind = -1
        elif job.share is not None and job.share.compute_percent:
            gpus *= job.share.compute_percent / 100
        found.append(_Demand(kind, gpus, run_s, left))
    return found
